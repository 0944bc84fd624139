"""Gophormer's proximity-enhanced attention, on whole graphs.

Zhao et al.: Gophormer: Ego-Graph Transformer for Node Classification, 2021. What differs: the original samples
ego-graphs around a node and classifies it; here attention runs over all nodes of a graph, which is then pooled. Its
global nodes, its sampling and its consistency loss are left out.
"""

from dataclasses import dataclass

from mnagt.attention.biases import ProximityBias
from mnagt.attention.kernels import Hop
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.features import Features
from mnagt.models.config import ReadoutModelConfig, Repeats
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.layer import IdentityResidual, Layer, feed_forward
from mnagt.nn.norms import LayerNorm, pre_norms
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction, PositiveInt


@dataclass(frozen=True)
class GophormerConfig(ReadoutModelConfig):
    heads: PositiveInt = 4
    """Attention heads."""
    head_dim: PositiveInt = 16
    """Width of a head."""
    views: Repeats = 4
    """M: attention is told of the powers 0 to M - 1 of the adjacency."""
    ffn: PositiveInt = 2
    """Width of the feed-forward network, in widths of a node."""
    dropout: Fraction = 0.1


def gophormer(config: GophormerConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by themselves and by how near they are, in M views."""

    def layer() -> Layer:
        bias = ProximityBias(config.heads, config.views)
        return Layer(
            MultiKernelAttention(config.dim, [Hop(0)], heads=config.heads, head_dim=config.head_dim, bias=bias),
            mixer=Mean(config.dim, 1),
            residual=IdentityResidual(),
            ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=pre_norms(LayerNorm, config.dim),
            dropout=config.dropout,
        )

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        make_head(default_head(config.dim, outputs), config.dim, config.dim, outputs, config.dropout),
        features,
    )
