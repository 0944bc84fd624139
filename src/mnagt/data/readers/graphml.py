"""Graphs from GraphML: a file, or a folder of them in the order of their names. A file may hold several graphs.

Attributes that ``key`` elements declare by name (``attr.name``) are read by type: int, long, string and boolean are
categorical, float and double continuous. Keys without such a name, which editors use for drawings, are ignored.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from mnagt.data.archives import MAX_PARSED_BYTES, Archive
from mnagt.data.readers.attributed_graphs import AttributedGraphs
from mnagt.errors import InputError, quote

SUFFIXES = (".graphml",)
"""Suffixes of such files; each may be followed by .gz."""

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_TYPES = {"boolean": lambda text: _BOOLEANS[text.lower()], "int": int, "long": int, "float": float, "double": float}


def graphml_files(path: Path) -> list[Path]:
    """The file, or those in the folder."""
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.iterdir() if p.name.lower().removesuffix(".gz").endswith(SUFFIXES))


def read_graphml(path: Path) -> AttributedGraphs:
    """The graphs in a file, or in the files of a folder."""
    name = path.name.removesuffix(".gz").removesuffix(".graphml")
    collected = AttributedGraphs.empty(name, str(path), lambda location, name: f"{location}, {quote(name)}")
    for file in graphml_files(path):
        root = _parse_xml(file)
        graphs = root.children_named("graph")
        if root.tag != "graphml" or not graphs:
            raise InputError(
                f"{file}, line {root.line}: <{root.tag[:60]}> without a <graph> in it; give a GraphML file"
            )
        keys = _Keys.read(root)
        for number, graph in enumerate(graphs):
            _add_graph(collected, graph, keys)
            graph_id = file.name if len(graphs) == 1 else f"{file.name}#{number}"
            collected.end_graph(_read_attributes(graph, keys), graph.location, graph_id)
    return collected


def _add_graph(graphs: AttributedGraphs, graph: "_Element", keys: "_Keys") -> None:
    """Add the nodes and edges of a graph."""
    index: dict[str, int] = {}
    for node in graph.children_named("node"):
        node_id = node.attributes.get("id", "")
        if node_id in index:
            raise InputError(f"{node.location}: node {quote(node_id)} is there twice; ids are distinct")
        if inner := node.children_named("graph"):
            raise InputError(f"{inner[0].location}: a graph within a node; write it as a graph of its own")
        index[node_id] = graphs.first_node + len(index)
        graphs.add_node(_read_attributes(node, keys), node.location)
    if not index:
        raise InputError(f"{graph.location}: a graph without nodes; remove it")
    for edge in graph.children_named("edge"):
        u, v = (edge.attributes.get(end, "") for end in ("source", "target"))
        for end in (u, v):
            if end not in index:
                raise InputError(f"{edge.location}: no node {quote(end)} in its graph; fix source or target")
        is_directed = edge.attributes.get("directed", graph.attributes.get("edgedefault")) in ("true", "directed")
        attributes = _read_attributes(edge, keys)
        graphs.add_edge((index[u], index[v]), attributes, edge.location, is_directed=is_directed)
    for hyperedge in graph.children_named("hyperedge"):
        raise InputError(f"{hyperedge.location}: a hyperedge joins more than two nodes; write it as edges")


@dataclass(eq=False)
class _Element:
    """An XML element with its line."""

    tag: str
    attributes: Mapping[str, str]
    path: Path
    line: int
    children: list["_Element"] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def location(self) -> str:
        return f"{self.path}, line {self.line}"

    @property
    def text(self) -> str:
        return "".join(self.texts).strip()

    def children_named(self, tag: str) -> list["_Element"]:
        """The children with this tag."""
        return [child for child in self.children if child.tag == tag]


def _parse_xml(path: Path) -> _Element:
    """The root element. A document type is refused, and with it all entities, which could expand without bound."""
    document = _Element("", {}, path, 1)
    stack, parser = [document], expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = _Element(tag.rpartition(" ")[2], attributes, path, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def text(part: str) -> None:
        stack[-1].texts.append(part)

    def refuse(*_: Any) -> None:
        raise InputError(f"{path}, line {parser.CurrentLineNumber}: a document type is not read; remove <!DOCTYPE ...>")

    parser.StartElementHandler, parser.EndElementHandler = start, lambda tag: stack.pop()
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, refuse
    try:
        for block in Archive(path.parent).read_blocks(path.name, MAX_PARSED_BYTES):
            parser.Parse(block)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise InputError(f"{path}, line {error.lineno}: not XML ({expat.ErrorString(error.code)}); fix it") from None
    except InputError:
        raise
    except (LookupError, ValueError) as error:  # an encoding that Python does not know
        raise InputError(f"{path}, line 1: {str(error)[:200]}; save the file in UTF-8") from None
    return document.children[0]


@dataclass(frozen=True)
class _Keys:
    """The ``key`` elements of a file by id, and the values that they give to all graphs, nodes or edges."""

    by_id: Mapping[str, _Element]
    defaults: Mapping[str, dict[str, Any]]

    @classmethod
    def read(cls, root: _Element) -> "_Keys":
        by_id = {key.attributes.get("id", ""): key for key in root.children_named("key")}
        defaults: dict[str, dict[str, Any]] = {tag: {} for tag in ("graph", "node", "edge")}
        for key in by_id.values():
            for default in key.children_named("default"):
                for tag, row in defaults.items():
                    if key.attributes.get("for", "all") in ("all", tag):
                        _set_attribute(row, key, default)
        return cls(by_id, defaults)


def _read_attributes(element: _Element, keys: _Keys) -> ChainMap[str, Any]:
    """The attributes of a graph, node or edge, by name: what it says, and the defaults."""
    row: dict[str, Any] = {}
    for data in element.children_named("data"):
        if data.attributes.get("key") not in keys.by_id:
            raise InputError(
                f"{data.location}: no <key> declares {quote(data.attributes.get('key'))}; add one at the top"
            )
        _set_attribute(row, keys.by_id[data.attributes["key"]], data)
    return ChainMap(row, keys.defaults[element.tag])


def _set_attribute(row: dict[str, Any], key: _Element, data: _Element) -> None:
    """Set the value of ``data``, with the name and the type that ``key`` declares."""
    name, kind, text = key.attributes.get("attr.name"), key.attributes.get("attr.type", "string"), data.text
    if name is None:
        return
    try:
        row[name] = _TYPES.get(kind, str)(text) if text else None
    except (ValueError, KeyError):
        raise InputError(
            f"{data.location}, {quote(name)}: {quote(text)} is not of type {kind[:60]}; fix it or its <key>"
        ) from None
