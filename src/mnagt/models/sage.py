"""GraphSAGE: each node beside the mean of its neighbours.

Hamilton, Ying, Leskovec: Inductive Representation Learning on Large Graphs, 2017. Differs from the original, which
labels nodes of graphs too large to see whole, in taking all neighbours, in BatchNorm for its scaling to unit length, in
a readout, and in reading edge columns where there are any.
"""

from dataclasses import dataclass

from mnagt.graphs.features import Features
from mnagt.models.config import ReadoutModelConfig
from mnagt.nn.convolutions import SAGE, Block
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction


@dataclass(frozen=True)
class SageConfig(ReadoutModelConfig):
    reads_edges: bool = True
    """Read edge columns where there are any."""
    head_dropout: Fraction = 0.0
    """Share of the head's hidden units dropped in training."""


def sage(config: SageConfig, features: Features, outputs: int) -> GraphModel:
    """A map of each node plus a map of its neighbours' mean, layer after layer."""
    edges = features.edges if config.reads_edges else None

    def layer() -> Block:
        return Block(SAGE(config.dim, edges), config.dim, config.dropout)

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        make_head(default_head(config.dim, outputs), config.dim, config.dim, outputs, config.head_dropout),
        features,
    )
