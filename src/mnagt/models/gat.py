"""GAT: neighbours weighed by attention.

Veličković, Cucurull, Casanova, Romero, Liò, Bengio: Graph Attention Networks, 2018. Differs from the original, which
labels nodes, in BatchNorm and ReLU for ELU, in a readout, in dropping whole outputs and no attention weights, and in
scoring edge columns where there are any (as PyTorch Geometric does).
"""

from dataclasses import dataclass

from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.models.convolutions import GAT, Block
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, one_of


@dataclass(frozen=True)
class GatConfig:
    dim: int = 64
    """Width of node vectors."""
    depth: int = 4
    """Layers."""
    heads: int = 4
    """Attention heads; they divide the width of nodes between them."""
    reads_edges: bool = True
    """Read edge columns where there are any."""
    readout: str = "sum"
    """From nodes to a graph: sum, mean, max, joined (all three), attention, virtual or cls."""
    dropout: float = 0.0
    """Share of a layer's output dropped in training."""
    head_dropout: float = 0.0
    """Share of the head's hidden units dropped in training."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim", "depth", "heads")
        if self.dim % self.heads:
            raise InputError(f"heads must divide dim, got {self.heads} for {self.dim}")
        at_least(self, 0, "dropout", "head_dropout")
        below(self, 1, "dropout", "head_dropout")
        one_of(self, readout=READOUTS)


def gat(config: GatConfig, features: Features, outputs: int) -> GraphModel:
    """Neighbours and oneself, weighed by learned scores, layer after layer."""
    edges = features.edges if config.reads_edges else None

    def layer() -> Block:
        return Block(GAT(config.dim, edges, heads=config.heads), config.dim, config.dropout)

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs, config.head_dropout),
        features,
    )
