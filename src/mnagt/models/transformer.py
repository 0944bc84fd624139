"""The original Transformer on the nodes of a graph, which does not read its edges.

Vaswani et al.: Attention Is All You Need, 2017; normalised before each branch, as in eqs. 11 and 12.
"""

from dataclasses import dataclass

from mnagt.attention.kernels import Hop
from mnagt.graphs.features import Features
from mnagt.models.builders import make_attention, make_layer, make_model
from mnagt.models.config import ReadoutName, Repeats, TransformerLayerConfig
from mnagt.nn.graph_model import GraphModel
from mnagt.settings import Fraction, PositiveInt


@dataclass(frozen=True)
class TransformerConfig(TransformerLayerConfig):
    """Settings of ``transformer``.

    >>> TransformerConfig(heads=2).heads
    2
    """

    dim: PositiveInt = 128
    depth: Repeats = 3
    heads: PositiveInt = 8
    readout: ReadoutName = "mean"
    dropout: Fraction = 0.2


def transformer(config: TransformerConfig, features: Features, outputs: int) -> GraphModel:
    """Attention over nodes, blind to edges."""
    layers = (make_layer(config, make_attention(config, [Hop(0)])) for _ in range(config.depth))
    return make_model(config, features, outputs, layers, head_dropout=config.dropout)
