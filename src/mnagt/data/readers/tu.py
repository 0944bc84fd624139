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
from mnagt.data.readers.number_tables import FLOATS
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
    field = "graph_indicator"
    ids = files.read_numbers(field, columns=1)[:, 0]
    base = min(int(ids[0]), 1)
    if base < 0:
        raise InputError(f"{files.label(field)}, line 1: graph {base} is below 0; graphs count from 0 or 1")
    step = np.diff(ids, prepend=base)
    files.refuse_line(
        field, step < 0, lambda at: f"graph {ids[at]} comes after graph {ids[at - 1]}; sort the nodes by graph"
    )
    is_gap = step > 1
    is_gap[0] = ids[0] > base
    before = np.concatenate([[base - 1], ids[:-1]]) if is_gap.any() else ids
    files.refuse_line(
        field, is_gap, lambda at: f"graph {before[at] + 1} has no nodes; leave it out and renumber the others"
    )
    return (ids - base).astype(np.int32), base


def _targets(files: DatasetFiles, graphs: int) -> tuple[Task, Tensor]:
    """Classes from ``graph_labels``, or else numbers from ``graph_attributes``, or else nothing."""
    if "graph_labels" in files:
        labels = files.read_numbers("graph_labels", columns=1, rows=(graphs, "graph"))[:, 0]
        values, index = np.unique(labels, return_inverse=True)
        if len(values) < 2:
            raise InputError(
                f"{files.label('graph_labels')}: every graph is of class {values[0]}; give at least 2 classes"
            )
        return SingleLabel(tuple(map(str, values.tolist()))), torch.from_numpy(index.astype(np.int64))
    if "graph_attributes" in files:
        values = torch.from_numpy(files.read_numbers("graph_attributes", FLOATS, rows=(graphs, "graph")))
        names = tuple(f"target_{i}" for i in range(values.shape[1]))
        return Regression(names), values
    return Unlabelled(), torch.zeros(graphs, 0)


def _edges(files: DatasetFiles, graph_of_node: NDArray[np.int32], graphs_from: int) -> NDArray[np.int32]:
    """(source, destination) of each line, from 0."""
    ends = files.read_numbers("A", columns=2)
    nodes = len(graph_of_node)
    base = 0 if (ends == 0).any() or (graphs_from == 0 and int(ends.max()) < nodes) else 1
    if int(ends.min()) < base or int(ends.max()) >= nodes + base:
        u, v = ends.T
        files.refuse_line(
            "A",
            (u < base) | (u >= nodes + base) | (v < base) | (v >= nodes + base),
            lambda at: (
                f"edge {u[at]}, {v[at]} names a missing node; graph_indicator has nodes {base} to {nodes - 1 + base}"
            ),
        )
    ends = ends.astype(np.int32, copy=False)
    ends -= base
    graphs = graph_of_node[ends]
    files.refuse_line(
        "A",
        graphs[:, 0] != graphs[:, 1],
        lambda at: (
            f"edge {ends[at, 0] + base}, {ends[at, 1] + base} joins two graphs, number"
            f" {graphs[at, 0] + 1} and {graphs[at, 1] + 1}; remove it or correct graph_indicator"
        ),
    )
    return ends


def _read_columns(files: DatasetFiles, kind: str, count: int) -> EncodedColumns:
    """The columns of ``kind``, 'node' or 'edge', of which there are ``count``."""
    tensors, vocabularies = {}, {}
    field = f"{kind}_labels"
    if field in files:
        raw = files.read_numbers(field, rows=(count, kind))
        tensors[field] = torch.empty(raw.shape, dtype=torch.int32)
        for column in range(raw.shape[1]):
            names, index = np.unique(raw[:, column], return_inverse=True)
            tensors[field][:, column] = torch.from_numpy(index)
            vocabularies[f"{field}/{column}"] = tuple(map(str, names.tolist()))
    if f"{kind}_attributes" in files:
        values = files.read_numbers(f"{kind}_attributes", FLOATS, rows=(count, kind))
        tensors[f"{kind}_values"] = torch.from_numpy(values)
    return EncodedColumns(tensors, vocabularies)
