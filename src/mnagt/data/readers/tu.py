"""Reads the text layout of the TU collection (Morris et al., 2020), as docs/data.md describes it.

The categories of a column of labels are its values in order, and the values are kept as names.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.attribute_columns import EncodedColumns, pack_keys
from mnagt.data.readers.dataset_files import DatasetFiles, find_tu_files
from mnagt.data.readers.edges import add_reverse_edges, undirected_keys
from mnagt.data.readers.number_tables import parse_floats
from mnagt.errors import InputError
from mnagt.tasks import Regression, SingleLabel, Task, Unlabelled

VERSION = "tu-2"
"""Changes whenever the same files would be read differently."""


def read_tu(path: Path) -> PackedDataset:
    """The data set in ``path``: a zip, or a folder that holds the text files, at its top or in ``raw/``."""
    files = find_tu_files(Path(path))
    graph_of_node, graphs_from = _graph_of_node(files)
    sizes = np.bincount(graph_of_node)
    task, targets = _targets(files, len(sizes))
    nodes = _read_columns(files, "node", len(graph_of_node))

    edges = EncodedColumns()
    if "edge_labels" in files or "edge_attributes" in files:
        ends = _edges(files, graph_of_node, graphs_from)
        edges = _read_columns(files, "edge", len(ends))
        keys, line = add_reverse_edges(files.name, ends)
        edges = edges.select(line)
    else:
        keys = undirected_keys(files.name, _edges(files, graph_of_node, graphs_from))
    return pack_keys(files.name, sizes, keys, nodes, edges, task=task, targets=targets)


def _graph_of_node(files: DatasetFiles) -> tuple[NDArray[np.int32], int]:
    """The graph of each node, from 0, and the number of the first graph in the file."""
    ids = files.read_integers("graph_indicator", columns=1)[:, 0]
    base = min(int(ids[0]), 1)
    where = files.label("graph_indicator")
    if base < 0:
        raise InputError(f"{where}, line 1: graph {base} is below 0; graphs count from 0 or 1")
    step = np.diff(ids, prepend=base)
    if (step < 0).any():
        at = int((step < 0).argmax())
        raise InputError(
            f"{where}, line {at + 1}: graph {ids[at]} comes after graph {ids[at - 1]}; sort the nodes by graph"
        )
    is_gap = step > 1
    is_gap[0] = ids[0] > base
    if is_gap.any():
        at = int(is_gap.argmax())
        missing = base if at == 0 else int(ids[at - 1]) + 1
        raise InputError(f"{where}, line {at + 1}: graph {missing} has no nodes; leave it out and renumber the others")
    return (ids - base).astype(np.int32), base


def _targets(files: DatasetFiles, graphs: int) -> tuple[Task, Tensor]:
    """Classes from ``graph_labels``, or else numbers from ``graph_attributes``, or else nothing."""
    if "graph_labels" in files:
        labels = files.read_integers("graph_labels", columns=1)[:, 0]
        files.check_count("graph_labels", len(labels), graphs, "graph")
        values, index = np.unique(labels, return_inverse=True)
        if len(values) < 2:
            raise InputError(
                f"{files.label('graph_labels')}: every graph is of class {values[0]}; give at least 2 classes"
            )
        return SingleLabel(tuple(map(str, values.tolist()))), torch.from_numpy(index.astype(np.int64))
    if "graph_attributes" in files:
        values = _read_floats(files, "graph_attributes", graphs, "graph")
        names = tuple(f"target_{i}" for i in range(values.shape[1]))
        return Regression(names), values
    return Unlabelled(), torch.zeros(graphs, 0)


def _edges(files: DatasetFiles, graph_of_node: NDArray[np.int32], graphs_from: int) -> NDArray[np.int32]:
    """(source, destination) of each line, from 0."""
    ends = files.read_integers("A", columns=2)
    nodes = len(graph_of_node)
    base = 0 if (ends == 0).any() or (graphs_from == 0 and int(ends.max()) < nodes) else 1
    if int(ends.min()) < base or int(ends.max()) >= nodes + base:
        at = int(((ends < base) | (ends >= nodes + base)).any(axis=1).argmax())
        raise InputError(
            f"{files.label('A')}, line {at + 1}: edge {ends[at, 0]}, {ends[at, 1]} names a missing node;"
            f" graph_indicator has nodes {base} to {nodes - 1 + base}"
        )
    ends = ends.astype(np.int32, copy=False)
    ends -= base
    is_across = graph_of_node[ends[:, 0]] != graph_of_node[ends[:, 1]]
    if is_across.any():
        at = int(is_across.argmax())
        u, v = ends[at].tolist()
        raise InputError(
            f"{files.label('A')}, line {at + 1}: edge {u + base}, {v + base} joins two graphs, number"
            f" {graph_of_node[u] + 1} and {graph_of_node[v] + 1}; remove it or correct graph_indicator"
        )
    return ends


def _read_columns(files: DatasetFiles, kind: str, count: int) -> EncodedColumns:
    """The columns of ``kind``, 'node' or 'edge', of which there are ``count``."""
    labels, values, label_counts, vocabularies = None, None, {}, {}
    field = f"{kind}_labels"
    if field in files:
        raw = files.read_integers(field)
        files.check_count(field, len(raw), count, kind)
        labels = torch.empty(raw.shape, dtype=torch.int32)
        for column in range(raw.shape[1]):
            names, index = np.unique(raw[:, column], return_inverse=True)
            labels[:, column] = torch.from_numpy(index)
            vocabularies[f"{field}/{column}"] = tuple(map(str, names.tolist()))
        label_counts[field] = tuple(len(names) for names in vocabularies.values())
    if f"{kind}_attributes" in files:
        values = _read_floats(files, f"{kind}_attributes", count, kind)
    return EncodedColumns(labels, values, label_counts, vocabularies)


def _read_floats(files: DatasetFiles, field: str, count: int, what: str) -> Tensor:
    values = parse_floats(files.read_blocks(field), files.label(field))
    files.check_count(field, len(values), count, what)
    return torch.from_numpy(values)
