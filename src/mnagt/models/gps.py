"""GPS: in every layer message passing and attention side by side.

Rampášek, Galkin, Dwivedi, Luu, Wolf, Beaini: Recipe for a General, Powerful, Scalable Graph Transformer, 2022. The
layer is that of their code and of PyTorch Geometric's ``GPSConv``; ``conv = "gated"`` is the GatedGCN of their recipes
for molecules (Bresson, Laurent: Residual Gated Graph ConvNets, 2017).

GPS has a stack of its own: a layer adds two normalised branches, each with a residual. Differs from the original in
GIN's BatchNorm, and in encodings (RWSE, LapPE) that go through a linear map and are added to the nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from mnagt.dropout import Dropout
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.sparse import take
from mnagt.linear import Linear
from mnagt.models.builders import make_model
from mnagt.models.config import (
    AttentionDropoutConfig,
    ConvolutionConfig,
    ReadoutConfig,
    ReadoutName,
    Repeats,
    SplitHeadsConfig,
)
from mnagt.nn.convolutions import CONVOLUTIONS, convolution
from mnagt.nn.encoders import EdgeEncoder, NodeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import SelfAttention, feed_forward
from mnagt.nn.norms import BatchNorm
from mnagt.nn.shapes import EdgeVectors, NodeVectors
from mnagt.settings import Fraction, NonNegativeInt, OneOf


@dataclass(frozen=True)
class GpsConfig(ReadoutConfig, ConvolutionConfig, SplitHeadsConfig, AttentionDropoutConfig):
    depth: Repeats = 5
    conv: Annotated[str, OneOf({"auto", "gated", *CONVOLUTIONS})] = "auto"
    """Message passing beside attention: gin, gcn, gine and gcne (read edges), gated (reads edges, and changes them
    layer by layer); auto is gine where edges carry columns, else gin."""
    readout: ReadoutName = "mean"
    dropout: Fraction = 0.1
    random_walk: NonNegativeInt = 16
    """Random-walk return probabilities added to the nodes, this many steps; 0 for none."""
    laplacian: NonNegativeInt = 0
    """Laplacian eigenvectors added to the nodes, this many; 0 for none."""


class GpsLayer(nn.Module):
    r"""Message passing and attention, each with its residual and norm, added up; then a small network.

    .. math:: Z = \mathrm{norm}(X + \mathrm{conv}(X)) + \mathrm{norm}(X + \mathrm{attention}(X)), \qquad
              X' = \mathrm{norm}(Z + \mathrm{MLP}(Z))
    """

    def __init__(self, dim: int, conv: nn.Module, attention: SelfAttention, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv, self.attention = conv, attention
        self.mlp = feed_forward(dim, 2 * dim, dropout, nn.ReLU)
        self.norm_conv, self.norm_attention, self.norm_mlp = BatchNorm(dim), BatchNorm(dim), BatchNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return self.combine(x, x + self.dropout(self.conv(x, graph)), graph)

    def combine(self, x: NodeVectors, near: NodeVectors, graph: GraphBatch) -> NodeVectors:
        """The layer, given what message passing makes of the nodes."""
        near = self.norm_conv(near, graph)
        far = self.norm_attention(x + self.dropout(self.attention(x, graph)), graph)
        z = near + far
        return self.norm_mlp(z + self.dropout(self.mlp(z)), graph)


class GatedGcn(nn.Module):
    r"""Messages through gates, a number for every edge and column. Edges have vectors, which the gates change.

    .. math:: g_e = A e + B x_u + C x_v, \qquad e' = e + \mathrm{ReLU}(\mathrm{norm}(g_e)), \qquad
              x'_v = x_v + \mathrm{ReLU}\Big(\mathrm{norm}\Big(U x_v +
              \frac{\sum_e \sigma(g_e) \odot V x_u}{\sum_e \sigma(g_e) + \epsilon}\Big)\Big)

    for edges :math:`e: u \to v`. No bias where a norm would undo it. The last layer leaves edges as they are: nobody
    would read them.
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


class Gated(nn.Module):
    """Layers whose message passing is ``GatedGcn``, with the vectors of edges that go along."""

    def __init__(self, layers: Sequence[GpsLayer], edges: Columns, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.edges = EdgeEncoder(edges, dim) if edges else None
        self.no_columns = None if edges else nn.Parameter(torch.zeros(dim))

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        if self.no_columns is not None:
            edges = self.no_columns.expand(graph.num_edges, -1)
        else:
            assert self.edges is not None
            edges = self.edges(graph)
        for layer in self.layers:
            assert isinstance(layer, GpsLayer)
            near, edges = layer.conv(x, edges, graph)
            x = layer.combine(x, near, graph)
        return x


def gps(config: GpsConfig, features: Features, outputs: int) -> GraphModel:
    """Message passing and attention side by side."""
    is_gated = config.conv == "gated"

    def layer(*, is_last: bool) -> GpsLayer:
        attention = SelfAttention(config.dim, config.heads, config.attention_dropout)
        if is_gated:
            conv = GatedGcn(config.dim, config.dropout, is_last=is_last)
        else:
            conv = convolution(config.conv, config.dim, features.edges)
        return GpsLayer(config.dim, conv, attention, config.dropout)

    layers = [layer(is_last=depth + 1 == config.depth) for depth in range(config.depth)]
    encoder = NodeEncoder(features.nodes, config.dim, random_walk=config.random_walk, laplacian=config.laplacian)
    stack = [Gated(layers, features.edges, config.dim)] if is_gated else layers
    return make_model(config, features, outputs, stack, encoder=encoder, head_dropout=config.dropout)
