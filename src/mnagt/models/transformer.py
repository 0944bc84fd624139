"""The original Transformer on the nodes of a graph, blind to its edges.

Vaswani et al.: Attention Is All You Need, 2017; normalised before each branch, as in eqs. 11 and 12.
"""

from dataclasses import dataclass

from mnagt.attention.kernels import Hop
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.features import Features
from mnagt.models.config import ReadoutModelConfig, ReadoutName, Repeats
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.layer import IdentityResidual, Layer, feed_forward
from mnagt.nn.norms import LayerNorm, pre_norms
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction, PositiveInt


@dataclass(frozen=True)
class TransformerConfig(ReadoutModelConfig):
    dim: PositiveInt = 128
    depth: Repeats = 3
    heads: PositiveInt = 8
    """Attention heads."""
    head_dim: PositiveInt = 16
    """Width of a head."""
    ffn: PositiveInt = 2
    """Width of the feed-forward network, in widths of a node."""
    readout: ReadoutName = "mean"
    dropout: Fraction = 0.2


def transformer(config: TransformerConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by themselves."""

    def layer() -> Layer:
        return Layer(
            MultiKernelAttention(config.dim, [Hop(0)], heads=config.heads, head_dim=config.head_dim),
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
