"""Graphs that are in memory already: of networkx or PyTorch Geometric, SMILES, batches."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mnagt.data.molecule_table import targets_of
from mnagt.data.named import TARGET, GraphTable, NamedColumns, NamedGraphs, group_numbers
from mnagt.data.packed import PackedDataset
from mnagt.data.smiles import molecules
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.convert import from_pyg
from mnagt.tasks import Task, Unasked

_KINDS = "SMILES, graphs of networkx, `Data` of PyTorch Geometric, a GraphBatch or a PackedDataset"


def from_graphs(
    graphs: Any,
    targets: Sequence[Any] | None = None,
    *,
    task: str | Task = "auto",
    groups: Sequence[Any] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    name: str = "these graphs",
) -> PackedDataset:
    """A data set of SMILES, of graphs of networkx or PyTorch Geometric, or of a batch.

    All attributes of networkx's nodes and edges are read, as from a file of one's own, or only those ``columns`` that a
    model reads. ``targets`` has a value, or a row of values, for each graph, and ``task`` says what is asked, if that
    cannot be told from them; ``groups`` are for a split by groups. What graphs carry as targets themselves is ignored.
    """
    dataset = _packed(graphs, columns, name)
    if targets is not None:
        rows = _rows(TARGET, targets, len(dataset), "targets")
        task, values, has_target = targets_of(rows, rows.named_targets(None, None), task)
        for row in np.flatnonzero(~has_target).tolist():
            raise InputError(f"{rows.at(row)}: nothing there to learn; leave the graph out")
        dataset = replace(dataset, task=task, targets=values)
    if groups is not None:
        dataset = replace(dataset, groups=group_numbers(_rows("group", groups, len(dataset), "groups"), "group"))
    return dataset


def _rows(name: str, values: Sequence[Any], graphs: int, label: str) -> GraphTable:
    if len(values) != graphs:
        raise InputError(f"{len(values)} {label} for {graphs} graphs; give each one")
    rows = [{name: _plain(value)} for value in values]
    return GraphTable.of(label, rows, [f"{label}[{row}]" for row in range(len(rows))])


def _packed(graphs: Any, columns: Mapping[str, Sequence[str]] | None, name: str) -> PackedDataset:
    if isinstance(graphs, PackedDataset):
        return graphs
    if isinstance(graphs, GraphBatch):
        return _of_batch(graphs, name)
    if isinstance(graphs, str) or not isinstance(graphs, Iterable):
        raise InputError(f"expected a list of {_KINDS}, got {type(graphs).__name__}")
    networkx_graph, pyg_graph = _known("networkx", "Graph"), _known("torch_geometric.data", "Data")
    graphs = list(graphs)
    for kind, read in ((str, _of_smiles), (networkx_graph, _of_networkx), (pyg_graph, _of_pyg)):
        if kind is not None and graphs and isinstance(graphs[0], kind):
            for number, graph in enumerate(graphs):
                if not isinstance(graph, kind):
                    told = f"{type(graph).__name__}, and graph 0 a {type(graphs[0]).__name__}"
                    raise InputError(f"graph {number} is a {told}; give graphs of one kind")
            return read(graphs, columns, name)
    raise InputError(f"expected {_KINDS}, got {f'a {type(graphs[0]).__name__}' if graphs else 'no graphs'}")


def _known(module: str, name: str) -> type | None:
    """A class, if anybody has imported it: else there can be no graph of it."""
    return getattr(sys.modules.get(module), name, None)


def _of_batch(batch: GraphBatch, name: str) -> PackedDataset:
    return PackedDataset.from_batch(name, Unasked(), replace(batch, targets=torch.zeros(batch.num_graphs, 0)))


def _of_pyg(graphs: list[Any], columns: Any, name: str) -> PackedDataset:
    return _of_batch(from_pyg(graphs), name)


def _of_smiles(smiles: list[str], columns: Any, name: str) -> PackedDataset:
    read = molecules(smiles, name=name)
    for row in read.refused:
        raise InputError(f"molecule {row.row}, {row.smiles[:60]!r}: {row.reason}; mend it or leave it out")
    return read.graphs


def _of_networkx(graphs: list[Any], columns: Mapping[str, Sequence[str]] | None, name: str) -> PackedDataset:
    sizes, ends, is_directed, places = [], [], [], {"nodes": [], "edges": []}
    nodes = NamedColumns("nodes", lambda row, column: f"{places['nodes'][row]}, attribute {column!r}")
    edges = NamedColumns("edges", lambda row, column: f"{places['edges'][row]}, attribute {column!r}")
    for number, graph in enumerate(graphs):
        if len(graph) == 0:
            raise InputError(f"graph {number} has no nodes; leave it out")
        place = {node: v for v, node in enumerate(graph, start=nodes.rows)}
        for node, attributes in graph.nodes(data=True):
            places["nodes"].append(f"graph {number}, node {node!r}")
            nodes.add({str(key): _plain(value) for key, value in attributes.items()})
        for u, v, attributes in graph.edges(data=True):
            places["edges"].append(f"graph {number}, edge {(u, v)!r}")
            ends.append((place[u], place[v]))
            edges.add({str(key): _plain(value) for key, value in attributes.items()})
            is_directed.append(graph.is_directed())
        sizes.append(len(place))
    table = GraphTable.of(name, [{}] * len(sizes), [f"graph {number}" for number in range(len(sizes))])
    told = NamedGraphs(name, sizes, ends, is_directed, nodes, edges, table, range(len(sizes)))
    return told.packed(task=Unasked(), columns=columns)


def _plain(value: Any) -> Any:
    """Numbers and lists instead of NumPy's and PyTorch's."""
    return value.tolist() if hasattr(value, "tolist") else value
