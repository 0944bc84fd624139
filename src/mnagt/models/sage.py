"""GraphSAGE: each node beside the mean of its neighbours.

Hamilton, Ying, Leskovec: Inductive Representation Learning on Large Graphs, 2017. Differs from the original, which
labels nodes of graphs too large to see whole, in taking all neighbours, in BatchNorm for its scaling to unit length, in
a readout, and in reading edge columns.
"""

from dataclasses import dataclass

from mnagt.graphs.features import Features
from mnagt.models.builders import make_blocks, make_model
from mnagt.models.config import EdgeConfig, HeadDropoutConfig, ReadoutConfig
from mnagt.nn.convolutions import SAGE
from mnagt.nn.graph_model import GraphModel


@dataclass(frozen=True)
class SageConfig(ReadoutConfig, EdgeConfig, HeadDropoutConfig):
    """Settings of ``sage``."""


def sage(config: SageConfig, features: Features, outputs: int) -> GraphModel:
    """A map of each node plus a map of its neighbours' mean."""
    edges = config.edge_columns(features)
    layers = make_blocks(config, lambda: SAGE(config.dim, edges))
    return make_model(config, features, outputs, layers, head_dropout=config.head_dropout)
