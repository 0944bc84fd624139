"""Data sets from graphs in memory: networkx, PyTorch Geometric, SMILES, batches."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.attributed_graphs import TARGET, AttributedGraphs, GraphTable, encode_groups
from mnagt.data.readers.smiles import read_smiles
from mnagt.data.readers.text_table import read_targets
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.convert import from_pyg
from mnagt.tasks import Task, Unlabelled

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

    Args:
        graphs: A list of graphs of one kind. Targets that they carry themselves are ignored.
        targets: A value, or a row of values, for each graph.
        task: As for ``read_molecules``; 'auto' guesses it from ``targets``.
        groups: A value for each graph, for a group split.
        columns: The attributes of networkx's nodes and edges to read, by kind ('node_labels', ...); None for all.
        name: The name of the data set.

    >>> import networkx as nx
    >>> from mnagt import from_graphs
    >>> dataset = from_graphs([nx.path_graph(4), nx.cycle_graph(5)], ["path", "ring"])
    >>> len(dataset), dataset.task.classes
    (2, ('path', 'ring'))
    """
    dataset = _pack(graphs, columns, name)
    if targets is not None:
        table = _to_table(TARGET, targets, len(dataset), "targets")
        task, values, has_target = read_targets(table, table.find_targets(None, None), task)
        for row in np.flatnonzero(~has_target).tolist():
            raise InputError(f"{table.locate(row)}: no target; leave the graph out")
        dataset = replace(dataset, task=task, targets=values)
    if groups is not None:
        table = _to_table("group", groups, len(dataset), "groups")
        dataset = replace(dataset, groups=encode_groups(table, "group"))
    return dataset


def _to_table(name: str, values: Sequence[Any], graphs: int, label: str) -> GraphTable:
    if len(values) != graphs:
        raise InputError(f"{len(values)} {label} for {graphs} graphs; give each one")
    rows = [{name: _to_python(value)} for value in values]
    return GraphTable.from_rows(label, rows, [f"{label}[{row}]" for row in range(len(rows))])


def _pack(graphs: Any, columns: Mapping[str, Sequence[str]] | None, name: str) -> PackedDataset:
    if isinstance(graphs, PackedDataset):
        return graphs
    if not isinstance(graphs, GraphBatch):
        if isinstance(graphs, str) or not isinstance(graphs, Iterable):
            raise InputError(f"expected a list of {_KINDS}, got {type(graphs).__name__}")
        graphs = list(graphs)
        kind = _common_kind(graphs)
        if kind == "SMILES":
            return _pack_smiles(graphs, name)
        if kind == "networkx":
            return _pack_networkx(graphs, columns, name)
        graphs = from_pyg(graphs)
    return PackedDataset.from_batch(name, Unlabelled(), replace(graphs, targets=torch.zeros(graphs.num_graphs, 0)))


def _common_kind(graphs: list[Any]) -> str:
    """Which of SMILES, networkx and PyTorch Geometric all graphs are of; a library not imported has none."""
    libraries = {"networkx": ("networkx", "Graph"), "PyTorch Geometric": ("torch_geometric.data", "Data")}
    types = {kind: getattr(sys.modules.get(module), name, None) for kind, (module, name) in libraries.items()}
    for kind, its_type in {"SMILES": str, **types}.items():
        if its_type is not None and graphs and isinstance(graphs[0], its_type):
            for number, graph in enumerate(graphs):
                if not isinstance(graph, its_type):
                    raise InputError(
                        f"graph {number} is a {type(graph).__name__}, and graph 0 a {type(graphs[0]).__name__}; give "
                        "graphs of one kind"
                    )
            return kind
    raise InputError(f"expected {_KINDS}, got {f'a {type(graphs[0]).__name__}' if graphs else 'no graphs'}")


def _pack_smiles(smiles: list[str], name: str) -> PackedDataset:
    molecules = read_smiles(smiles, name=name)
    for row in molecules.refused:
        raise InputError(f"molecule {row.row}, {row.smiles[:60]!r}: {row.reason}; fix it or leave it out")
    return molecules.graphs


def _pack_networkx(graphs: list[Any], columns: Mapping[str, Sequence[str]] | None, name: str) -> PackedDataset:
    found = AttributedGraphs.empty(name, name, lambda location, attribute: f"{location}, attribute {attribute!r}")
    for number, graph in enumerate(graphs):
        if len(graph) == 0:
            raise InputError(f"graph {number} has no nodes; leave it out")
        index = {node: v for v, node in enumerate(graph, start=found.first_node)}
        for node, attributes in graph.nodes(data=True):
            attributes = {str(key): _to_python(value) for key, value in attributes.items()}
            found.add_node(attributes, f"graph {number}, node {node!r}")
        for u, v, attributes in graph.edges(data=True):
            attributes = {str(key): _to_python(value) for key, value in attributes.items()}
            where = f"graph {number}, edge {(u, v)!r}"
            found.add_edge((index[u], index[v]), attributes, where, is_directed=graph.is_directed())
        found.end_graph({}, f"graph {number}", number)
    return found.pack(task=Unlabelled(), columns=columns)


def _to_python(value: Any) -> Any:
    """NumPy's and PyTorch's values as Python's numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value
