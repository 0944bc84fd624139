r"""Statistics of ego networks: the subgraphs :math:`B_r(v)` induced by the nodes within r hops of v.

Edges are taken both ways and once; self loops do not count. Message passing cannot compute these statistics: no sum
over neighbours counts the edges among them.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch, cached_per_batch
from mnagt.graphs.dense import PAIRS_AT_ONCE, dense_blocks
from mnagt.graphs.sparse import ragged_arange

LARGE = 4096
"""Graphs with more nodes are processed edge by edge instead of as dense matrices."""


def ego_statistics(graph: GraphBatch, radius: int) -> Float[Tensor, "nodes three_each"]:
    r"""Three numbers for each radius from 1 to ``radius``: log size, density, and log of the equivalent nodes.

    .. math:: \log |B_r(v)|, \qquad \frac{\#\text{edges within } B_r(v)}{|B_r(v)| (|B_r(v)| - 1) / 2},
        \qquad \log \#\{u : B_r(u) = B_r(v)\}

    For r = 1 the last counts structurally equivalent nodes, such as the authors of a single paper in a co-author
    network. An isolated node gives zeros.
    """
    size, edges, equivalent = count_ego_networks(graph, radius).unbind(2)
    density = 2 * edges / (size * (size - 1)).clamp(min=1)
    return torch.stack([size.float().log(), density.float(), equivalent.float().log()], dim=2).flatten(1)


@cached_per_batch
def count_ego_networks(graph: GraphBatch, radius: int) -> Int[Tensor, "nodes radii 3"]:
    """Nodes and edges of each ego network, and how many nodes have the same one, for radius 1 to ``radius``."""
    if radius < 1:
        raise InputError(f"radius counts from 1, got {radius}")
    counts = torch.zeros(graph.num_nodes, radius, 3, dtype=torch.long, device=graph.device)
    max_size = LARGE if radius == 1 else None
    for g in (graph.sizes > LARGE).nonzero().flatten().tolist() if max_size else ():
        counts[int(graph.node_ptr[g]) : int(graph.node_ptr[g + 1]), 0] = count_large_graph(graph, g)
    for block in dense_blocks(graph, max_size):
        adjacency = (block.adjacency.maximum(block.adjacency.mT) > 0).float()
        adjacency.diagonal(dim1=1, dim2=2).zero_()
        reached = torch.eye(block.size, device=graph.device).expand_as(adjacency)
        for r in range(radius):
            reached = ((reached @ adjacency + reached) > 0).float()
            size = reached.sum(dim=2)
            edges = (reached @ adjacency * reached).sum(dim=2) / 2  # counted from both ends
            shared = reached @ reached.mT
            equivalent = ((shared == size[:, :, None]) & (shared == size[:, None, :])).sum(dim=2)
            counts[block.nodes, r] = torch.stack([size.long(), edges.long(), equivalent], dim=2)
    return counts


def count_large_graph(graph: GraphBatch, g: int) -> Int[Tensor, "nodes_of_g 3"]:
    """``count_ego_networks`` of radius 1 in graph ``g``, in memory linear in its edges.

    Each edge among a node's neighbours closes a triangle with it. Neighbourhoods are compared by sums of random 60-bit
    hashes of their nodes.
    """
    start, n = int(graph.node_ptr[g]), int(graph.sizes[g])
    edges = slice(int(graph.in_ptr[start]), int(graph.in_ptr[start + n]))
    i, j = graph.destination[edges].long() - start, graph.source[edges].long() - start
    i, j = i[i != j], j[i != j]
    edge = torch.cat([i * n + j, j * n + i]).unique()  # both ways, in order
    i, j = edge // n, edge % n
    degree = torch.bincount(i, minlength=n)
    first = degree.cumsum(0) - degree
    node_hash = torch.randint(2**60, (n,), generator=torch.Generator().manual_seed(0)).to(i.device)
    _, group, group_size = node_hash.index_add(0, i, node_hash[j]).unique(return_inverse=True, return_counts=True)

    triangles = torch.zeros(n, dtype=torch.long, device=i.device)
    ends = torch.stack([i[i < j], j[i < j]])
    low, high = ends.gather(0, degree[ends].argsort(dim=0, stable=True))  # by degree: list the fewer neighbours
    parts = (degree[low].cumsum(0) // PAIRS_AT_ONCE).cpu().unique_consecutive(return_counts=True)[1].tolist()
    for a, b in zip(low.split(parts), high.split(parts), strict=True):
        counts = degree[a]
        third = j[ragged_arange(first[a], counts, int(counts.sum()))]
        candidate = torch.repeat_interleave(b, counts) * n + third
        is_edge = edge[torch.searchsorted(edge, candidate).clamp(max=len(edge) - 1)] == candidate
        triangles.index_add_(0, third, is_edge.long())
        closed = torch.zeros_like(a).index_add_(0, torch.repeat_interleave(counts), is_edge.long())
        triangles.index_add_(0, a, closed)
        triangles.index_add_(0, b, closed)
    return torch.stack([degree + 1, degree + triangles // 3, group_size[group]], dim=1)  # counted at three edges
