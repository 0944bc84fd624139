r"""WL colours: identifiers of the rooted subtrees around nodes, by the Weisfeiler-Leman algorithm.

.. math:: c_0(v) = h(\text{labels of } v), \qquad
          c_{r+1}(v) = h\Bigl(c_r(v), \sum_{e: u \to v} h\bigl(c_r(u), \text{labels of } e\bigr)\Bigr)

Two nodes have the same colour exactly if the trees of walks into them are the same, up to rare collisions of the 64-bit
hash. Where nodes carry no labels, the ego network :math:`B` of radius 1, which no walks determine, enters as well:
:math:`c_1(v)` becomes :math:`h(c_1(v), |B|, \#\text{edges in } B)`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch, cached_per_batch
from mnagt.graphs.core_numbers import core_numbers
from mnagt.graphs.ego_statistics import count_ego_networks

ODD = 0x9E3779B97F4A7C15 - 2**64
"""2^64 over the golden ratio, as an int64: its multiples distinguish columns."""


STRUCTURAL_COLOURS = 4
"""Colours that ``subtree_colours`` begins with where nodes have no labels; else there is one."""


def wl_colours(graph: GraphBatch, iterations: int) -> Int[Tensor, "nodes iterations"]:
    """The colour of each node after 1, ..., ``iterations`` iterations: int32 from 0 to 2^31 - 1."""
    _check_count(iterations)
    return torch.stack(_refine_colours(graph, iterations, graph.node_labels, graph.edge_labels)[1:], dim=1)


def subtree_colours(graph: GraphBatch, iterations: int) -> Int[Tensor, "nodes colours"]:
    """The colours of each node after 0, 1, ..., ``iterations`` iterations, for counting them.

    Where nodes have no labels there are ``STRUCTURAL_COLOURS`` at first: those of the degree, of the core number, of
    degree and triangles, and of all three, from which the iterations begin.
    """
    labels = _structural_labels(graph) if graph.node_labels is None else graph.node_labels
    colours = torch.stack(_refine_colours(graph, iterations, labels, graph.edge_labels), dim=1)
    if graph.node_labels is not None:
        return colours
    return torch.cat([structural_colours(graph, STRUCTURAL_COLOURS - 1), colours], dim=1)


def structural_colours(graph: GraphBatch, count: int) -> Int[Tensor, "nodes count"]:
    """The first ``count`` of: the colours of the degree, of the core number, of degree and triangles, of all three."""
    _check_count(count)
    labels = _structural_labels(graph)
    parts = (labels[:, :1], labels[:, 2:], labels[:, :2], labels)[:count]
    colours = [shift_right(mix_bits(hash_labels(part, labels[:, 0]) + i), 33) for i, part in enumerate(parts)]
    return torch.stack(colours, dim=1).int()


@cached_per_batch
def _structural_labels(graph: GraphBatch) -> Int[Tensor, "nodes 3"]:
    """Degree, triangles and core number of each node."""
    size, edges_within, _ = count_ego_networks(graph, 1)[:, 0].unbind(1)
    return torch.stack([size - 1, edges_within - size + 1, core_numbers(graph)], dim=1)


def fragment_colours(graph: GraphBatch, iterations: int) -> Int[Tensor, "nodes colours"]:
    """Coarse and fine colours side by side.

    The first ``iterations + 1`` columns use only the first label of nodes and edges (the element, the bond type), after
    0, ..., ``iterations`` iterations. The other ``iterations`` columns use all labels, after one iteration fewer.
    """
    _check_count(iterations)
    labels = graph.node_labels, graph.edge_labels
    coarse = _refine_colours(graph, iterations, *(None if each is None else each[:, :1] for each in labels))
    return torch.stack(coarse + _refine_colours(graph, iterations - 1, *labels), dim=1)


def _check_count(iterations: int) -> None:
    if iterations < 1:
        raise InputError(f"the number of WL iterations or colours counts from 1, got {iterations}")


def _refine_colours(
    graph: GraphBatch, iterations: int, nodes: Int[Tensor, "nodes _"] | None, edges: Int[Tensor, "edges _"] | None
) -> list[Int[Tensor, "nodes"]]:
    """The colours after 0, 1, ..., ``iterations`` iterations, from these labels of nodes and edges.

    By operations that ONNX Runtime computes exactly: of an axis it would sum integers in floating point.
    """
    source, ptr = graph.source.long(), graph.in_ptr.long()
    colour, edge = hash_labels(nodes, ptr[1:]), hash_labels(edges, source)
    colours = [colour]
    for r in range(iterations):
        messages = mix_bits(colour[source] + edge)
        total = F.pad(messages.cumsum(0), (1, 0))  # int64 wraps around, here and below
        colour = mix_bits(colour * ODD + total[ptr[1:]] - total[ptr[:-1]])
        if r == 0 and graph.node_labels is None:
            size, edges_within, _ = count_ego_networks(graph, 1)[:, 0].unbind(1)
            colour = mix_bits(mix_bits(colour + size) + edges_within)
        colours.append(colour)
    return [shift_right(colour, 33).int() for colour in colours]


def hash_labels(labels: Int[Tensor, "rows _"] | None, like: Int[Tensor, "rows"]) -> Int[Tensor, "rows"]:
    """One number for all labels of a row; the same for all rows without labels."""
    if labels is None:
        return torch.full_like(like, ODD)
    column = torch.arange(1, labels.shape[1] + 1, device=like.device) * ODD
    return sum(mix_bits(labels.long() + column).unbind(dim=1), torch.zeros_like(like))


def mix_bits(x: Int[Tensor, "rows *columns"]) -> Int[Tensor, "rows *columns"]:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ shift_right(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ shift_right(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ shift_right(x, 31)


def shift_right(x: Int[Tensor, "rows *columns"], bits: int) -> Int[Tensor, "rows *columns"]:
    """Logical (unsigned) shift of int64 to the right."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
