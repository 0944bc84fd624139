"""Graphs from a JSONL file, one a line: ``{"nodes": [{"element": "C"}, ...], "edges": [[0, 1], ...], "y": 1}``.

``nodes`` is their number, or a list of objects with the attributes of each. Edges refer to nodes by their ``id``, or by
their index from 0 where there is none. An edge is ``[u, v]``, ``[u, v, {...}]``, or an object with ``source`` and
``target``; with ``"directed": true`` it runs one way. All other fields, and those of an object called ``graph``, are
attributes of the graph. networkx's node-link data has this form.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from mnagt.data.archives import MAX_PARSED_BYTES, Archive
from mnagt.data.readers.attribute_columns import AttributeColumns
from mnagt.data.readers.attributed_graphs import AttributedGraphs
from mnagt.errors import InputError, quote

SUFFIXES = (".jsonl", ".ndjson")
"""Suffixes of such files; each may be followed by .gz."""

MAX_LINE_BYTES = 1 << 28
MAX_COUNTED_NODES = 1 << 20
"""Nodes given as a number: in all at most this and one for every byte of the file, so that a few bytes stay small."""

_RESERVED = ("nodes", "edges", "directed", "multigraph", "graph")


def read_jsonl(path: Path) -> AttributedGraphs:
    """The graphs in a file."""
    (graphs,) = iterate_jsonl(path)
    return graphs


def iterate_jsonl(path: Path, graphs_at_once: int | None = None) -> Iterator[AttributedGraphs]:
    """The graphs in a file, ``graphs_at_once`` at a time, or all together; one empty part for an empty file."""
    graphs, max_counted = _no_graphs(path), MAX_COUNTED_NODES
    for line, text in _read_lines(path):
        if len(graphs.ids) == graphs_at_once:
            yield graphs
            graphs = _no_graphs(path)
        record = _Record(f"{path}, line {line}", text)
        max_counted += len(text) - record.node_count
        if max_counted < 0:
            raise InputError(
                f"{path}, line {line}, nodes: more than the file has bytes; list them, or remove the graph"
            )
        first, index = graphs.first_node, record.add_nodes(graphs.nodes)
        for u, v, attributes in record.edges(index):
            graphs.add_edge((first + u, first + v), attributes, is_directed=record.is_directed)
        attributes = record.attributes()
        graph_id = len(graphs.ids) if attributes.get("id") is None else str(attributes["id"])
        graphs.end_graph(attributes, record.location, graph_id)
    yield graphs


def _no_graphs(path: Path) -> AttributedGraphs:
    name = Path(str(path).removesuffix(".gz")).stem
    return AttributedGraphs.empty(name, str(path), lambda location, name: f"{location}.{name[:60]}")


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers."""
    rest, number = b"", 0
    for block in Archive(path.parent).read_blocks(path.name, MAX_PARSED_BYTES):
        if len(rest) > MAX_LINE_BYTES:
            raise InputError(f"{path}, line {number + 1}: over {MAX_LINE_BYTES:,} bytes; write a graph a line")
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


class _Record:
    """The graph of a line; ``location`` is the line, for messages."""

    def __init__(self, location: str, text: bytes) -> None:
        self.location = location
        try:
            content = json.loads(text.decode("utf-8-sig"), parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            raise InputError(f"{location}: byte {error.start + 1} is not UTF-8; save the file in UTF-8") from None
        except json.JSONDecodeError as error:
            raise InputError(
                f"{location}, column {error.colno}: not JSON ({error.msg}); write a graph a line"
            ) from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{location}: not JSON ({error}); write a graph a line") from None
        if not isinstance(content, dict):
            raise self.error("", "an object", content)
        self.content: dict[str, Any] = content
        self.is_directed = content.get("directed", False)
        if not isinstance(self.is_directed, bool):
            raise self.error("directed", "true or false", self.is_directed)

    def error(self, field: str, expected: str, value: Any) -> InputError:
        return InputError(f"{self.location}{', ' if field else ''}{field}: expected {expected}, got {_to_json(value)}")

    @property
    def node_count(self) -> int:
        """``nodes`` where it is a number, else 0."""
        nodes = self.content.get("nodes")
        return nodes if isinstance(nodes, int) and not isinstance(nodes, bool) and 0 < nodes < 2**31 else 0

    def add_nodes(self, columns: AttributeColumns) -> Mapping[Any, int]:
        """Add the nodes' attributes to ``columns``. Returns the index of each node by its id."""
        if "nodes" not in self.content:
            raise InputError(f"{self.location}, nodes: missing; give their number, or an object for each")
        nodes = self.content["nodes"]
        if self.node_count:
            columns.add_empty(self.node_count)
            return dict(zip(range(self.node_count), range(self.node_count), strict=True))
        if not isinstance(nodes, list) or not nodes:
            raise self.error("nodes", "a number from 1 or a list with an object for each", nodes)
        index: dict[Any, int] = {}
        for i, node in enumerate(nodes):
            if not isinstance(node, dict):
                raise self.error(f"nodes[{i}]", 'an object, such as {"element": "C"}', node)
            node_id = node.get("id", i)
            if not isinstance(node_id, str | int):
                raise self.error(f"nodes[{i}].id", "a text or a whole number", node_id)
            if node_id in index:
                raise InputError(f"{self.location}, nodes[{i}].id: {quote(node_id)} is there twice; ids are distinct")
            index[node_id] = i
            columns.add({key: value for key, value in node.items() if key != "id"} if "id" in node else node)
        return index

    def edges(self, index: Mapping[Any, int]) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """The indices of both ends of each edge, and its attributes."""
        edges = self.content.get("edges", [])
        if not isinstance(edges, list):
            raise self.error("edges", "a list", edges)
        for i, edge in enumerate(edges):
            match edge:
                case [u, v]:
                    attributes = {}
                case [u, v, dict(attributes)]:
                    pass
                case {"source": u, "target": v, **attributes}:
                    attributes.pop("key", None)  # networkx's number of a repeated edge
                case _:
                    raise self.error(f"edges[{i}]", '[u, v], [u, v, {...}] or {"source": u, "target": v, ...}', edge)
            for end in (u, v):
                if not isinstance(end, str | int) or end not in index:
                    raise InputError(
                        f"{self.location}, edges[{i}]: no node {_to_json(end)}; the graph's {len(index)} nodes are "
                        f"{', '.join(map(_to_json, list(index)[:5]))}{', ...' if len(index) > 5 else ''}"
                    )
            yield index[u], index[v], attributes

    def attributes(self) -> dict[str, Any]:
        """The attributes of the graph."""
        inner = self.content.get("graph", {})
        inner = inner if isinstance(inner, dict) else {"graph": inner}
        return inner | {name: value for name, value in self.content.items() if name not in _RESERVED}


def _to_json(value: Any) -> str:
    """A value for messages: as JSON, abbreviated."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        return quote(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON; write null where a value is missing")
