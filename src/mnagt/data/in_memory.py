"""Data sets from graphs in memory: networkx, PyTorch Geometric, SMILES, batches."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.attributed_graphs import TARGET, AttributedGraphs, GraphTable
from mnagt.data.readers.list_targets import count_items, with_list_targets
from mnagt.data.readers.pyg_graphs import ReadGraphs, read_pyg
from mnagt.data.readers.smiles import read_smiles
from mnagt.data.readers.split_columns import encode_groups
from mnagt.data.readers.text_table import find_level, read_targets
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.pyg_fields import log_once
from mnagt.tasks import SingleLabel, Task, Unlabelled
from mnagt.tasks.base import Level

_KINDS = "SMILES (or tuples of them), graphs of networkx, `Data` of PyTorch Geometric, a GraphBatch or a PackedDataset"
_DEFAULT_NAME = "these graphs"


def from_graphs(
    graphs: Any,
    targets: Sequence[Any] | Tensor | str | None = None,
    *,
    task: str | Task = "auto",
    groups: Sequence[Any] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    name: str | None = None,
) -> PackedDataset:
    """A data set of graphs of networkx or PyTorch Geometric, of SMILES, or of a batch.

    Args:
        graphs: A graph, or a list of graphs of one kind; also a data set or ``DataLoader`` of PyTorch Geometric.
            Its one-hot columns are read as categories, as in the files of the TU collection. Self loops are dropped,
            and of parallel edges the first is kept. A tuple of SMILES is a row of several components.
        targets: A value, or a row of values, for each graph; or the name of the attribute of graphs that holds it.
            By default their ``y``, if they have one.
        task: As for ``read_molecules``; 'auto' guesses it from ``targets``. Integers in ``y`` of PyTorch Geometric
            are classes. 'node-regression' takes a list of numbers for each graph, one for each node (atom);
            'edge-regression', of SMILES, one for each bond in the order of RDKit's ``GetBonds()``.
        groups: A value for each graph, for a group split.
        columns: The attributes of nodes and edges to read, by kind ('node_labels', ...); None for all. Those of
            PyTorch Geometric are 'x/0' (a column), 'x/0:7' (a one-hot vector) or 'x' (all columns).
        name: The name of the data set; by default that of PyTorch Geometric's.

    A notice says what was recognised and which fields are not read.

    >>> import networkx as nx
    >>> from mnagt import from_graphs
    >>> dataset = from_graphs([nx.path_graph(4), nx.cycle_graph(5)], ["path", "ring"])
    >>> len(dataset), dataset.task.classes
    (2, ('path', 'ring'))
    """
    target = targets if isinstance(targets, str) else TARGET if targets is None else None
    read = _read(graphs, name, target=target, columns=columns, level=find_level(task))
    dataset, values = read.dataset, read.targets if target else targets
    if isinstance(targets, str) and values is None:
        raise InputError(f"the graphs have no attribute {targets!r} to take targets from; name another one")
    if values is not None:
        dataset = _add_targets(dataset, values, target, task, read.notes, is_optional=targets is None)
    if groups is not None:
        table = _to_table("group", groups, len(dataset), "groups")
        dataset = replace(dataset, groups=encode_groups(table, "group"))
    if read.notes:
        log_once(f"{dataset.name}: {'; '.join(read.notes)}")
    return dataset


def _add_targets(
    dataset: PackedDataset,
    values: Sequence[Any] | Tensor,
    target: str | None,
    task: str | Task,
    notes: list[str],
    is_optional: bool,
) -> PackedDataset:
    """The data set with these targets, which are the attribute ``target`` of graphs, or were given beside them."""
    name, level = target or TARGET, find_level(task)
    if level != "graph":
        values = _list_targets(values, count_items(dataset, level).tolist())
    elif isinstance(values, Tensor) and values[:1].numel() == 1:
        values = values.flatten()
    is_class = target and isinstance(values, Tensor) and values.dim() == 1 and not values.is_floating_point()
    table = _to_table(name, values, len(dataset), target or "targets")
    if is_optional and task == "auto" and all(len(set(column)) < 2 for column in table.columns.values()):
        notes.append(f"{target} is the same in all graphs, and no target")
        return dataset
    kind = SingleLabel.kind if task == "auto" and is_class else task
    names = table.find_targets([name], None)
    task, targets, has_target = read_targets(table, names, kind, may_be_lists=level != "graph")
    for row in np.flatnonzero(~has_target).tolist():
        raise InputError(f"{table.locate(row)}: no target; leave the graph out")
    notes.extend([f"{target} is the target, {task.describe()}"] if target and notes else [])
    dataset = replace(dataset, task=task)
    return replace(dataset, targets=targets) if level == "graph" else with_list_targets(dataset, table, names)


def _list_targets(values: Sequence[Any] | Tensor, sizes: list[int]) -> list[str]:
    """The numbers of each graph's nodes or edges as a text: a list for each graph, or a tensor with those of all."""
    if isinstance(values, Tensor) and len(values) == sum(sizes):
        if values.numel() > len(values):
            raise InputError(f"targets have the shape {tuple(values.shape)}; give a number for each node or edge")
        values = values.flatten().split(sizes)
    lists = [_to_python(of_graph) for of_graph in values]
    return ["" if of_graph is None else str(of_graph) for of_graph in lists]


def read_graphs(
    graphs: Any,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    features: Features | None = None,
    vocabularies: Mapping[str, Sequence[str]] | None = None,
) -> PackedDataset:
    """The graphs as a data set without targets, with the ``columns`` that a model reads.

    ``features`` and ``vocabularies`` are those of a model that has no names for its columns.
    """
    if isinstance(graphs, PackedDataset):
        return graphs
    return _read(graphs, None, columns=columns or None, features=features, vocabularies=vocabularies).dataset


def _to_table(name: str, values: Sequence[Any] | Tensor, graphs: int, label: str) -> GraphTable:
    if len(values) != graphs:
        raise InputError(f"{len(values)} {label} for {graphs} graphs; give each one")
    rows = [{name: _to_python(value)} for value in values]
    return GraphTable.from_rows(label, rows, [f"{label}[{row}]" for row in range(len(rows))])


def _read(
    graphs: Any,
    name: str | None,
    *,
    target: str | None = None,
    columns: Any = None,
    level: Level = "graph",
    **of_model: Any,
) -> ReadGraphs:
    """``target`` is the attribute with the targets that graphs carry, or their nodes; None to read none."""
    if isinstance(graphs, PackedDataset):
        return ReadGraphs(graphs if name is None else replace(graphs, name=name), None, [])
    title = name or _DEFAULT_NAME
    if isinstance(graphs, GraphBatch):
        bare, targets = replace(graphs, targets=torch.zeros(graphs.num_graphs, 0)), graphs.targets
        has_targets = target == TARGET and targets is not None and targets.numel() > 0
        return ReadGraphs(PackedDataset.from_batch(title, Unlabelled(), bare), targets if has_targets else None, [])
    if isinstance(graphs, str) or (not hasattr(graphs, "__getitem__") and not isinstance(graphs, Iterable)):
        raise InputError(f"expected a list of {_KINDS}, got {type(graphs).__name__}")
    of_dataset = getattr(graphs, "name", None)
    items: list[Any] = [graphs] if _find_kind(graphs) else list(graphs)
    match _common_kind(items):
        case "SMILES":
            return ReadGraphs(_pack_smiles(items, title), None, [])
        case "networkx":
            values = None if target is None else _find_targets(items, target)
            return ReadGraphs(_pack_networkx(items, columns, title), values, [])
        case _:
            title = name or (of_dataset if isinstance(of_dataset, str) and of_dataset else _DEFAULT_NAME)
            return read_pyg(items, title, target=target, of_nodes=level == "node", columns=columns, **of_model)


def _find_targets(graphs: list[Any], target: str) -> list[Any] | None:
    """The attribute ``target`` of networkx graphs; None where none has it."""
    missing = [number for number, graph in enumerate(graphs) if graph.graph.get(target) is None]
    if len(missing) == len(graphs):
        return None
    if missing:
        raise InputError(f"graph {missing[0]} has no {target}, and others do; give it to all of them or to none")
    return [graph.graph[target] for graph in graphs]


def _find_kind(graph: Any) -> str | None:
    """'networkx' or 'PyTorch Geometric' if it is a graph of theirs; a library that is not imported has none."""
    libraries = {
        "networkx": ("networkx", ["Graph"]),
        "PyTorch Geometric": ("torch_geometric.data", ["Data", "HeteroData"]),
    }
    for kind, (module, names) in libraries.items():
        if module in sys.modules and isinstance(graph, tuple(getattr(sys.modules[module], each) for each in names)):
            return kind
    return None


def _common_kind(graphs: list[Any]) -> str:
    """Which of SMILES, networkx and PyTorch Geometric all graphs are of."""
    kinds = ["SMILES" if _is_smiles(graph) else _find_kind(graph) for graph in graphs]
    if not kinds or kinds[0] is None:
        raise InputError(f"expected {_KINDS}, got {f'a {type(graphs[0]).__name__}' if graphs else 'no graphs'}")
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise InputError(
                f"graph {number} is a {type(graphs[number]).__name__}, and graph 0 a {type(graphs[0]).__name__}; give "
                "graphs of one kind"
            )
    return kinds[0]


def _is_smiles(graph: Any) -> bool:
    """Whether it is a SMILES, or a row of several components."""
    return isinstance(graph, str) or (
        isinstance(graph, list | tuple) and bool(graph) and all(isinstance(text, str) for text in graph)
    )


def _pack_smiles(smiles: list[str], name: str) -> PackedDataset:
    molecules = read_smiles(smiles, name=name)
    for row in molecules.refused:
        raise InputError(f"molecule {row.row}, {row.smiles[:60]!r}: {row.explain()}; fix it or leave it out")
    return molecules.graphs


def _pack_networkx(graphs: list[Any], columns: Mapping[str, Sequence[str]] | None, name: str) -> PackedDataset:
    collected = AttributedGraphs.empty(name, name, lambda location, attribute: f"{location}, attribute {attribute!r}")
    for number, graph in enumerate(graphs):
        if len(graph) == 0:
            raise InputError(f"graph {number} has no nodes; leave it out")
        index = {node: v for v, node in enumerate(graph, start=collected.first_node)}
        for node, attributes in graph.nodes(data=True):
            attributes = {str(key): _to_python(value) for key, value in attributes.items()}
            collected.add_node(attributes, f"graph {number}, node {node!r}")
        for u, v, attributes in graph.edges(data=True):
            attributes = {str(key): _to_python(value) for key, value in attributes.items()}
            where = f"graph {number}, edge {(u, v)!r}"
            collected.add_edge((index[u], index[v]), attributes, where, is_directed=graph.is_directed())
        collected.end_graph({}, f"graph {number}", number)
    return collected.pack(task=Unlabelled(), columns=columns)


def _to_python(value: Any) -> Any:
    """NumPy's and PyTorch's values as Python's numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value
