"""Tensors with a row for every pair of nodes of a graph: indices, matrices, einsum and softmax.

Rows for pairs lie in the order of ``GraphBatch.pair_ptr``. All sums are matrix products over graphs of like size or
products with an ``Incidence``: no atomic additions, the same result on every run.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.graphs.batch import GraphBatch, cached_per_batch
from mnagt.graphs.buckets import split_slots
from mnagt.graphs.dense import dense_blocks
from mnagt.graphs.sparse import Incidence, ragged_arange, take


def edge_pairs(graph: GraphBatch) -> Int[Tensor, "edges"]:
    """The pair (destination, source) of each edge: the destination is the one that attends."""
    graph_index = graph.graph_of_node[graph.destination]
    first, size = graph.node_ptr[graph_index], graph.node_ptr.diff()[graph_index]
    ptr = graph.pair_ptr.to(graph.device)[graph_index]
    return ptr + (graph.destination - first) * size + (graph.source - first)


def self_pairs(graph: GraphBatch) -> Int[Tensor, "nodes"]:
    """The pair (v, v) of each node."""
    graph_index = graph.graph_of_node
    position = torch.arange(graph.num_nodes, device=graph.device) - graph.node_ptr[graph_index]
    return graph.pair_ptr.to(graph.device)[graph_index] + position * (graph.node_ptr.diff()[graph_index] + 1)


def pair_nodes(graph: GraphBatch) -> tuple[Int[Tensor, "pairs"], Int[Tensor, "pairs"]]:
    """Of each pair, the node that attends and the node attended to."""
    pairs, size = int(graph.pair_ptr[-1]), graph.node_ptr.diff()[graph.graph_of_node]
    attends = torch.repeat_interleave(size, output_size=pairs)
    return attends, ragged_arange(graph.node_ptr[graph.graph_of_node], size, pairs)


def from_adjacency(
    graph: GraphBatch, views: int, work: Callable[[Float[Tensor, "graphs size size"]], list[Tensor]]
) -> Float[Tensor, "pairs views"]:
    """The ``views`` matrices that ``work`` makes of each adjacency matrix (float64), a column each."""
    out = torch.empty(int(graph.pair_ptr[-1]), views, device=graph.device)
    for block in dense_blocks(graph):
        pair = graph.pair_ptr[block.graphs].to(graph.device)[:, None] + torch.arange(block.size**2, device=graph.device)
        out[pair] = torch.stack(work(block.adjacency.double()), dim=3).flatten(1, 2).float()
    return out


def in_each_graph(equation: str, *operands: Float[Tensor, "_ ..."], graph: GraphBatch) -> Float[Tensor, "_ ..."]:
    """An einsum in every graph: letter ``g`` is the graph, ``i`` and ``j`` are its nodes.

    What begins with ``gij`` has a row for each pair; what begins with ``gi`` or ``gj``, one for each node. So
    ``gihd,gjhd->gijh`` compares queries and keys of d columns by h heads.
    """
    terms, result = equation.split("->")
    letters = terms.split(",")
    if not graph.buckets.groups:
        size: dict[str, int] = {}
        for term, x in zip(letters, operands, strict=True):
            size.update(zip(_inner(term), x.shape[1:], strict=True))
        return operands[0].new_zeros(0, *(size[letter] for letter in _inner(result)))
    parts = [_slots(x, graph, is_pair=_is_pair(term)) for term, x in zip(letters, operands, strict=True)]
    nodes = 3 if _is_pair(result) else 2
    out = torch.cat([torch.einsum(equation, *each).flatten(0, nodes - 1) for each in zip(*parts, strict=True)])
    return (graph.pair_layout if _is_pair(result) else graph.buckets.nodes).unpad(out)


def softmax(score: Float[Tensor, "pairs heads"], graph: GraphBatch) -> Float[Tensor, "pairs heads"]:
    """Attention weights: softmax over the nodes j of each node i."""
    if not graph.buckets.groups:
        return score
    out = []
    for bucket, part in zip(graph.buckets.groups, _slots(score, graph, is_pair=True), strict=True):
        if bucket.is_node is not None:
            part = part.masked_fill(~bucket.is_node[:, None, :, None], -torch.inf)
        out.append(part.softmax(dim=2).flatten(0, 2))
    return graph.pair_layout.unpad(torch.cat(out))


def softmax_over_edges(score: Float[Tensor, "edges heads"], graph: GraphBatch) -> Float[Tensor, "edges heads"]:
    """Attention weights of the edges into each node."""
    destination, into = graph.destination[:, None].expand_as(score), graph.edges_into.transposed
    top = score.new_zeros(graph.num_nodes, score.shape[1])
    top = top.scatter_reduce(0, destination, score.detach(), "amax", include_self=False)
    share = (score - top.index_select(0, graph.destination)).exp()
    return share / take(into, graph.edges_into @ share)


@cached_per_batch
def pair_of_edge(graph: GraphBatch) -> Incidence:
    """Row e holds the pair (destination, source) of edge e."""
    ends = torch.arange(graph.num_edges + 1, device=graph.device)
    return Incidence(edge_pairs(graph), ends, int(graph.pair_ptr[-1]))


def _is_pair(letters: str) -> bool:
    return letters.startswith("gij")


def _inner(letters: str) -> str:
    """The letters after those of graph and nodes."""
    return letters[3:] if _is_pair(letters) else letters[2:]


def _slots(rows: Float[Tensor, "_ ..."], graph: GraphBatch, *, is_pair: bool) -> list[Tensor]:
    """Bucket by bucket, graphs x width (x width) x ...; zero where a slot is empty."""
    groups, layout = graph.buckets.groups, graph.pair_layout if is_pair else graph.buckets.nodes
    out = []
    for group, part in zip(groups, split_slots(layout.pad(rows), groups, axes=2 if is_pair else 1), strict=True):
        if (is_node := group.is_node) is not None:
            is_there = is_node[:, :, None] & is_node[:, None, :] if is_pair else is_node
            part = part.masked_fill(~is_there.view(*is_there.shape, *[1] * (rows.ndim - 1)), 0)
        out.append(part)
    return out
