"""Core numbers of nodes."""

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.graphs.batch import GraphBatch, cached_per_batch
from mnagt.graphs.sparse import ragged_arange


@cached_per_batch
def core_numbers(graph: GraphBatch) -> Int[Tensor, "nodes"]:
    """The largest k such that a node is in the k-core: the largest subgraph in which all have k neighbours or more.

    Edges are taken both ways and once; self loops do not count. Nodes are removed by their remaining degree (Matula,
    Beck, 1983), all that can be removed at once.

    >>> triangle_and_tail = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 3]])
    >>> core_numbers(GraphBatch.from_edges(triangle_and_tail, [4]))
    tensor([2, 2, 2, 1])
    """
    n, i, j = graph.num_nodes, graph.destination.long(), graph.source.long()
    i, j = i[i != j], j[i != j]
    edge = torch.cat([i * n + j, j * n + i]).unique()  # both ways, in order
    i, j = edge // max(n, 1), edge % max(n, 1)
    degree = torch.bincount(i, minlength=n)
    first, remaining = degree.cumsum(0) - degree, degree.clone()
    core, is_left = torch.zeros_like(degree), torch.ones(n, dtype=torch.bool, device=graph.device)
    level = 0
    while bool(is_left.any()):
        level = max(level, int(remaining[is_left].min()))
        nodes = (is_left & (remaining <= level)).nonzero()[:, 0]
        while len(nodes):
            core[nodes], is_left[nodes] = level, False
            near = j[ragged_arange(first[nodes], degree[nodes], int(degree[nodes].sum()))]
            near = near[is_left[near]]
            remaining.index_add_(0, near, torch.full_like(near, -1))
            near = near.unique()
            nodes = near[remaining[near] <= level]
    return core
