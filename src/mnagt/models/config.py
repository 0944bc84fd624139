"""Settings that models have in common; a model's settings inherit those that it has."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.nn.convolutions import CONVOLUTIONS, resolve_convolution
from mnagt.nn.norms import NORMS
from mnagt.nn.readouts import READOUTS
from mnagt.settings import Fraction, Ge, Le, NonNegativeInt, OneOf, PositiveInt, Settings

MAX_REPEATS = 1000
"""A setting may come with somebody else's model; more layers than this are refused before they are built."""

Repeats = Annotated[int, Ge(1), Le(MAX_REPEATS)]
"""How often something is done: layers, steps, hops."""
OptionalRepeats = Annotated[int, Ge(0), Le(MAX_REPEATS)]
ReadoutName = Annotated[str, OneOf(READOUTS)]
NormName = Annotated[str, OneOf(NORMS)]
_Config = TypeVar("_Config", bound="WidthConfig")


@dataclass(frozen=True)
class WidthConfig(Settings):
    """Width of a model."""

    dim: PositiveInt = 64
    """Width of node vectors."""

    def resolve(self: _Config, features: Features, outputs: int) -> _Config:
        """The settings with values in place of 'auto' and None, for graphs with these features."""
        return replace(self, **self.automatic(features, outputs))

    def automatic(self, features: Features, outputs: int) -> dict[str, Any]:
        """The values that ``resolve`` puts in place; a class adds those of its own settings."""
        return {}


@dataclass(frozen=True)
class ModelConfig(WidthConfig):
    """Width, depth and dropout of a model with layers."""

    depth: Repeats = 4
    """Layers."""
    dropout: Fraction = 0.0
    """Share of a layer's output dropped in training."""


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

    def automatic(self, features: Features, outputs: int) -> dict[str, Any]:
        return super().automatic(features, outputs) | {"conv": resolve_convolution(self.conv, features.edges)}


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
class WLConfig(WidthConfig):
    """WL subtree features beside the readout."""

    wl_iterations: NonNegativeInt | None = 0
    """WL iterations whose subtree features the head reads with the readout; 0 for none. If it is none: 4 where nodes
    have labels, 1 where they have no features, else 0."""
    wl_vocabulary_size: PositiveInt = 8192
    """WL colours of each iteration that have a vector, at most: those that most training graphs have."""
    wl_min_graphs: PositiveInt = 2
    """Training graphs that must have a WL colour for it to have a vector."""
    wl_dropout: Fraction = 0.6
    """Share of WL colours left out in training."""

    def automatic(self, features: Features, outputs: int) -> dict[str, Any]:
        iterations = 4 if features.nodes.labels else 0 if features.nodes else 1
        iterations = iterations if self.wl_iterations is None else self.wl_iterations
        return super().automatic(features, outputs) | {"wl_iterations": iterations}


@dataclass(frozen=True)
class DescriptorConfig(WidthConfig):
    """Descriptors of the whole molecule beside the readout."""

    descriptors: tuple[str, ...] = ()
    """Numbers of the whole molecule beside the graph: rdkit2d (RDKit's descriptors), morgan (a Morgan fingerprint), the
    name of a column, or a table (my.csv) for all its columns of numbers; several with commas between."""
    descriptor_dropout: Fraction = 0.2
    """Share of them dropped in training."""


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
class SklearnConfig(Settings):
    """Settings of a model that scikit-learn fits: it has no epochs, and those of training do not concern it."""


@dataclass(frozen=True)
class GnnTransformerConfig(TransformerLayerConfig, ConvolutionConfig, AttentionDropoutConfig):
    """Transformer layers with message passing."""
