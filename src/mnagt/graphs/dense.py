"""Graphs of equal size as dense matrices, worked on together on the device where they lie."""

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.buckets import Buckets
from mnagt.graphs.sparse import ptr_from_counts, ragged_arange

PAIRS_AT_ONCE = 2**22
"""Entries of the dense matrices worked on together; a larger graph is worked on alone."""
BYTES_PER_PAIR = 72
"""What the dense work needs at its peak for each entry (measured: up to 70)."""
GIB_PER_GRAPH = 8
"""A graph that needs more is refused."""
SPARSE_UP_TO, SPARSE_FROM = 0.25, 48
"""Share of entries that are not zero up to which a CPU multiplies by these alone, and nodes from which it does: 2 to 25
times as fast there."""


class DenseBlock(NamedTuple):
    """Some graphs of equal size."""

    size: int
    graphs: Int[Tensor, "graphs"]
    """On the CPU."""
    nodes: Int[Tensor, "graphs size"]
    adjacency: Float[Tensor, "graphs size size"]


def dense_blocks(graph: GraphBatch, max_size: int | None = None) -> Iterator[DenseBlock]:
    """All graphs that have nodes, and at most ``max_size``, a bounded number of pairs at a time."""
    device = graph.device
    largest = 0 if max_size or not graph.num_graphs else int(graph.sizes.max())
    gib = BYTES_PER_PAIR * largest**2 / 2**30
    if gib > GIB_PER_GRAPH:
        raise InputError(
            f"graph {int(graph.sizes.argmax())} has {largest} nodes, and dense matrices over its pairs need {gib:.1f} "
            f"GiB, at most {GIB_PER_GRAPH} being allowed; leave it out or do without this encoding"
        )
    edge_ptr = graph.in_ptr[graph.node_ptr].cpu()
    plan = Buckets.plan(graph.sizes, step=1)
    for bucket, graphs in zip(plan.groups, plan.graphs.split([b.graphs for b in plan.groups]), strict=True):
        size = bucket.width
        if max_size is not None and size > max_size:
            continue
        for some in graphs.split(max(1, PAIRS_AT_ONCE // size**2)):
            counts = edge_ptr[some + 1] - edge_ptr[some]
            edge = ragged_arange(edge_ptr[some], counts, int(counts.sum())).to(device)
            row = torch.repeat_interleave(torch.arange(len(some)), counts).to(device)
            first = graph.node_ptr[some.to(device)]
            i, j = graph.destination[edge] - first[row], graph.source[edge] - first[row]
            shape = (len(some), size, size)
            adjacency = torch.bincount((row * size + i) * size + j, minlength=prod(shape)).view(shape).float()
            yield DenseBlock(size, some, first[:, None] + torch.arange(size, device=device), adjacency)


def left_product(
    matrix: Float[Tensor, "graphs size size"],
) -> Callable[[Float[Tensor, "graphs size columns"]], Float[Tensor, "graphs size columns"]]:
    """``matrix @ x`` as a function of x: on a CPU, and with few entries that are not zero, by these alone."""
    graphs, size, _ = matrix.shape
    is_small = matrix.device.type != "cpu" or size < SPARSE_FROM
    if is_small or int(matrix.count_nonzero()) > SPARSE_UP_TO * matrix.numel():
        return matrix.matmul
    graph, i, j = matrix.nonzero(as_tuple=True)
    ptr, column = ptr_from_counts(torch.bincount(graph * size + i, minlength=graphs * size)), graph * size + j
    weight = matrix[graph, i, j]

    def product(x: Float[Tensor, "graphs size columns"]) -> Float[Tensor, "graphs size columns"]:
        rows = x.reshape(graphs * size, -1)
        out = F.embedding_bag(column, rows, ptr, mode="sum", per_sample_weights=weight, include_last_offset=True)
        return out.view(x.shape)

    return product


def normalised_adjacency(adjacency: Float[Tensor, "graphs size size"]) -> Float[Tensor, "graphs size size"]:
    r""":math:`D^{-1/2} A D^{-1/2}`, zero at isolated nodes; directed edges are taken both ways."""
    adjacency = adjacency.maximum(adjacency.mT)
    scale = adjacency.sum(dim=2).clamp(min=1).rsqrt()
    return scale[:, :, None] * adjacency * scale[:, None, :]


def normalised_laplacian(adjacency: Float[Tensor, "graphs size size"]) -> Float[Tensor, "graphs size size"]:
    r""":math:`I - D^{-1/2} A D^{-1/2}`, zero at isolated nodes; directed edges are taken both ways."""
    has_edges = adjacency.maximum(adjacency.mT).sum(dim=2) > 0
    return torch.diag_embed(has_edges.to(adjacency)) - normalised_adjacency(adjacency)
