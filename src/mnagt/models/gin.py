"""GIN: sums over neighbours.

Xu, Hu, Leskovec, Jegelka: How Powerful are Graph Neural Networks?, 2019. Differs from the original in its readout (the
last layer's nodes, not every layer's), in reading edge columns (GINE), and in WL subtree features beside the readout,
if ``wl_iterations`` asks for them.
"""

from dataclasses import dataclass
from typing import Annotated

from mnagt.graphs.features import Features
from mnagt.models.builders import make_blocks, make_model
from mnagt.models.config import ConvolutionConfig, DescriptorConfig, HeadDropoutConfig, ReadoutConfig, WLConfig
from mnagt.nn.convolutions import convolution
from mnagt.nn.graph_model import GraphModel
from mnagt.settings import OneOf


@dataclass(frozen=True)
class GinConfig(WLConfig, DescriptorConfig, ReadoutConfig, ConvolutionConfig, HeadDropoutConfig):
    """Settings of ``gin``.

    >>> GinConfig(conv="gine").conv
    'gine'
    """

    conv: Annotated[str, OneOf(("auto", "gin", "gine"))] = "auto"
    """gin, gine (reads edges); auto is gine where edges carry columns."""


def gin(config: GinConfig, features: Features, outputs: int) -> GraphModel:
    """Sums over neighbours through small networks."""
    layers = make_blocks(config, lambda: convolution(config.conv, config.dim, features.edges))
    return make_model(config, features, outputs, layers, head_dropout=config.head_dropout)
