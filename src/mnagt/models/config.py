"""Settings that models have in common."""

from dataclasses import dataclass
from typing import Annotated

from mnagt.nn.convolutions import CONVOLUTIONS
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
ConvolutionName = Annotated[str, OneOf(("auto", *CONVOLUTIONS))]


@dataclass(frozen=True)
class ModelConfig(Settings):
    """Width, depth and dropout of a model."""

    dim: PositiveInt = 64
    """Width of node vectors."""
    depth: Repeats = 4
    """Layers."""
    dropout: Fraction = 0.0
    """Share of a layer's output dropped in training."""


@dataclass(frozen=True)
class ReadoutModelConfig(ModelConfig):
    """The same of a model whose readout can be chosen."""

    readout: ReadoutName = "sum"
    """From node vectors to a graph vector."""
