"""The number of a prediction that an explanation is about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError, quote

Output = Float[Tensor, "graphs outputs"]
"""What a model gives for each graph."""
Score = Callable[[Output], Float[Tensor, "graphs"]]


@dataclass(frozen=True)
class ExplainedOutput:
    """The number that an explanation divides among the nodes of a graph."""

    name: str
    """The class, target or words that it is about."""
    unit: str
    """The unit of ``score``."""
    score: Score
    """The number itself, from the outputs of a model."""
    confidence: Score
    """How much of the prediction is left in other outputs, from 0 to 1: of classes, their probability."""
    is_number: bool = False
    """Whether it is a number, whose change in either direction is a change of the prediction."""


def choose_outputs(
    target: str | None, names: tuple[Sequence[str], ...], kind: str, default: Int[Tensor, "graphs"]
) -> list[int]:
    """For each graph the index of ``target`` in one of the lists of names, or ``default`` without a target."""
    if target is None:
        return default.tolist()
    for candidates in names:
        if target in candidates:
            return [list(candidates).index(target)] * len(default)
    raise InputError(f"the model has no {kind} {quote(target)}; choose one of: {', '.join(names[-1])}")
