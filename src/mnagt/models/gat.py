"""GAT: neighbours weighed by attention.

Veličković, Cucurull, Casanova, Romero, Liò, Bengio: Graph Attention Networks, 2018. Differs from the original, which
labels nodes, in BatchNorm and ReLU for ELU, in a readout, in dropout of whole outputs and not of attention weights, and
in scoring edge columns (as PyTorch Geometric does).
"""

from dataclasses import dataclass

from mnagt.graphs.features import Features
from mnagt.models.builders import make_blocks, make_model
from mnagt.models.config import EdgeConfig, HeadDropoutConfig, ReadoutConfig, SplitHeadsConfig
from mnagt.nn.convolutions import GAT
from mnagt.nn.graph_model import GraphModel


@dataclass(frozen=True)
class GatConfig(ReadoutConfig, EdgeConfig, HeadDropoutConfig, SplitHeadsConfig):
    """Settings of ``gat``."""


def gat(config: GatConfig, features: Features, outputs: int) -> GraphModel:
    """Neighbours weighed by learned scores."""
    edges = config.edge_columns(features)
    layers = make_blocks(config, lambda: GAT(config.dim, edges, heads=config.heads))
    return make_model(config, features, outputs, layers, head_dropout=config.head_dropout)
