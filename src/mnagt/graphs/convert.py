"""Batches to and from the graphs of PyTorch Geometric and networkx."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.edges import find_simple_edges
from mnagt.graphs.pyg_fields import log_once, read_fields

if TYPE_CHECKING:
    import networkx
    import torch_geometric.data


def from_pyg(
    data: "torch_geometric.data.Data | torch_geometric.data.Batch | Sequence[torch_geometric.data.Data]",
) -> GraphBatch:
    """Convert a graph, a batch or a list of graphs of PyTorch Geometric to a batch.

    Integer ``x`` and ``edge_attr`` become labels, floating ones values; ``y``, one row a graph, becomes the targets.
    Where both kinds exist, ``node_labels`` and ``edge_labels`` hold the integers, as ``to_pyg`` writes them. Edges are
    those of ``edge_index``, or else of ``adj_t``, without self loops; of parallel edges the first is kept. A notice
    names the fields that are not read. (``from_graphs`` also recognises one-hot columns.)

    >>> import torch
    >>> from mnagt import from_pyg
    >>> from torch_geometric.data import Data
    >>> from_pyg(Data(x=torch.zeros(3, 5), edge_index=torch.tensor([[0, 1], [1, 0]]))).node_values.shape
    torch.Size([3, 5])
    """
    fields = read_fields(data)
    if notice := fields.describe_unread():
        log_once(notice)
    of_nodes = _labels_and_values("node", "x", fields.columns["x"], fields.columns["node_labels"])
    of_edges = _labels_and_values("edge", "edge_attr", fields.columns["edge_attr"], fields.columns["edge_labels"])
    return GraphBatch.from_edges(fields.edge_index, fields.sizes, **of_nodes, **of_edges, targets=fields.columns["y"])


def to_pyg(batch: GraphBatch) -> "torch_geometric.data.Batch":
    """Convert a batch to one of PyTorch Geometric: the inverse of ``from_pyg``. Encodings are left out.

    >>> import torch
    >>> from mnagt import load_dataset, to_pyg
    >>> to_pyg(load_dataset("MUTAG").batch(torch.tensor([0, 1]))).num_graphs
    2
    """
    from torch_geometric.data import Batch, Data

    of_nodes = _pyg_columns("x", "node_labels", batch.node_labels, batch.node_values)
    of_edges = _pyg_columns("edge_attr", "edge_labels", batch.edge_labels, batch.edge_values)
    of_graphs = {} if batch.targets is None else {"y": batch.targets}
    if batch.num_graphs == 0:
        pointers = {"batch": batch.graph_of_node, "ptr": batch.node_ptr}
        return Batch(edge_index=batch.edge_index, num_nodes=0, **of_nodes, **of_edges, **of_graphs, **pointers)
    nodes, edges = batch.sizes.tolist(), batch.in_ptr[batch.node_ptr].diff().tolist()
    first = batch.node_ptr[:-1][batch.graph_of_node[batch.destination]]
    columns = {
        **{name: column.split(nodes) for name, column in of_nodes.items()},
        **{name: column.split(edges) for name, column in of_edges.items()},
        **{name: column.split(1) for name, column in of_graphs.items()},
        "edge_index": (batch.edge_index - first).split(edges, dim=1),
    }
    return Batch.from_data_list(
        [Data(num_nodes=n, **{name: parts[g] for name, parts in columns.items()}) for g, n in enumerate(nodes)]
    )


def from_networkx(
    graphs: "networkx.Graph | Iterable[networkx.Graph]",
    *,
    node_labels: Sequence[str] = (),
    node_values: Sequence[str] = (),
    edge_labels: Sequence[str] = (),
    edge_values: Sequence[str] = (),
    target: str | None = None,
) -> GraphBatch:
    """Convert networkx graphs to a batch.

    Nodes keep the order of their graph. An undirected edge becomes two, one in each direction. Self loops are dropped,
    and of parallel edges the first is kept. ``node_labels`` and ``node_values``, ``edge_labels`` and ``edge_values``
    name the attributes to read; ``target`` names that of a graph which holds its target.

    >>> import networkx as nx
    >>> from mnagt import from_networkx
    >>> from_networkx([nx.cycle_graph(6), nx.path_graph(4)]).sizes.tolist()
    [6, 4]
    """
    import networkx

    sizes, pairs, targets, nodes, edges = [], [], [], [], []
    for g, graph in enumerate([graphs] if isinstance(graphs, networkx.Graph) else graphs):
        index = {node: v for v, node in enumerate(graph, start=len(nodes))}
        sizes.append(len(index))
        nodes += [(f"graph {g}, node {node!r}", attributes) for node, attributes in graph.nodes(data=True)]
        for u, v, attributes in graph.edges(data=True):
            ends = [(index[u], index[v])] if graph.is_directed() else [(index[u], index[v]), (index[v], index[u])]
            pairs += ends
            edges += [(f"graph {g}, edge {(u, v)!r}", attributes)] * len(ends)
        if target is not None:
            targets.append(_attribute(f"graph {g}", graph.graph, target))
    edge_index = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T
    if (simple_edges := find_simple_edges(edge_index)) is not None:
        edge_index, edges = edge_index[:, simple_edges], [edges[edge] for edge in simple_edges.tolist()]
    return GraphBatch.from_edges(
        edge_index,
        sizes,
        node_labels=_read_columns(nodes, node_labels, torch.long),
        node_values=_read_columns(nodes, node_values, torch.float),
        edge_labels=_read_columns(edges, edge_labels, torch.long),
        edge_values=_read_columns(edges, edge_values, torch.float),
        targets=None if target is None else _stack_targets(target, targets),
    )


def to_networkx(
    batch: GraphBatch,
    *,
    node_labels: Sequence[str] | None = None,
    node_values: Sequence[str] | None = None,
    edge_labels: Sequence[str] | None = None,
    edge_values: Sequence[str] | None = None,
    target: str = "target",
) -> "list[networkx.Graph]":
    """Convert a batch to networkx graphs, with columns as attributes of nodes and edges.

    A graph is undirected where every edge runs both ways with the same attributes. A repeated edge is kept once,
    encodings are left out. ``node_labels`` and ``node_values``, ``edge_labels`` and ``edge_values`` name attributes, by
    default ``node_labels/0``, ...; ``target`` names that of a graph which holds its target.

    >>> import networkx as nx
    >>> from mnagt import from_networkx, to_networkx
    >>> [graph.number_of_edges() for graph in to_networkx(from_networkx([nx.cycle_graph(6), nx.path_graph(4)]))]
    [6, 3]
    """
    import networkx

    of_nodes = _columns_by_name(batch, "node_labels", node_labels) | _columns_by_name(batch, "node_values", node_values)
    of_edges = _columns_by_name(batch, "edge_labels", edge_labels) | _columns_by_name(batch, "edge_values", edge_values)
    graph_type = networkx.Graph if _runs_both_ways(batch) else networkx.DiGraph
    graphs = [graph_type() for _ in range(batch.num_graphs)]
    first, graph_of_node = batch.node_ptr.tolist(), batch.graph_of_node.tolist()
    for v, g in enumerate(graph_of_node):
        graphs[g].add_node(v - first[g], **{name: column[v] for name, column in of_nodes.items()})
    for e, (u, v) in enumerate(batch.edge_index.T.tolist()):
        g = graph_of_node[u]
        graphs[g].add_edge(u - first[g], v - first[g], **{name: column[e] for name, column in of_edges.items()})
    if batch.targets is not None:
        for graph, value in zip(graphs, batch.targets.tolist(), strict=True):
            graph.graph[target] = value
    return graphs


def _labels_and_values(owner: str, name: str, column: Tensor | None, labels: Tensor | None) -> dict[str, Any]:
    """``column`` as labels or values of nodes or edges, by its dtype, beside other ``labels``."""
    values = None
    if column is not None:
        if column.is_floating_point():
            values = column.float()
        elif labels is not None:
            raise InputError(f"{name} holds integers and so do the labels beside it; put all of them into {name}")
        else:
            labels = column.long()
    return {f"{owner}_labels": labels, f"{owner}_values": values}


def _pyg_columns(name: str, beside: str, labels: Tensor | None, values: Tensor | None) -> dict[str, Tensor]:
    """Values under ``name`` and labels ``beside`` it; whichever is there alone under ``name``."""
    if labels is None:
        return {} if values is None else {name: values}
    return {name: labels} if values is None else {name: values, beside: labels}


def _stack_targets(target: str, values: list[Any]) -> Tensor:
    try:
        return torch.tensor(values)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"attribute {target!r} of the graphs must be numbers, or lists of one length: {error}"
        ) from None


def _attribute(where: str, attributes: Mapping[str, Any], name: str) -> Any:
    if name not in attributes:
        available = ", ".join(sorted(map(repr, attributes))) or "none"
        raise InputError(f"{where}: no attribute {name!r}; there are: {available}")
    return attributes[name]


def _read_columns(rows: list[tuple[str, Mapping[str, Any]]], names: Sequence[str], dtype: torch.dtype) -> Tensor | None:
    """The attributes called ``names`` of each row, which is where it is, for messages, and what it has."""
    is_integer = dtype == torch.long
    table = []
    for where, attributes in rows if names else ():
        for name in names:
            value = _attribute(where, attributes, name)
            try:
                table.append(operator.index(value) if is_integer else float(value))
            except (TypeError, ValueError):
                kind = "an integer; number the categories first" if is_integer else "a number"
                raise InputError(f"{where}: attribute {name!r} is {value!r}, not {kind}") from None
    return torch.tensor(table, dtype=dtype).view(-1, len(names)) if names else None


def _columns_by_name(batch: GraphBatch, field: str, names: Sequence[str] | None) -> dict[str, list]:
    """The columns of ``field`` as lists, by name."""
    columns: Tensor | None = getattr(batch, field)
    count = 0 if columns is None else columns.shape[1]
    if names is None:
        names = [f"{field}/{i}" for i in range(count)]
    if len(names) != count:
        raise InputError(f"{field} has {count} columns, and {len(names)} names are given for them: {', '.join(names)}")
    return {} if columns is None else dict(zip(names, columns.T.tolist(), strict=True))


def _runs_both_ways(batch: GraphBatch) -> bool:
    """Every edge has a reverse edge with the same columns."""
    back = (batch.source.long() * batch.num_nodes + batch.destination).argsort(stable=True)
    columns = [column for column in (batch.edge_labels, batch.edge_values) if column is not None]
    return batch.is_symmetric and all(torch.equal(column, column[back]) for column in columns)
