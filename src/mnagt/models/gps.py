"""GPS: in every layer message passing and attention side by side.

Rampášek, Galkin, Dwivedi, Luu, Wolf, Beaini: Recipe for a General, Powerful, Scalable Graph Transformer, 2022. The
layer is that of their code and of PyTorch Geometric's ``GPSConv``; ``conv = "gated"`` is the GatedGCN of their recipes
for molecules (Bresson, Laurent: Residual Gated Graph ConvNets, 2017).

GPS has a stack of its own: a layer adds two normalised branches, each with a residual. Differs from the original in
GIN's BatchNorm, in encodings (RWSE, LapPE) that go through a linear map and are added to the nodes, and in WL subtree
features beside the readout, if ``wl_iterations`` asks for them.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from mnagt.dropout import Dropout
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.models.builders import make_model
from mnagt.models.config import (
    AttentionDropoutConfig,
    ConvolutionConfig,
    DescriptorConfig,
    ReadoutConfig,
    ReadoutName,
    Repeats,
    SplitHeadsConfig,
    WLConfig,
)
from mnagt.nn.convolutions import CONVOLUTIONS, convolution
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.gated_gcn import GatedGcn, GatedStack
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import SelfAttention, feed_forward
from mnagt.nn.norms import BatchNorm
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import Fraction, NonNegativeInt, OneOf


@dataclass(frozen=True)
class GpsConfig(WLConfig, DescriptorConfig, ReadoutConfig, ConvolutionConfig, SplitHeadsConfig, AttentionDropoutConfig):
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

    @property
    def residual(self) -> nn.Module:
        """What ``GatedStack`` calls in place of ``conv``'s part of ``forward``."""
        return self.conv

    def combine(self, x: NodeVectors, near: NodeVectors, graph: GraphBatch) -> NodeVectors:
        """The layer, given what message passing makes of the nodes."""
        near = self.norm_conv(near, graph)
        far = self.norm_attention(x + self.dropout(self.attention(x, graph)), graph)
        z = near + far
        return self.norm_mlp(z + self.dropout(self.mlp(z)), graph)


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
    stack = [GatedStack(layers, features.edges, config.dim)] if is_gated else layers
    return make_model(config, features, outputs, stack, encoder=encoder, head_dropout=config.dropout)
