"""GAT: neighbours weighed by attention.

Veličković, Cucurull, Casanova, Romero, Liò, Bengio: Graph Attention Networks, 2018. Differs from the original, which
labels nodes, in BatchNorm and ReLU for ELU, in a readout, in dropping whole outputs and no attention weights, and in
scoring edge columns where there are any (as PyTorch Geometric does).
"""

from dataclasses import dataclass

from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.models.config import ReadoutModelConfig
from mnagt.nn.convolutions import GAT, Block
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction, PositiveInt


@dataclass(frozen=True)
class GatConfig(ReadoutModelConfig):
    heads: PositiveInt = 4
    """Attention heads; they divide the width of nodes between them."""
    reads_edges: bool = True
    """Read edge columns where there are any."""
    head_dropout: Fraction = 0.0
    """Share of the head's hidden units dropped in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            raise InputError(f"heads must divide dim, got {self.heads} for {self.dim}")


def gat(config: GatConfig, features: Features, outputs: int) -> GraphModel:
    """Neighbours and oneself, weighed by learned scores, layer after layer."""
    edges = features.edges if config.reads_edges else None

    def layer() -> Block:
        return Block(GAT(config.dim, edges, heads=config.heads), config.dim, config.dropout)

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        make_head(default_head(config.dim, outputs), config.dim, config.dim, outputs, config.head_dropout),
        features,
    )
