"""GIN, the baseline to beat.

Xu, Hu, Leskovec, Jegelka: How Powerful are Graph Neural Networks?, 2019. Differs from the original in its readout (the
last layer's nodes, not every layer's), and in reading edge columns where there are any (GINE).
"""

from dataclasses import dataclass

from mnagt.graphs.features import Features
from mnagt.models.convolutions import Block, convolution
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, one_of


@dataclass(frozen=True)
class GinConfig:
    dim: int = 64
    """Width of node vectors."""
    depth: int = 4
    """Layers."""
    conv: str = "auto"
    """gin, gine (reads edges); auto is gine where edges carry columns."""
    readout: str = "sum"
    """From nodes to a graph: sum, mean, max, joined (all three), attention, virtual or cls."""
    dropout: float = 0.0
    """Share of a layer's output dropped in training."""

    head_dropout: float = 0.0
    """Share of the head's hidden units dropped in training."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim", "depth")
        at_least(self, 0, "dropout", "head_dropout")
        below(self, 1, "dropout", "head_dropout")
        one_of(self, conv=("auto", "gin", "gine"), readout=READOUTS)


def gin(config: GinConfig, features: Features, outputs: int) -> GraphModel:
    """Sums over neighbours through small networks, layer after layer."""

    def layer() -> Block:
        return Block(convolution(config.conv, config.dim, features.edges), config.dim, config.dropout)

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs, config.head_dropout),
        features,
    )
