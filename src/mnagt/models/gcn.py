"""GCN: neighbours averaged, layer after layer.

Kipf, Welling: Semi-Supervised Classification with Graph Convolutional Networks, 2017. Differs from the original, which
labels nodes, in a BatchNorm after each convolution and a readout, and in reading edge columns where there are any (as
OGB's GCN does).
"""

from dataclasses import dataclass

from mnagt.graphs.features import Features
from mnagt.models.config import ReadoutModelConfig
from mnagt.nn.convolutions import GCN, GCNE, Block
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction


@dataclass(frozen=True)
class GcnConfig(ReadoutModelConfig):
    reads_edges: bool = True
    """Read edge columns where there are any."""
    head_dropout: Fraction = 0.0
    """Share of the head's hidden units dropped in training."""


def gcn(config: GcnConfig, features: Features, outputs: int) -> GraphModel:
    """Averages over neighbours through linear maps, layer after layer."""
    conv = GCNE if config.reads_edges and features.edges else GCN

    def layer() -> Block:
        return Block(conv(config.dim, features.edges), config.dim, config.dropout)

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        make_head(default_head(config.dim, outputs), config.dim, config.dim, outputs, config.head_dropout),
        features,
    )
