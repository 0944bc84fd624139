"""Some nodes of each graph: in what order they stand by a score, which come first, and the graphs they induce."""

from dataclasses import replace

import torch
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
    """The graphs that the kept nodes induce, and which of the old nodes stands in each row.

    How much is left only the device knows. Where it is not to be waited for (``is_cut`` false, the default on a GPU)
    the shape stays as it is: one more graph at the end holds the nodes left out, each edge left out is a loop at one of
    them, and ``padding`` says how much is real. Columns of edges come along; those of nodes and graphs are left behind.
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
        targets=None,
        encodings={},
        padding=padding,
    )
    return part, rows
