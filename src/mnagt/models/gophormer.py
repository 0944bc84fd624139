"""Gophormer's proximity-enhanced attention, on whole graphs.

Zhao et al.: Gophormer: Ego-Graph Transformer for Node Classification, 2021. Differs from the original, which samples
ego-graphs around a node and classifies it, in attention over all nodes of a graph and a readout. Its global nodes, its
sampling and its consistency loss are left out.
"""

from dataclasses import dataclass

from mnagt.attention.biases import ProximityBias
from mnagt.attention.kernels import Hop
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.features import Features
from mnagt.models.builders import make_layer, make_model
from mnagt.models.config import Repeats, TransformerLayerConfig
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import Layer


@dataclass(frozen=True)
class GophormerConfig(TransformerLayerConfig):
    views: Repeats = 4
    """M: the powers 0 to M - 1 of the adjacency enter the attention scores."""


def gophormer(config: GophormerConfig, features: Features, outputs: int) -> GraphModel:
    """Proximity-enhanced attention: M powers of the adjacency in the scores."""

    def layer() -> Layer:
        bias = ProximityBias(config.heads, config.views)
        attention = MultiKernelAttention(config.dim, [Hop(0)], heads=config.heads, head_dim=config.head_dim, bias=bias)
        return make_layer(config, attention)

    return make_model(config, features, outputs, (layer() for _ in range(config.depth)), head_dropout=config.dropout)
