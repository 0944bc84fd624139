"""Settings that models have in common; a model's settings inherit those that it has."""

from dataclasses import dataclass, replace
from typing import Annotated

from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.nn.convolutions import CONVOLUTIONS, resolve_convolution
from mnagt.nn.norms import NORMS
from mnagt.nn.readouts import READOUTS
from mnagt.settings import Fraction, Ge, Le, OneOf, PositiveInt, Settings

MAX_REPEATS = 1000
"""A setting may come with somebody else's model; more layers than this are refused before they are built."""

Repeats = Annotated[int, Ge(1), Le(MAX_REPEATS)]
"""How often something is done: layers, steps, hops."""
OptionalRepeats = Annotated[int, Ge(0), Le(MAX_REPEATS)]
ReadoutName = Annotated[str, OneOf(READOUTS)]
NormName = Annotated[str, OneOf(NORMS)]


@dataclass(frozen=True)
class ModelConfig(Settings):
    """Width, depth and dropout of a model."""

    dim: PositiveInt = 64
    """Width of node vectors."""
    depth: Repeats = 4
    """Layers."""
    dropout: Fraction = 0.0
    """Share of a layer's output dropped in training."""

    def resolve(self, features: Features, outputs: int) -> "ModelConfig":
        """The settings with values in place of 'auto' and None, for graphs with these features."""
        return self


@dataclass(frozen=True)
class ReadoutConfig(ModelConfig):
    """A choice of readout."""

    readout: ReadoutName = "sum"
    """From node vectors to a graph vector."""


@dataclass(frozen=True)
class ConvolutionConfig(ModelConfig):
    """A choice of convolution."""

    conv: Annotated[str, OneOf(("auto", *CONVOLUTIONS))] = "auto"
    """Message passing: gin, gcn, gine and gcne (read edges); auto is gine where edges carry columns, else gin."""

    def resolve(self, features: Features, outputs: int) -> "ConvolutionConfig":
        return replace(self, conv=resolve_convolution(self.conv, features.edges))


@dataclass(frozen=True)
class EdgeConfig(ModelConfig):
    """Edge columns are read where there are any."""

    reads_edges: bool = True
    """Read edge columns where there are any."""

    def edge_columns(self, features: Features) -> Columns:
        """The edge columns that the model reads."""
        return features.edges if self.reads_edges else Columns()


@dataclass(frozen=True)
class HeadDropoutConfig(ModelConfig):
    """Dropout in the head."""

    head_dropout: Fraction = 0.0
    """Share of the head's hidden units dropped in training."""


@dataclass(frozen=True)
class SplitHeadsConfig(ModelConfig):
    """Attention heads that share the width of nodes evenly."""

    heads: PositiveInt = 4
    """Attention heads; they divide the width of nodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            raise InputError(f"heads must divide dim, got {self.heads} heads for a width of {self.dim}")


@dataclass(frozen=True)
class AttentionDropoutConfig(ModelConfig):
    """Dropout of attention weights."""

    attention_dropout: Fraction = 0.0
    """Share of attention weights dropped in training (slower on a CPU, whose fused kernels do without)."""


@dataclass(frozen=True)
class TransformerLayerConfig(ReadoutConfig):
    """Transformer layers with heads of any width."""

    heads: PositiveInt = 4
    """Attention heads of each kernel."""
    head_dim: PositiveInt = 16
    """Width of a head; heads need not divide the width of nodes."""
    ffn: PositiveInt = 2
    """Width of the feed-forward network, in widths of a node."""
    dropout: Fraction = 0.1


@dataclass(frozen=True)
class GnnTransformerConfig(TransformerLayerConfig, ConvolutionConfig, AttentionDropoutConfig):
    """Transformer layers with message passing."""
