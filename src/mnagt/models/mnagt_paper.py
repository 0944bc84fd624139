"""MNA-GT as printed.

Li, Chen, He: Adaptive Multi-Neighborhood Attention based Transformer for Graph Representation Learning, 2022.
Equations 1 to 12, read literally. Where the paper is silent: sigma of eq. 10 is tanh by default, projections are
separate for each kernel, the FFN is twice as wide, pooling is the mean, and ``max_hop`` 2 gives the three kernels that
its section 4.3 calls usual.
"""

from dataclasses import dataclass
from typing import Annotated

from mnagt.attention.kernels import Hop
from mnagt.attention.mixers import ACTIVATIONS, MIXERS, Adaptive, Mixer
from mnagt.attention.multi_kernel import Projections
from mnagt.graphs.adjacency import Norm
from mnagt.graphs.features import Features
from mnagt.models.builders import make_attention, make_model
from mnagt.models.config import AttentionDropoutConfig, OptionalRepeats, ReadoutName, Repeats, TransformerLayerConfig
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import Layer, PropagatedResidual, feed_forward
from mnagt.nn.norms import LayerNorm, pre_norms
from mnagt.settings import Fraction, OneOf, PositiveInt


@dataclass(frozen=True)
class PaperConfig(TransformerLayerConfig, AttentionDropoutConfig):
    """Settings of ``mnagt-paper``.

    >>> PaperConfig(max_hop=1).max_hop
    1
    """

    dim: PositiveInt = 128
    depth: Repeats = 3
    """Layers (the paper: 2 to 5)."""
    max_hop: OptionalRepeats = 2
    """c: kernels look 0 to c hops far, so there are c + 1 of them."""
    heads: PositiveInt = 2
    """Heads of each kernel (the paper: 2 or 3)."""
    head_dim: PositiveInt = 64
    adjacency: Norm = "sym"
    """Normalisation of the adjacency: sym or row."""
    projections: Projections = "separate"
    """Query, key, value and output maps: separate for each kernel, or shared by all."""
    mixer: Annotated[str, OneOf(MIXERS)] = "adaptive"
    """How a node merges its kernels: adaptive, mean, sum or concat."""
    sigma: Annotated[str, OneOf(ACTIVATIONS)] = "tanh"
    """Activation in the adaptive mixer, sigma of eq. 10."""
    readout: ReadoutName = "mean"
    dropout: Fraction = 0.2


def mnagt_paper(config: PaperConfig, features: Features, outputs: int) -> GraphModel:
    """MNA-GT as printed, equations 1 to 12."""

    def mixer(kernels: int) -> Mixer:
        if config.mixer == "adaptive":
            return Adaptive(config.dim, kernels, config.sigma)
        return MIXERS[config.mixer](config.dim, kernels)

    def layer() -> Layer:
        kernels = [Hop(k) for k in range(config.max_hop + 1)]
        return Layer(
            make_attention(config, kernels, projections=config.projections),
            mixer=mixer(len(kernels)),
            residual=PropagatedResidual(config.adjacency),
            ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=pre_norms(LayerNorm, config.dim),
            adjacency=config.adjacency,
            dropout=config.dropout,
        )

    return make_model(config, features, outputs, (layer() for _ in range(config.depth)), head_dropout=config.dropout)
