r"""What a node's neighbourhood is like: the balls :math:`B_r(v)`, the nodes within r edges of v.

Edges are taken both ways and once, and those of a node to itself do not count. No sum over neighbours tells how many of
them know each other, nor twins from nodes that are merely alike.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.dense import PAIRS_AT_ONCE, blocks
from mnagt.graphs.once import once_a_batch
from mnagt.graphs.sparse import ragged_arange

LARGE = 4096
"""Nodes of a graph above which balls are worked out edge by edge."""


def balls(graph: GraphBatch, radius: int) -> Float[Tensor, "nodes three_each"]:
    r"""Three numbers for each radius from 1 to ``radius``: size, density, and twins.

    .. math:: \log |B_r(v)|, \qquad \frac{\#\text{edges within } B_r(v)}{|B_r(v)| (|B_r(v)| - 1) / 2},
        \qquad \log \#\{u : B_r(u) = B_r(v)\}

    Twins with r = 1 are nodes that know the same others, such as the authors of a single paper in a network of
    co-authors. An isolated node gives zeros.
    """
    size, edges, twins = ball_counts(graph, radius).unbind(2)
    density = 2 * edges / (size * (size - 1)).clamp(min=1)
    return torch.stack([size.float().log(), density.float(), twins.float().log()], dim=2).flatten(1)


@once_a_batch
def ball_counts(graph: GraphBatch, radius: int) -> Int[Tensor, "nodes radii 3"]:
    """Nodes and edges of each ball, and how many nodes have the very same: for each radius from 1 to ``radius``."""
    if radius < 1:
        raise InputError(f"radius counts from 1, got {radius}")
    counts = torch.zeros(graph.num_nodes, radius, 3, dtype=torch.long, device=graph.device)
    most = LARGE if radius == 1 else None
    for g in (graph.sizes > LARGE).nonzero().flatten().tolist() if most else ():
        counts[int(graph.node_ptr[g]) : int(graph.node_ptr[g + 1]), 0] = nearest_ball_counts(graph, g)
    for block in blocks(graph, most):
        adjacency = (block.adjacency.maximum(block.adjacency.mT) > 0).float()
        adjacency.diagonal(dim1=1, dim2=2).zero_()
        reached = torch.eye(block.size, device=graph.device).expand_as(adjacency)
        for r in range(radius):
            reached = ((reached @ adjacency + reached) > 0).float()
            size = reached.sum(dim=2)
            edges = (reached @ adjacency * reached).sum(dim=2) / 2  # each was met from both its ends
            shared = reached @ reached.mT
            twins = ((shared == size[:, :, None]) & (shared == size[:, None, :])).sum(dim=2)
            counts[block.nodes, r] = torch.stack([size.long(), edges.long(), twins], dim=2)
    return counts


def nearest_ball_counts(graph: GraphBatch, g: int) -> Int[Tensor, "own 3"]:
    """``ball_counts`` of radius 1 in graph ``g``, edge by edge: for graphs too large for a matrix over all pairs.

    The edges among a node's neighbours close triangles with it. Balls are alike if the sums of marks over them are,
    which collide once in 2^60.
    """
    start, n = int(graph.node_ptr[g]), int(graph.sizes[g])
    edges = slice(int(graph.in_ptr[start]), int(graph.in_ptr[start + n]))
    i, j = graph.destination[edges].long() - start, graph.source[edges].long() - start
    i, j = i[i != j], j[i != j]
    edge = torch.cat([i * n + j, j * n + i]).unique()  # both ways, in order
    i, j = edge // n, edge % n
    degree = torch.bincount(i, minlength=n)
    first = degree.cumsum(0) - degree
    mark = torch.randint(2**60, (n,), generator=torch.Generator().manual_seed(0)).to(i.device)
    _, which, alike = mark.index_add(0, i, mark[j]).unique(return_inverse=True, return_counts=True)

    triangles = torch.zeros(n, dtype=torch.long, device=i.device)
    once = i < j
    ends = torch.stack([i[once], j[once]])
    few, many = ends.gather(0, degree[ends].argsort(dim=0, stable=True))  # who has fewer neighbours names them
    part = (degree[few].cumsum(0) // PAIRS_AT_ONCE).cpu().unique_consecutive(return_counts=True)[1].tolist()
    for a, b in zip(few.split(part), many.split(part), strict=True):
        counts = degree[a]
        third = j[ragged_arange(first[a], counts, int(counts.sum()))]
        asked = torch.repeat_interleave(b, counts) * n + third
        is_edge = edge[torch.searchsorted(edge, asked).clamp(max=len(edge) - 1)] == asked
        triangles.index_add_(0, third, is_edge.long())
        closed = torch.zeros_like(a).index_add_(0, torch.repeat_interleave(counts), is_edge.long())
        triangles.index_add_(0, a, closed)
        triangles.index_add_(0, b, closed)
    return torch.stack([degree + 1, degree + triangles // 3, alike[which]], dim=1)  # each was met at its three edges
