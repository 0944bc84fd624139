"""The original Transformer on the nodes of a graph, blind to its edges.

Vaswani et al.: Attention Is All You Need, 2017; normalised before each branch, as in eqs. 11 and 12.
"""

from dataclasses import dataclass

from mnagt.attention.kernels import Hop
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.features import Features
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.layer import Layer, Skip, feed_forward
from mnagt.models.norms import LayerNorm
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, one_of


@dataclass(frozen=True)
class TransformerConfig:
    dim: int = 128
    """Width of node vectors."""
    depth: int = 3
    """Layers."""
    heads: int = 8
    """Attention heads."""
    head_dim: int = 16
    """Width of a head."""
    ffn: int = 2
    """Width of the feed-forward network, in widths of a node."""
    readout: str = "mean"
    """From nodes to a graph: mean, sum, max, attention, virtual or cls."""
    dropout: float = 0.2
    """Share of a branch's output dropped in training."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim", "depth", "heads", "head_dim", "ffn")
        at_least(self, 0, "dropout")
        below(self, 1, "dropout")
        one_of(self, readout=READOUTS)


def transformer(config: TransformerConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by themselves."""

    def layer() -> Layer:
        return Layer(
            MultiKernelAttention(config.dim, [Hop(0)], heads=config.heads, head_dim=config.head_dim),
            mixer=Mean(config.dim, 1),
            residual=Skip(),
            ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=(LayerNorm(config.dim), LayerNorm(config.dim)),
            dropout=config.dropout,
        )

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs, config.dropout),
        features,
    )
