"""Some nodes of each graph: in what order they stand by a score, which come first, and the graphs they induce."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mnagt.graphs.batch import GraphBatch, Padding
from mnagt.graphs.sparse import ptr_from_counts, ptr_from_index

TIE = 1e-6
"""Scores no further apart are equal: nodes that only their names tell apart differ by rounding."""


def sort_by_score(score: Float[Tensor, "nodes"], graph: GraphBatch) -> Int[Tensor, "nodes"]:
    """The nodes, graph by graph, those with the largest score first; equal ones as they stood."""
    order = score.argsort(descending=True, stable=True)
    return order[graph.graph_of_node[order].argsort(stable=True)]


def is_top(score: Float[Tensor, "nodes"], graph: GraphBatch, ratio: float) -> Bool[Tensor, "nodes"]:
    """Whether a node is among the ``ratio`` of its graph's nodes, rounded up, that have the largest scores.

    All that tie with the last of them are too: otherwise the names of nodes would decide.
    """
    score = score.detach()
    wanted = (graph.node_ptr.diff() * ratio - 1e-9).ceil().long()
    last = (graph.node_ptr[:-1] + wanted - 1).clamp(min=0, max=max(graph.num_nodes - 1, 0))
    border = score[sort_by_score(score, graph)[last]]
    return score >= border[graph.graph_of_node] - TIE


def induce_subgraph(
    graph: GraphBatch, is_kept: Bool[Tensor, "nodes"], *, is_cut: bool | None = None
) -> tuple[GraphBatch, Int[Tensor, "more_nodes"]]:
    """The graphs that the kept nodes induce, and the old node of each row.

    How many nodes are kept is known on the device only. With ``is_cut`` false, the default on a GPU, it is not waited
    for, and the shape stays as it is: one more graph at the end holds the nodes left out, each edge left out is a loop
    at one of them, and ``padding`` says how many are valid. Edge columns are kept; those of nodes and graphs are not.
    """
    is_cut = graph.device.type == "cpu" if is_cut is None else is_cut
    source, destination = graph.source.long(), graph.destination
    node, before = torch.arange(graph.num_nodes, device=graph.device), ptr_from_counts(is_kept.long())
    new_index = torch.where(is_kept, before[:-1], before[-1] + node - before[:-1])
    is_kept_edge = is_kept[source] & is_kept[destination]
    node_ptr, padding, edges_before = before[graph.node_ptr], graph.padding, ptr_from_counts(is_kept_edge.long())
    if padding is not None:
        valid = (padding.graphs, before.take(padding.nodes), edges_before.take(padding.edges))
        padding = Padding(*valid, graph.num_nodes)
    elif not is_cut:
        padding = Padding(before.new_full((), graph.num_graphs), before[-1], edges_before[-1], graph.num_nodes)
    if is_cut:
        rows, edges = is_kept.nonzero().flatten(), is_kept_edge.nonzero().flatten()
    else:
        outside = torch.where(is_kept[destination], source, destination)
        source, destination = (torch.where(is_kept_edge, end, outside) for end in (source, destination))
        rows, edges = new_index.argsort(), new_index[destination].argsort(stable=True)
        node_ptr = torch.cat([node_ptr, node_ptr.new_full((1,), graph.num_nodes)])
    sizes = node_ptr.diff()
    part = replace(
        graph,
        sizes=sizes if sizes.device.type == "cpu" else sizes.cpu() if is_cut else sizes.to("meta"),
        node_ptr=node_ptr,
        in_ptr=ptr_from_index(new_index[destination[edges]], len(rows)).int(),
        source=new_index[source[edges]].int(),
        node_labels=None,
        node_values=None,
        edge_labels=None if graph.edge_labels is None else graph.edge_labels.index_select(0, edges),
        edge_values=None if graph.edge_values is None else graph.edge_values.index_select(0, edges),
        edge_numbers=None,
        targets=None,
        encodings={},
        padding=padding,
    )
    return part, rows


def add_virtual_nodes(graph: GraphBatch, *, is_connected: bool) -> tuple[GraphBatch, Int[Tensor, "nodes"]]:
    """The batch with a node added at the end of each graph, and where the old nodes went.

    ``is_connected``: the new node has edges to and from all others of its graph. What it and its edges carry is 'none':
    label -1, value and encodings 0. Node columns are left behind: the batch is for layers, which no longer read them.
    """
    nodes, graphs, device = graph.num_nodes, graph.num_graphs, graph.device
    new_index = torch.arange(nodes, device=device) + graph.graph_of_node
    node_ptr = graph.node_ptr + torch.arange(graphs + 1, device=device)
    source, destination = new_index[graph.source], new_index[graph.destination]
    edge_labels, edge_values = graph.edge_labels, graph.edge_values
    if is_connected:
        hub = (node_ptr[1:] - 1)[graph.graph_of_node]
        source, destination = torch.cat([source, new_index, hub]), torch.cat([destination, hub, new_index])
        order = (destination * (nodes + graphs) + source).argsort(stable=True)
        source, destination = source[order], destination[order]
        edge_labels = None if edge_labels is None else F.pad(edge_labels, (0, 0, 0, 2 * nodes), value=-1)[order]
        edge_values = None if edge_values is None else F.pad(edge_values, (0, 0, 0, 2 * nodes))[order]
    padding = graph.padding
    if padding is not None:
        edges = padding.edges + 2 * padding.nodes if is_connected else padding.edges
        padding = Padding(padding.graphs, padding.nodes + padding.graphs, edges, padding.max_num_nodes + 1)
    more = replace(
        graph,
        sizes=graph.sizes + 1,
        node_ptr=node_ptr,
        in_ptr=ptr_from_index(destination, nodes + graphs).int(),
        source=source.int(),
        node_labels=None,
        node_values=None,
        edge_labels=edge_labels,
        edge_values=edge_values,
        edge_numbers=None,
        encodings={
            name: rows.new_zeros(nodes + graphs, rows.shape[1]).index_copy(0, new_index, rows)
            for name, rows in graph.encodings.items()
        },
        padding=padding,
    )
    return more, new_index
