r"""Names for what is seen around a node, by the rounds of Weisfeiler and Leman.

.. math:: c_0(v) = h(\text{labels of } v), \qquad
          c_{r+1}(v) = h\Bigl(c_r(v), \sum_{e: u \to v} h\bigl(c_r(u), \text{labels of } e\bigr)\Bigr)

Two nodes get the same name if and, but for a hash that collides once in billions, only if the trees of walks into them
look the same. A sum does not ask for an order, so names do not depend on how nodes are numbered.

Where nodes carry no labels, a first round would tell degrees only. There it tells how many edges are among a node and
its neighbours too, which no walks do: :math:`c_1(v)` becomes :math:`h(c_1(v), |B|, \#\text{edges in } B)` with the ball
:math:`B` of radius 1 around v.
"""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.balls import ball_counts
from mnagt.graphs.batch import GraphBatch

Names = Callable[[GraphBatch, int, Tensor | None, Tensor | None], list[Int[Tensor, "nodes"]]]
"""After 0, 1, ... rounds, so many, by these labels of nodes and of edges."""


def subtrees(graph: GraphBatch, rounds: int, names: Names | None = None) -> Int[Tensor, "nodes rounds"]:
    """The name of each node after 1, ..., ``rounds`` rounds: numbers from 0 to 2^31 - 1."""
    _check_count(rounds)
    return torch.stack((names or _names)(graph, rounds, graph.node_labels, graph.edge_labels)[1:], dim=1)


def fragments(graph: GraphBatch, rounds: int, names: Names | None = None) -> Int[Tensor, "nodes names"]:
    """Names of coarse and of fine pieces.

    First those in which a node's first label and an edge's first alone are seen (the element, the kind of bond), after
    0, ..., ``rounds`` rounds; then those of all labels after 0, ..., ``rounds - 1``.
    """
    _check_count(rounds)
    names = names or _names
    labels = graph.node_labels, graph.edge_labels
    coarse = names(graph, rounds, *(None if each is None else each[:, :1] for each in labels))
    return torch.stack(coarse + names(graph, rounds - 1, *labels), dim=1)


def _check_count(rounds: int) -> None:
    if rounds < 1:
        raise InputError(f"the number of rounds counts from 1, got {rounds}")


def _names(
    graph: GraphBatch, rounds: int, nodes: Int[Tensor, "nodes _"] | None, edges: Int[Tensor, "edges _"] | None
) -> list[Int[Tensor, "nodes"]]:
    """After 0, 1, ..., ``rounds`` rounds, by these labels of nodes and edges."""
    source, ptr = graph.source.long(), graph.in_ptr.long()
    name = _of_labels(nodes, graph.num_nodes, graph.device)
    edge = _of_labels(edges, graph.num_edges, graph.device)
    names = [name]
    for r in range(rounds):
        seen = mixed(name[source] + edge)
        total = torch.cat([seen.new_zeros(1), seen.cumsum(0)])  # overflow wraps around, here and below
        name = mixed(name * ODD + total[ptr[1:]] - total[ptr[:-1]])
        if r == 0 and graph.node_labels is None:
            size, edges_within, _ = ball_counts(graph, 1)[:, 0].unbind(1)
            name = mixed(mixed(name + size) + edges_within)
        names.append(name)
    return [shifted(name, 33).int() for name in names]


ODD = 0x9E3779B97F4A7C15 - 2**64
"""Its bits are spread evenly; products with it tell columns apart."""


def _of_labels(labels: Int[Tensor, "rows _"] | None, rows: int, device: torch.device) -> Int[Tensor, "rows"]:
    """One number for all labels of a row; the same for all rows that have none."""
    if labels is None:
        return torch.full((rows,), ODD, device=device)
    column = torch.arange(1, labels.shape[1] + 1, device=device) * ODD
    return mixed(labels.long() + column).sum(dim=1)


def mixed(x: Int[Tensor, "rows *columns"]) -> Int[Tensor, "rows *columns"]:
    """Every bit of the outcome depends on every bit of x (the finaliser of splitmix64)."""
    x = (x ^ shifted(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ shifted(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ shifted(x, 31)


def shifted(x: Int[Tensor, "rows *columns"], bits: int) -> Int[Tensor, "rows *columns"]:
    """x, its 64 bits shifted to the right and zeros brought in."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
