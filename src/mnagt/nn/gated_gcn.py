"""GatedGCN: message passing through gates, with vectors of edges that every layer changes."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from mnagt.dropout import Dropout
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns
from mnagt.graphs.sparse import take
from mnagt.linear import Linear
from mnagt.nn.encoders import EdgeEncoder
from mnagt.nn.norms import BatchNorm
from mnagt.nn.shapes import EdgeVectors, NodeVectors


class GatedGcn(nn.Module):
    r"""Messages through gates, a number for every edge and column. Edges have vectors, which the gates change.

    .. math:: g_e = A e + B x_u + C x_v, \qquad e' = e + \mathrm{ReLU}(\mathrm{norm}(g_e)), \qquad
              x'_v = x_v + \mathrm{ReLU}\Big(\mathrm{norm}\Big(U x_v +
              \frac{\sum_e \sigma(g_e) \odot V x_u}{\sum_e \sigma(g_e) + \epsilon}\Big)\Big)

    for edges :math:`e: u \to v`. No bias where a norm would undo it. The last layer leaves edges as they are: nothing
    reads them after it.
    """

    def __init__(self, dim: int, dropout: float = 0.0, *, is_last: bool = False, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.edge = Linear(dim, dim)  # A
        self.start, self.end = Linear(dim, dim, bias=False), Linear(dim, dim, bias=False)  # B, C
        self.own, self.sent = Linear(dim, dim, bias=False), Linear(dim, dim, bias=False)  # U, V
        self.norm = BatchNorm(dim, relu=True)
        self.norm_edge = None if is_last else BatchNorm(dim, relu=True, rows="edges")
        self.dropout, self.epsilon = Dropout(dropout), epsilon

    def forward(self, x: NodeVectors, edges: EdgeVectors, graph: GraphBatch) -> tuple[NodeVectors, EdgeVectors]:
        starts, ends = graph.edge_sources, graph.edges_into.transposed
        gate = self.edge(edges) + take(starts, self.start(x)) + take(ends, self.end(x))
        share = gate.sigmoid()
        received = graph.edges_into @ (share * take(starts, self.sent(x)))
        y = self.own(x) + received / (graph.edges_into @ share + self.epsilon)
        if self.norm_edge is not None:
            edges = edges + self.dropout(self.norm_edge(gate, graph))
        return x + self.dropout(self.norm(y, graph)), edges


class GatedStack(nn.Module):
    """Layers whose residual is ``GatedGcn``, with the vectors of edges that go along.

    Args:
        layers: modules with a ``residual``, a :class:`GatedGcn`, and a method ``combine(x, residual, graph)``.
        edges: the edge columns; without any, all edges start with one learned vector.
        dim: width of nodes and edges.
    """

    def __init__(self, layers: Sequence[nn.Module], edges: Columns, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.edges = EdgeEncoder(edges, dim) if edges else None
        self.no_columns = None if edges else nn.Parameter(torch.zeros(dim))

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        *_, (_, _, output) = self.steps(x, graph)
        return output

    def steps(self, x: NodeVectors, graph: GraphBatch) -> Iterator[tuple[nn.Module, NodeVectors, NodeVectors]]:
        """Each layer with its input and its output."""
        if self.no_columns is not None:
            edges = self.no_columns.expand(graph.num_edges, -1)
        else:
            assert self.edges is not None
            edges = self.edges(graph)
        layer: Any
        for layer in self.layers:
            input_vectors, (near, edges) = x, layer.residual(x, edges, graph)
            x = layer.combine(input_vectors, near, graph)
            yield layer, input_vectors, x
