"""GIN, the baseline to beat.

Xu, Hu, Leskovec, Jegelka: How Powerful are Graph Neural Networks?, 2019. Differs from the original in its readout (the
last layer's nodes, not every layer's), and in reading edge columns where there are any (GINE).
"""

from dataclasses import dataclass
from typing import Annotated

from mnagt.graphs.features import Features
from mnagt.models.config import ReadoutModelConfig
from mnagt.nn.convolutions import Block, convolution
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction, OneOf


@dataclass(frozen=True)
class GinConfig(ReadoutModelConfig):
    conv: Annotated[str, OneOf(("auto", "gin", "gine"))] = "auto"
    """gin, gine (reads edges); auto is gine where edges carry columns."""

    head_dropout: Fraction = 0.0
    """Share of the head's hidden units dropped in training."""


def gin(config: GinConfig, features: Features, outputs: int) -> GraphModel:
    """Sums over neighbours through small networks, layer after layer."""

    def layer() -> Block:
        return Block(convolution(config.conv, config.dim, features.edges), config.dim, config.dropout)

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        make_head(default_head(config.dim, outputs), config.dim, config.dim, outputs, config.head_dropout),
        features,
    )
