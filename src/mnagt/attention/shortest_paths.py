"""Means of edge terms along the shortest paths between all pairs of nodes, as in Graphormer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.sparse import Incidence, ptr_from_index, ragged_arange, take

BYTES_PER_ARRIVAL, MAX_GIB = 64, 16
"""What shortest paths need for each edge and each node of its graph, and the most that a batch may need."""


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
    if (gib := BYTES_PER_ARRIVAL * total / 2**30) > MAX_GIB:
        raise InputError(
            f"edges along the shortest paths of {graph.num_graphs} graphs, the largest of {graph.max_num_nodes} nodes, "
            f"need {gib:.1f} GiB, at most {MAX_GIB} being allowed; take smaller batches or drop edges along paths"
        )
    nearer_pair, pair = (ragged_arange(row[end], width, total) for end in (graph.source.long(), graph.destination))
    edge = torch.repeat_interleave(width, output_size=total)
    is_arrival = (distances[pair] == distances[nearer_pair] + 1) & (distances[pair] <= limit)
    nearer_pair, pair, edge = nearer_pair[is_arrival], pair[is_arrival], edge[is_arrival]

    paths = (distances == 0).double()
    nearer = (distances == 0).nonzero().squeeze(1)
    position = torch.zeros_like(distances, dtype=torch.long)  # of each pair, among those as far apart
    position[nearer] = torch.arange(len(nearer), device=device)
    steps: list[PathStep] = []
    for length in range(1, limit + 1):
        now = (distances[pair] == length).nonzero().squeeze(1)
        if not len(now):
            break
        now = now[pair[now].argsort(stable=True)]
        pairs = (distances == length).nonzero().squeeze(1)
        position[pairs] = torch.arange(len(pairs), device=device)
        ends = torch.arange(len(now) + 1, device=device)
        arrivals = Incidence(ends[:-1], ptr_from_index(position[pair[now]], len(pairs)), len(now))
        before = Incidence(position[nearer_pair[now]], ends, len(nearer))
        counts = paths[nearer_pair[now]]
        paths[pairs] = (arrivals @ counts[:, None]).squeeze(1)
        share = counts / paths[pair[now]]
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
