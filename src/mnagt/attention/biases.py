"""Terms added to the attention scores of each pair of nodes; minus infinity forbids the pair.

A bias is a module from a batch to one row a pair, in the order of ``GraphBatch.pair_ptr``, and one column a head (or
one for all heads).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import shortest_paths
from mnagt.graphs.sparse import Incidence, pointer, ragged_arange, take

BYTES_PER_ARRIVAL, MOST_GIB = 64, 16
"""What shortest paths need for each edge and each node of its graph, and the most that a batch may need."""


def edge_pairs(graph: GraphBatch) -> Int[Tensor, "edges"]:
    """The pair (destination, source) of each edge: the destination is the one that attends."""
    place = graph.graph_of_node[graph.destination]
    first, size = graph.node_ptr[place], graph.node_ptr.diff()[place]
    ptr = graph.pair_ptr.to(graph.device)[place]
    return ptr + (graph.destination - first) * size + (graph.source - first)


def self_pairs(graph: GraphBatch) -> Int[Tensor, "nodes"]:
    """The pair (v, v) of each node."""
    place = graph.graph_of_node
    own = torch.arange(graph.num_nodes, device=graph.device) - graph.node_ptr[place]
    return graph.pair_ptr.to(graph.device)[place] + own * (graph.node_ptr.diff()[place] + 1)


def pair_nodes(graph: GraphBatch) -> tuple[Int[Tensor, "pairs"], Int[Tensor, "pairs"]]:
    """Of each pair, the node that attends and the node attended to."""
    pairs, size = int(graph.pair_ptr[-1]), graph.node_ptr.diff()[graph.graph_of_node]
    attends = torch.repeat_interleave(size, output_size=pairs)
    return attends, ragged_arange(graph.node_ptr[graph.graph_of_node], size, pairs)


class EdgesOnly(nn.Module):
    """GT: a node attends to its neighbours and to itself."""

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs 1"]:
        bias = torch.full((int(graph.pair_ptr[-1]), 1), -torch.inf, device=graph.device)
        bias[edge_pairs(graph)] = 0.0
        bias[self_pairs(graph)] = 0.0
        return bias


class ShortestPath(nn.Module):
    """Graphormer: a learned number for each head and distance; one more for what is farther or out of reach."""

    def __init__(self, heads: int, limit: int = 20) -> None:
        super().__init__()
        self.limit = limit
        self.table = nn.Embedding(limit + 2, heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs heads"]:
        return self.table(shortest_paths(graph, self.limit))


class PathStep(NamedTuple):
    """The pairs at one distance, and the edges by which their shortest paths arrive."""

    pairs: Int[Tensor, "pairs"]
    arrivals: Incidence
    """Row p holds the arrivals at pair p; an arrival is an edge into the node that attends."""
    before: Incidence
    """Row a holds where, among the pairs one step nearer, arrival a comes from."""
    edge: Incidence
    """Row a holds the edge of arrival a."""
    share: Float[Tensor, "arrivals 1"]
    """Of the pair's shortest paths, the share that ends with this arrival."""


def path_steps(graph: GraphBatch, distances: Int[Tensor, "pairs"], limit: int) -> list[PathStep]:
    """How the shortest paths of each pair are put together, for distances 1, 2, ... to at most ``limit``.

    ``distances`` are those of ``shortest_paths``. A path from j to i is one from j to a neighbour of i, and one edge.
    """
    device, size = graph.device, graph.node_ptr.diff()[graph.graph_of_node]
    ptr = graph.pair_ptr.to(device)[graph.graph_of_node]
    row = ptr + (torch.arange(graph.num_nodes, device=device) - graph.node_ptr[graph.graph_of_node]) * size
    width = size[graph.destination]
    total = int(width.sum())
    if (gib := BYTES_PER_ARRIVAL * total / 2**30) > MOST_GIB:
        raise InputError(
            f"edges along the shortest paths of {graph.num_graphs} graphs, the largest of {graph.largest} nodes, need "
            f"{gib:.1f} GiB, at most {MOST_GIB} being allowed; take smaller batches or do without edges along paths"
        )
    there, here = (ragged_arange(row[end], width, total) for end in (graph.source.long(), graph.destination))
    edge = torch.repeat_interleave(width, output_size=total)
    is_arrival = (distances[here] == distances[there] + 1) & (distances[here] <= limit)
    there, here, edge = there[is_arrival], here[is_arrival], edge[is_arrival]

    paths = (distances == 0).double()
    nearer = (distances == 0).nonzero().squeeze(1)
    place = torch.zeros_like(distances, dtype=torch.long)  # of each pair, among those as far apart
    place[nearer] = torch.arange(len(nearer), device=device)
    steps: list[PathStep] = []
    for length in range(1, limit + 1):
        now = (distances[here] == length).nonzero().squeeze(1)
        if not len(now):
            break
        now = now[here[now].argsort(stable=True)]
        pairs = (distances == length).nonzero().squeeze(1)
        place[pairs] = torch.arange(len(pairs), device=device)
        ends = torch.arange(len(now) + 1, device=device)
        arrivals = Incidence(ends[:-1], pointer(place[here[now]], len(pairs)), len(now))
        before = Incidence(place[there[now]], ends, len(nearer))
        counts = paths[there[now]]
        paths[pairs] = (arrivals @ counts[:, None]).squeeze(1)
        share = counts / paths[here[now]]
        steps.append(PathStep(pairs, arrivals, before, Incidence(edge[now], ends, graph.num_edges), share[:, None]))
        nearer = pairs
    return steps


def path_means(
    terms: Callable[[int], Float[Tensor, "edges heads"]], steps: Sequence[PathStep], pairs: int
) -> Float[Tensor, "pairs heads"]:
    """Of each pair, the mean of ``terms(n)`` over the n-th edges of its shortest path, n from 0; 0 where there is none.

    Where a pair has several shortest paths it is the mean over them all: which one is taken would hang on the names of
    the nodes.
    """
    first = terms(0)
    out, total = first.new_zeros(pairs, first.shape[1]), None
    for n, step in enumerate(steps):
        arriving = take(step.edge, first if n == 0 else terms(n))
        arriving = arriving if total is None else arriving + take(step.before, total)
        total = step.arrivals @ (step.share.to(arriving.dtype) * arriving)
        out = out.index_copy(0, step.pairs, total / (n + 1))
    return out


BIASES = {"edges": EdgesOnly, "shortest-path": ShortestPath}
