"""Graphs from three tables in a folder, ``graphs``, ``nodes`` and ``edges``, each as CSV, TSV or Parquet.

| table | columns | besides |
| --- | --- | --- |
| graphs | ``graph`` | what is to be learned, groups |
| nodes | ``graph``, and ``node``, what edges call it by, or else its place in its graph from 0 | what nodes carry |
| edges | ``graph``, ``source``, ``target`` | what edges carry |

Rows may come in any order. Graphs are in that of their table; they are undirected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnagt.data.archives import LARGEST_TOLD
from mnagt.data.molecule_table import read_table
from mnagt.data.named import GraphTable, NamedColumns, NamedGraphs, named
from mnagt.errors import InputError, listed, shown
from mnagt.reading import check_size

PARTS = ("graphs", "nodes", "edges")
SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")

SPARE_CELLS, CELLS_A_BYTE = 1 << 24, 8
"""Values of a Parquet table: so many, and so many more for each byte of the file. Repeated ones take next to none."""

_MISSING = ("", "nan", "na")


def triple_files(folder: Path) -> list[Path]:
    """The three tables; none where not all are there."""
    found = [[p for suffix in SUFFIXES if (p := folder / f"{part}{suffix}").is_file()] for part in PARTS]
    for part, files in zip(PARTS, found, strict=True):
        if len(files) > 1 and all(found):
            names = " and ".join(p.name for p in files)
            raise InputError(f"{folder}: {names} are both there, and one table of {part} is read; remove the other")
    return [files[0] for files in found] if all(found) else []


def read_triple(folder: Path) -> NamedGraphs:
    """The graphs in a folder of three tables."""
    graphs, nodes, edges = (_Sheet.read(path) for path in triple_files(folder))
    place = graphs.places("graph")
    graph_of_node = nodes.looked_up("graph", place, graphs)
    order = np.argsort(graph_of_node, kind="stable")
    sizes = np.bincount(graph_of_node, minlength=len(place))
    for row in np.flatnonzero(sizes == 0).tolist():
        raise InputError(f"{graphs.at(row, 'graph')}: the graph has no nodes in {nodes.path.name}; remove it")
    first = np.cumsum(sizes) - sizes
    nodes, graph_of_node = nodes.taken(order.tolist()), graph_of_node[order]
    if "node" in nodes.columns:
        names = nodes.names("node")
    else:
        names = [str(i) for i in (np.arange(len(order)) - first[graph_of_node]).tolist()]
    node_of: dict[tuple[int, str], int] = {}
    for row, key in enumerate(zip(graph_of_node.tolist(), names, strict=True)):
        if node_of.setdefault(key, row) != row:
            raise InputError(
                f"{nodes.at(row, 'node')}: node {shown(key[1])} is there twice in its graph; ids are distinct"
            )
    graph_of_edge = edges.looked_up("graph", place, graphs).tolist()
    ends = []
    for column in ("source", "target"):
        found = [node_of.get(key) for key in zip(graph_of_edge, edges.names(column), strict=True)]
        if None in found:
            row = found.index(None)
            raise InputError(
                f"{edges.at(row, column)}: no node {shown(edges.columns[column][row])} in its graph; mend it, or add "
                f"the node to {nodes.path.name}"
            )
        ends.append(found)
    others = graphs.without("graph")
    rows = [dict(zip(others, row, strict=True)) for row in zip(*others.values(), strict=True)] or [{} for _ in place]
    return NamedGraphs(
        folder.name,
        sizes.tolist(),
        list(zip(*ends, strict=True)),
        [False] * len(graph_of_edge),
        NamedColumns("nodes", nodes.at, nodes.without("graph", "node"), len(order)),
        NamedColumns("edges", edges.at, edges.without("graph", "source", "target"), len(graph_of_edge)),
        GraphTable.of(str(graphs.path), rows, [graphs.at(row) for row in range(len(rows))]),
        list(place),
    )


@dataclass(frozen=True, eq=False)
class _Sheet:
    """A table of values by column; None is missing."""

    path: Path
    columns: Mapping[str, list[Any]]
    lines: Sequence[int]
    word: str = "line"
    """What ``lines`` count: Parquet has rows, from 0."""

    @classmethod
    def read(cls, path: Path) -> "_Sheet":
        if path.suffix == ".parquet":
            columns = _parquet(path)
            rows = len(next(iter(columns.values()), ()))
            return cls(path, columns, range(rows), "row")
        table = read_table(path)
        return cls(path, {name: _typed(table.column(name)) for name in table.columns}, table.lines)

    def at(self, row: int, column: str | None = None) -> str:
        """A place in the file, as messages name it."""
        return f"{self.path}, {self.word} {self.lines[row]}" + ("" if column is None else f", column {shown(column)}")

    def taken(self, rows: list[int]) -> "_Sheet":
        """Only these rows, in this order."""
        columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        return _Sheet(self.path, columns, [self.lines[row] for row in rows], self.word)

    def without(self, *names: str) -> dict[str, list[Any]]:
        return {name: column for name, column in self.columns.items() if name not in names}

    def names(self, column: str) -> list[str]:
        """A column of ids, as texts."""
        if column not in self.columns:
            raise InputError(f"{self.path}: no column {column!r}; there are: {listed(self.columns)}")
        values = self.columns[column]
        if None in values:
            raise InputError(f"{self.at(values.index(None), column)}: the field is empty; fill it in or remove the row")
        return [named(value) for value in values]

    def places(self, column: str) -> dict[str, int]:
        """The row of each id."""
        place: dict[str, int] = {}
        for row, name in enumerate(self.names(column)):
            if place.setdefault(name, row) != row:
                raise InputError(f"{self.at(row, column)}: {shown(name)} is there twice; give each graph one row")
        return place

    def looked_up(self, column: str, place: Mapping[str, int], other: "_Sheet") -> np.ndarray:
        """The row in ``other`` that each id of ``column`` has."""
        found = [place.get(name, -1) for name in self.names(column)]
        if -1 in found:
            row = found.index(-1)
            wrong = named(self.columns[column][row])
            raise InputError(
                f"{self.at(row, column)}: {shown(wrong)} is not in {other.path.name}; mend it or add it there"
            )
        return np.array(found, np.int64)


def _typed(texts: list[str]) -> list[Any]:
    """The values of a column of texts: whole numbers if all are, numbers if all are, or else texts."""
    there = ["" if text.lower() in _MISSING else text for text in texts]
    for read in (int, float):
        try:
            value = {text: read(text) for text in set(there) - {""}}
        except ValueError:
            continue
        return [value.get(text) for text in there]
    return [_number_or_text(text) if text else None for text in there]


def _number_or_text(text: str) -> float | str:
    """So that a number among texts is noticed."""
    try:
        return float(text)
    except ValueError:
        return text


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(
            f"{path}: Parquet needs pyarrow, which is not installed: pip install 'mnagt[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            _check_parquet(path, file.metadata)
            return file.read().to_pydict()
    except InputError:
        raise
    except (ArrowException, OSError, ValueError, OverflowError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: not a readable Parquet file ({reason}); write it again") from None


def _check_parquet(path: Path, told: Any) -> None:
    """Refuse, by what the file says of itself, a table that would not fit."""
    size, cells = path.stat().st_size, told.num_rows * told.num_columns
    check_size(path, sum(told.row_group(i).total_byte_size for i in range(told.num_row_groups)), LARGEST_TOLD)
    if cells > SPARE_CELLS + CELLS_A_BYTE * size:
        raise InputError(f"{path}: {size:,} bytes hold {cells:,} values, nearly all the same; write it as CSV")
