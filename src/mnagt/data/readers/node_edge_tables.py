"""Graphs from three tables in a folder, ``graphs``, ``nodes`` and ``edges``, each as CSV, TSV or Parquet.

Rows may come in any order. Graphs are undirected, in the order of their table; docs/own-data.md lists the columns.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mnagt.data.archives import MAX_PARSED_BYTES
from mnagt.data.readers.attribute_columns import AttributeColumns, category_name
from mnagt.data.readers.attributed_graphs import AttributedGraphs
from mnagt.data.readers.text_table import Table, read_table
from mnagt.errors import InputError, explain_missing, join_names, quote
from mnagt.files import check_file_size
from mnagt.tasks.target_column import MISSING

PARTS = ("graphs", "nodes", "edges")
SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")

MAX_CELLS, MAX_CELLS_PER_BYTE = 1 << 24, 8
"""Values of a Parquet table: so many, and so many more for each byte of the file, since repeated ones take no space."""


def find_table_files(folder: Path) -> list[Path]:
    """The paths of the three tables; empty unless all are there."""
    files_of_parts = [[p for suffix in SUFFIXES if (p := folder / f"{part}{suffix}").is_file()] for part in PARTS]
    for part, files in zip(PARTS, files_of_parts, strict=True):
        if len(files) > 1 and all(files_of_parts):
            names = " and ".join(p.name for p in files)
            raise InputError(f"{folder}: {names} are both there, and one table of {part} is read; remove the other")
    return [files[0] for files in files_of_parts] if all(files_of_parts) else []


def read_node_edge_tables(folder: Path) -> AttributedGraphs:
    """The graphs in a folder of three tables."""
    graphs, nodes, edges = map(_read_typed_table, find_table_files(folder))
    nodes_file = Path(nodes.label).name
    graph_index = _index_ids(graphs, "graph")
    graph_of_node = _look_up(nodes, "graph", graph_index, graphs)
    order = np.argsort(graph_of_node, kind="stable")
    sizes = np.bincount(graph_of_node, minlength=len(graph_index))
    for row in np.flatnonzero(sizes == 0).tolist():
        raise InputError(f"{graphs.locate(row, 'graph')}: the graph has no nodes in {nodes_file}; remove it")
    nodes, graph_of_node = nodes.select(order.tolist()), graph_of_node[order]
    if "node" in nodes.columns:
        node_ids = _read_ids(nodes, "node")
    else:
        first = np.cumsum(sizes) - sizes
        node_ids = [str(i) for i in (np.arange(len(order)) - first[graph_of_node]).tolist()]
    node_index: dict[tuple[int, str], int] = {}
    for row, key in enumerate(zip(graph_of_node.tolist(), node_ids, strict=True)):
        if node_index.setdefault(key, row) != row:
            raise InputError(
                f"{nodes.locate(row, 'node')}: node {quote(key[1])} is there twice in its graph; ids are distinct"
            )
    graph_of_edge = _look_up(edges, "graph", graph_index, graphs).tolist()
    ends = []
    for column in ("source", "target"):
        indices = [node_index.get(key) for key in zip(graph_of_edge, _read_ids(edges, column), strict=True)]
        if None in indices:
            row = indices.index(None)
            raise InputError(
                f"{edges.locate(row, column)}: no node {quote(edges.columns[column][row])} in its graph; fix it, "
                f"or add the node to {nodes_file}"
            )
        ends.append(indices)
    others = _without(graphs, "graph")
    rows: list[Mapping[str, Any]] = [
        {name: column[row] for name, column in others.items()} for row in range(len(graphs))
    ]
    node_values, edge_values = _without(nodes, "graph", "node"), _without(edges, "graph", "source", "target")
    return AttributedGraphs(
        folder.name,
        graphs.label,
        AttributeColumns("nodes", nodes.label, nodes.locate, node_values, len(nodes)),
        AttributeColumns("edges", edges.label, edges.locate, edge_values, len(edges)),
        node_ends=np.cumsum(sizes).tolist(),
        ends=list(zip(*ends, strict=True)),
        is_directed=[False] * len(edges),
        rows=rows,
        locations=[graphs.locate(row) for row in range(len(rows))],
        ids=list(graph_index),
    )


def _read_typed_table(path: Path) -> Table:
    if path.suffix == ".parquet":
        columns = _read_parquet(path)
        return Table(str(path), columns, range(len(next(iter(columns.values()), ()))), "row")
    table = read_table(path)
    return replace(table, columns={name: _parse_values(table.column(name)) for name in table.columns})


def _without(table: Table, *names: str) -> dict[str, list[Any]]:
    return {name: list(column) for name, column in table.columns.items() if name not in names}


def _read_ids(table: Table, column: str) -> list[str]:
    if column not in table.columns:
        raise InputError(f"{table.label}: no column {column!r}; there are: {join_names(table.columns)}")
    values = table.columns[column]
    if None in values:
        where = table.locate(values.index(None), column)
        raise InputError(f"{where}: the field is empty; fill it in or remove the row")
    return [category_name(value) for value in values]


def _index_ids(table: Table, column: str) -> dict[str, int]:
    """The row of each id."""
    index: dict[str, int] = {}
    for row, name in enumerate(_read_ids(table, column)):
        if index.setdefault(name, row) != row:
            raise InputError(f"{table.locate(row, column)}: {quote(name)} is there twice; give each graph one row")
    return index


def _look_up(table: Table, column: str, index: Mapping[str, int], other: Table) -> np.ndarray:
    """The row of each id of ``column`` in ``other``, whose ids ``index`` has."""
    ids = _read_ids(table, column)
    rows = [index.get(name, -1) for name in ids]
    if -1 in rows:
        row = rows.index(-1)
        name = Path(other.label).name
        raise InputError(f"{table.locate(row, column)}: {quote(ids[row])} is not in {name}; fix it or add it there")
    return np.array(rows, np.int64)


def _parse_values(texts: list[str]) -> list[Any]:
    """A whole number, a number, a text or None for each text of a column."""
    values: dict[str, Any] = dict.fromkeys(texts)
    for text in values:
        if text.lower() not in MISSING:
            values[text] = text
            for parse in (float, int):
                with suppress(ValueError):
                    values[text] = parse(text)
    return [values[text] for text in texts]


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    with explain_missing(f"{path}: Parquet", "parquet"):
        from pyarrow import ArrowException, parquet
    try:
        with parquet.ParquetFile(path) as file:
            _check_parquet(path, file.metadata)
            return file.read().to_pydict()
    except InputError:
        raise
    except (ArrowException, OSError, ValueError, OverflowError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: not a readable Parquet file ({reason}); write it again") from None


def _check_parquet(path: Path, metadata: Any) -> None:
    """Refuse a table that would not fit into memory, by its metadata."""
    size, cells = path.stat().st_size, metadata.num_rows * metadata.num_columns
    check_file_size(
        path, sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), MAX_PARSED_BYTES
    )
    if cells > MAX_CELLS + MAX_CELLS_PER_BYTE * size:
        raise InputError(f"{path}: {size:,} bytes hold {cells:,} values, nearly all the same; write it as CSV")
