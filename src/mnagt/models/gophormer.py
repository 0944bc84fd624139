"""Gophormer's proximity-enhanced attention, on whole graphs.

Zhao et al.: Gophormer: Ego-Graph Transformer for Node Classification, 2021. Differs from the original, which samples
ego-graphs around a node and classifies it, in attention over all nodes of a graph and a readout. Its global nodes, its
sampling and its consistency loss are left out.
"""

from dataclasses import dataclass

from mnagt.attention.biases import ProximityBias
from mnagt.attention.kernels import Hop
from mnagt.graphs.features import Features
from mnagt.models.builders import make_attention, make_layer, make_model
from mnagt.models.config import Repeats, TransformerLayerConfig
from mnagt.nn.graph_model import GraphModel


@dataclass(frozen=True)
class GophormerConfig(TransformerLayerConfig):
    views: Repeats = 4
    """M: the powers 0 to M - 1 of the adjacency enter the attention scores."""


def gophormer(config: GophormerConfig, features: Features, outputs: int) -> GraphModel:
    """Proximity-enhanced attention: M powers of the adjacency in the scores."""
    biases = (ProximityBias(config.heads, config.views) for _ in range(config.depth))
    layers = (make_layer(config, make_attention(config, [Hop(0)], bias=bias)) for bias in biases)
    return make_model(config, features, outputs, layers, head_dropout=config.dropout)
