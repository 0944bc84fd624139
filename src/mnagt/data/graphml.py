"""Graphs from GraphML: a file, or a folder of them in the order of their names. A file may hold several graphs.

What ``key`` elements declare by name (``attr.name``) is read by its type: int, long, string and boolean are
categories, float and double numbers. Drawings that editors keep beside have no such name, and are passed over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from mnagt.data.archives import LARGEST_TOLD, Archive
from mnagt.data.named import GraphTable, NamedColumns, NamedGraphs
from mnagt.errors import InputError, shown

SUFFIXES = (".graphml",)
"""How the names of such files end; each may be followed by .gz."""

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_TYPES = {"boolean": lambda text: _BOOLEANS[text.lower()], "int": int, "long": int, "float": float, "double": float}


def graphml_files(path: Path) -> list[Path]:
    """The file, or those in the folder."""
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.iterdir() if p.name.lower().removesuffix(".gz").endswith(SUFFIXES))


def read_graphml(path: Path) -> NamedGraphs:
    """The graphs in a file, or in the files of a folder."""
    told = _Told(str(path))
    for file in graphml_files(path):
        root = _parsed(file)
        if root.tag != "graphml" or not root.of("graph"):
            raise InputError(
                f"{file}, line {root.line}: <{root.tag[:60]}> without a <graph> in it; give a GraphML file"
            )
        keys = {key.attributes.get("id", ""): key for key in root.of("key")}
        graphs = root.of("graph")
        for number, graph in enumerate(graphs):
            told.add(graph, keys)
            told.ids.append(file.name if len(graphs) == 1 else f"{file.name}#{number}")
    table = GraphTable.of(str(path), told.rows, told.places)
    name = path.name.removesuffix(".gz").removesuffix(".graphml")
    return NamedGraphs(name, told.sizes, told.ends, told.is_directed, told.nodes, told.edges, table, told.ids)


@dataclass(eq=False)
class _Element:
    """An element of XML, and where it begins."""

    tag: str
    attributes: Mapping[str, str]
    path: Path
    line: int
    children: list["_Element"] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"{self.path}, line {self.line}"

    @property
    def text(self) -> str:
        return "".join(self.texts).strip()

    def of(self, tag: str) -> list["_Element"]:
        """The elements directly within that have this tag."""
        return [child for child in self.children if child.tag == tag]


def _parsed(path: Path) -> _Element:
    """The file's outermost element. A document type is refused, and with it every entity that could grow."""
    around = _Element("", {}, path, 1)
    opened, parser = [around], expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = _Element(tag.rpartition(" ")[2], attributes, path, parser.CurrentLineNumber)
        opened[-1].children.append(element)
        opened.append(element)

    def text(part: str) -> None:
        opened[-1].texts.append(part)

    def refuse(*_: Any) -> None:
        raise InputError(f"{path}, line {parser.CurrentLineNumber}: a document type is not read; remove <!DOCTYPE ...>")

    parser.StartElementHandler, parser.EndElementHandler = start, lambda tag: opened.pop()
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, refuse
    try:
        for block in Archive(path.parent).blocks(path.name, LARGEST_TOLD):
            parser.Parse(block)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise InputError(f"{path}, line {error.lineno}: not XML ({expat.ErrorString(error.code)}); mend it") from None
    except InputError:
        raise
    except (LookupError, ValueError) as error:  # an encoding that Python does not know
        raise InputError(f"{path}, line 1: {str(error)[:200]}; save the file in UTF-8") from None
    return around.children[0]


@dataclass(eq=False)
class _Told:
    """What was read so far."""

    label: str
    sizes: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    is_directed: list[bool] = field(default_factory=list)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    node_places: list[str] = field(default_factory=list)
    edge_places: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes, self.edges = (
            NamedColumns(kind, lambda row, name, at=at: f"{at[row]}, {shown(name)}", label=self.label)
            for kind, at in (("nodes", self.node_places), ("edges", self.edge_places))
        )

    def add(self, graph: _Element, keys: Mapping[str, _Element]) -> None:
        first, place = self.nodes.rows, {}
        for node in graph.of("node"):
            name = node.attributes.get("id", "")
            if name in place:
                raise InputError(f"{node.place}: node {shown(name)} is there twice; ids are distinct")
            if inner := node.of("graph"):
                raise InputError(f"{inner[0].place}: a graph within a node; write it as a graph of its own")
            place[name] = first + len(place)
            self.nodes.add(_row(node, keys))
            self.node_places.append(node.place)
        if not place:
            raise InputError(f"{graph.place}: a graph without nodes; remove it")
        for edge in graph.of("edge"):
            u, v = (edge.attributes.get(end, "") for end in ("source", "target"))
            for end in (u, v):
                if end not in place:
                    raise InputError(f"{edge.place}: no node {shown(end)} in its graph; mend source or target")
            way = edge.attributes.get("directed", graph.attributes.get("edgedefault"))
            self.ends.append((place[u], place[v]))
            self.is_directed.append(way in ("true", "directed"))
            self.edges.add(_row(edge, keys))
            self.edge_places.append(edge.place)
        for hyper in graph.of("hyperedge"):
            raise InputError(f"{hyper.place}: a hyperedge joins more than two nodes; write it as edges")
        self.sizes.append(len(place))
        self.rows.append(_row(graph, keys))
        self.places.append(graph.place)


def _row(element: _Element, keys: Mapping[str, _Element]) -> dict[str, Any]:
    """What a graph, node or edge carries, by name."""
    row = {}
    for key in keys.values():
        if key.attributes.get("for", "all") in ("all", element.tag):
            for default in key.of("default"):
                _put(row, key, default)
    for data in element.of("data"):
        if data.attributes.get("key") not in keys:
            raise InputError(f"{data.place}: no <key> declares {shown(data.attributes.get('key'))}; add one at the top")
        _put(row, keys[data.attributes["key"]], data)
    return row


def _put(row: dict[str, Any], key: _Element, data: _Element) -> None:
    """The value of ``data``, under the name and of the type that ``key`` declares."""
    name, kind, text = key.attributes.get("attr.name"), key.attributes.get("attr.type", "string"), data.text
    if name is None:
        return
    try:
        row[name] = _TYPES.get(kind, str)(text) if text else None
    except (ValueError, KeyError):
        wrong = f"{shown(text)} is not of type {kind[:60]}"
        raise InputError(f"{data.place}, {shown(name)}: {wrong}; mend it or its <key>") from None
