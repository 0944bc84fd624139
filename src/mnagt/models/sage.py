"""GraphSAGE: each node beside the mean of its neighbours.

Hamilton, Ying, Leskovec: Inductive Representation Learning on Large Graphs, 2017. Differs from the original, which
labels nodes of graphs too large to see whole, in taking all neighbours, in BatchNorm for its scaling to unit length, in
a readout, and in reading edge columns where there are any.
"""

from dataclasses import dataclass

from mnagt.graphs.features import Features
from mnagt.models.convolutions import SAGE, Block
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, one_of


@dataclass(frozen=True)
class SageConfig:
    dim: int = 64
    """Width of node vectors."""
    depth: int = 4
    """Layers."""
    reads_edges: bool = True
    """Read edge columns where there are any."""
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
        one_of(self, readout=READOUTS)


def sage(config: SageConfig, features: Features, outputs: int) -> GraphModel:
    """A map of each node plus a map of its neighbours' mean, layer after layer."""
    edges = features.edges if config.reads_edges else None

    def layer() -> Block:
        return Block(SAGE(config.dim, edges), config.dim, config.dropout)

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs, config.head_dropout),
        features,
    )
