"""Graphs from a JSONL file, one a line: ``{"nodes": [{"element": "C"}, ...], "edges": [[0, 1], ...], "y": 1}``.

``nodes`` is how many there are, or a list of objects with what each carries; an ``id`` among it is what edges call the
node by, instead of its place from 0. An edge is ``[u, v]``, ``[u, v, {...}]``, or an object with ``source`` and
``target``; with ``"directed": true`` it runs one way. All other fields, and those of an object called ``graph``, are
columns of the graph. What networkx calls node-link data is read as it is.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mnagt.data.archives import LARGEST_TOLD, Archive
from mnagt.data.named import GraphTable, NamedColumns, NamedGraphs
from mnagt.errors import InputError, shown

SUFFIXES = (".jsonl", ".ndjson")
"""How the names of such files end; each may be followed by .gz."""

LONGEST_LINE = 1 << 28
"""Bytes of a line: a graph."""
SPARE_NODES = 1 << 20
"""``nodes`` as a number may add up to this and one for every byte of the file: a few bytes must not ask for much."""

_OWN = ("nodes", "edges", "directed", "multigraph", "graph")


def read_jsonl(path: Path) -> NamedGraphs:
    """The graphs in a file."""
    (found,) = jsonl_parts(path)
    return found


def jsonl_parts(path: Path, at_once: int | None = None) -> Iterator[NamedGraphs]:
    """The graphs in a file, ``at_once`` at a time, or all together; a file without any is one part without any."""
    part, room = _Part(path), SPARE_NODES
    for line, text in _lines(path):
        if len(part.sizes) == at_once:
            yield part.named()
            part = _Part(path)
        graph = _Record(f"{path}, line {line}", text)
        room += len(text) - graph.counted
        if room < 0:
            raise InputError(
                f"{path}, line {line}, nodes: more than the file has bytes; list them, or remove the graph"
            )
        part.add(line, graph)
    yield part.named()


class _Part:
    """Some of the graphs of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes, self.ends, self.is_directed, self.rows = [], [], [], []
        self.lines: list[int] = []
        self.edge_counts: list[int] = []
        self.nodes, self.edges = (
            NamedColumns(kind, lambda row, name, kind=kind: self._at(kind, row, name), label=str(path))
            for kind in ("nodes", "edges")
        )

    def _at(self, kind: str, row: int, name: str) -> str:
        counts = self.sizes if kind == "nodes" else self.edge_counts
        return f"{self.path}, {_place(self.lines, counts, row, kind)}.{name[:60]}"

    def add(self, line: int, graph: "_Record") -> None:
        first, before = self.nodes.rows, len(self.ends)
        place = graph.add_nodes(self.nodes)
        for u, v, row in graph.edges(place):
            self.ends.append((first + u, first + v))
            self.edges.add(row)
        self.lines.append(line)
        self.sizes.append(self.nodes.rows - first)
        self.edge_counts.append(len(self.ends) - before)
        self.is_directed += [graph.is_directed] * self.edge_counts[-1]
        self.rows.append(graph.row())

    def named(self) -> NamedGraphs:
        path, rows = self.path, self.rows
        table = GraphTable.of(str(path), rows, [f"{path}, line {line}" for line in self.lines])
        ids = [number if row.get("id") is None else str(row["id"]) for number, row in enumerate(rows)]
        name = Path(str(path).removesuffix(".gz")).stem
        return NamedGraphs(name, self.sizes, self.ends, self.is_directed, self.nodes, self.edges, table, ids)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers."""
    rest, number = b"", 0
    for block in Archive(path.parent).blocks(path.name, LARGEST_TOLD):
        if len(rest) > LONGEST_LINE:
            raise InputError(f"{path}, line {number + 1}: over {LONGEST_LINE:,} bytes; write a graph a line")
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


def _place(lines: list[int], counts: list[int], row: int, what: str = "nodes") -> str:
    """The line and the place in it of a row laid end to end."""
    ends = list(accumulate(counts))
    graph = int(np.searchsorted(ends, row, side="right"))
    return f"line {lines[graph]}, {what}[{row - ends[graph] + counts[graph]}]"


class _Record:
    """A line."""

    def __init__(self, where: str, text: bytes) -> None:
        self.where = where
        try:
            content = json.loads(text.decode("utf-8-sig"), parse_constant=_no_number)
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: byte {error.start + 1} is not UTF-8; save the file in UTF-8") from None
        except json.JSONDecodeError as error:
            raise InputError(f"{where}, column {error.colno}: not JSON ({error.msg}); write a graph a line") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({error}); write a graph a line") from None
        if not isinstance(content, dict):
            raise self.error("", "an object", content)
        self.content: dict[str, Any] = content
        self.is_directed = content.get("directed", False)
        if not isinstance(self.is_directed, bool):
            raise self.error("directed", "true or false", self.is_directed)

    def error(self, field: str, wanted: str, got: Any) -> InputError:
        return InputError(f"{self.where}{', ' if field else ''}{field}: expected {wanted}, got {_told(got)}")

    @property
    def counted(self) -> int:
        """How many nodes there are, where that is all that is said of them."""
        nodes = self.content.get("nodes")
        return nodes if isinstance(nodes, int) and not isinstance(nodes, bool) and 0 < nodes < 2**31 else 0

    def add_nodes(self, columns: NamedColumns) -> Mapping[Any, int]:
        """Add what the nodes carry to ``columns``; the place of each by what edges call it."""
        if "nodes" not in self.content:
            raise InputError(f"{self.where}, nodes: missing; give their number, or an object for each")
        nodes = self.content["nodes"]
        if self.counted:
            columns.add_empty(self.counted)
            return dict(zip(range(self.counted), range(self.counted), strict=True))
        if not isinstance(nodes, list) or not nodes:
            raise self.error("nodes", "a number from 1 or a list with an object for each", nodes)
        place: dict[Any, int] = {}
        for i, node in enumerate(nodes):
            if not isinstance(node, dict):
                raise self.error(f"nodes[{i}]", 'an object, such as {"element": "C"}', node)
            name = node.get("id", i)
            if not isinstance(name, str | int):
                raise self.error(f"nodes[{i}].id", "a text or a whole number", name)
            if name in place:
                raise InputError(f"{self.where}, nodes[{i}].id: {shown(name)} is there twice; ids are distinct")
            place[name] = i
            columns.add({key: value for key, value in node.items() if key != "id"} if "id" in node else node)
        return place

    def edges(self, place: Mapping[Any, int]) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Places of both ends of each edge, and what it carries."""
        edges = self.content.get("edges", [])
        if not isinstance(edges, list):
            raise self.error("edges", "a list", edges)
        for i, edge in enumerate(edges):
            match edge:
                case [u, v]:
                    row = {}
                case [u, v, dict(row)]:
                    pass
                case {"source": u, "target": v, **row}:
                    row.pop("key", None)  # of networkx, where edges are repeated
                case _:
                    raise self.error(f"edges[{i}]", '[u, v], [u, v, {...}] or {"source": u, "target": v, ...}', edge)
            for end in (u, v):
                if not isinstance(end, str | int) or end not in place:
                    raise InputError(
                        f"{self.where}, edges[{i}]: no node {_told(end)}; the graph's {len(place)} nodes are "
                        f"{', '.join(map(_told, list(place)[:5]))}{', ...' if len(place) > 5 else ''}"
                    )
            yield place[u], place[v], row

    def row(self) -> dict[str, Any]:
        """What the graph carries."""
        inner = self.content.get("graph", {})
        inner = inner if isinstance(inner, dict) else {"graph": inner}
        return inner | {name: value for name, value in self.content.items() if name not in _OWN}


def _told(value: Any) -> str:
    """As JSON, cut short."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        return shown(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON; write null where a value is missing")
