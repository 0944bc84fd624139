"""GCN: neighbours averaged, layer after layer.

Kipf, Welling: Semi-Supervised Classification with Graph Convolutional Networks, 2017. Differs from the original, which
labels nodes, in a BatchNorm after each convolution and a readout, and in reading edge columns (as OGB's GCN does).
"""

from dataclasses import dataclass

from mnagt.graphs.features import Features
from mnagt.models.builders import make_blocks, make_model
from mnagt.models.config import EdgeConfig, HeadDropoutConfig, ReadoutConfig
from mnagt.nn.convolutions import GCN, GCNE
from mnagt.nn.graph_model import GraphModel


@dataclass(frozen=True)
class GcnConfig(ReadoutConfig, EdgeConfig, HeadDropoutConfig):
    """Settings of ``gcn``."""


def gcn(config: GcnConfig, features: Features, outputs: int) -> GraphModel:
    """Averages over neighbours."""
    edges = config.edge_columns(features)
    layers = make_blocks(config, lambda: (GCNE if edges else GCN)(config.dim, edges))
    return make_model(config, features, outputs, layers, head_dropout=config.head_dropout)
