"""MNA-GT as printed.

Li, Chen, He: Adaptive Multi-Neighborhood Attention based Transformer for Graph Representation Learning, 2022.
Equations 1 to 12, read literally. Where the paper is silent: sigma of eq. 10 is tanh, projections are separate for each
kernel, the FFN is twice as wide, pooling is the mean, and ``max_hop`` 2 gives the three kernels that its section 4.3
calls usual.
"""

from dataclasses import dataclass

from mnagt.attention.kernels import Hop
from mnagt.attention.mixers import MIXERS
from mnagt.attention.multi_kernel import MultiKernelAttention, Projections
from mnagt.graphs.adjacency import Norm
from mnagt.graphs.features import Features
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.layer import Layer, Smooth, feed_forward
from mnagt.models.norms import LayerNorm
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, literals, one_of


@dataclass(frozen=True)
class PaperConfig:
    dim: int = 128
    """Width of node vectors (the paper: 128, 256 or 300)."""
    depth: int = 3
    """Layers (the paper: 2 to 5)."""
    max_hop: int = 2
    """c: kernels look 0 to c hops far, so there are c + 1 of them."""
    heads: int = 2
    """Heads of each kernel (the paper: 2 or 3)."""
    head_dim: int = 64
    """Width of a head; heads need not divide the width of nodes."""
    adjacency: Norm = "sym"
    """Normalisation of the adjacency: sym or row."""
    projections: Projections = "separate"
    """Query, key, value and output maps: separate for each kernel, or shared by all."""
    mixer: str = "adaptive"
    """How a node merges its kernels: adaptive, mean, sum or concat."""
    ffn: int = 2
    """Width of the feed-forward network, in widths of a node."""
    readout: str = "mean"
    """From nodes to a graph: mean, sum, max, attention, virtual or cls."""
    dropout: float = 0.2
    """Share of a branch's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim", "depth", "heads", "head_dim", "ffn")
        at_least(self, 0, "max_hop", "dropout", "attention_dropout")
        below(self, 1, "dropout", "attention_dropout")
        one_of(self, mixer=MIXERS, readout=READOUTS)
        literals(self)


def mnagt_paper(config: PaperConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by their 0- to c-hop neighbourhoods, and keeps ÂX beside what they bring."""

    def layer() -> Layer:
        kernels = [Hop(k) for k in range(config.max_hop + 1)]
        attention = MultiKernelAttention(
            config.dim,
            kernels,
            heads=config.heads,
            head_dim=config.head_dim,
            projections=config.projections,
            dropout=config.attention_dropout,
        )
        return Layer(
            attention,
            mixer=lookup(MIXERS, config.mixer, "mixer")(config.dim, len(kernels)),
            residual=Smooth(config.adjacency),
            ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=(LayerNorm(config.dim), LayerNorm(config.dim)),
            adjacency=config.adjacency,
            dropout=config.dropout,
        )

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs, config.dropout),
        features,
    )
