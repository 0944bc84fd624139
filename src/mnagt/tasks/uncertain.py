"""Numbers that a model predicts with a measure of their uncertainty, from which intervals follow."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.errors import InputError
from mnagt.tasks.base import ScoreGroups, Task
from mnagt.tasks.regression import AnyValues, Regression, Values, select_known
from mnagt.tasks.target_column import TargetColumn

Outputs = Float[Tensor, "*any outputs"]
Sides = tuple[Float[Tensor, "*any columns"], Float[Tensor, "*any columns"], Float[Tensor, "*any columns"]]


@dataclass(frozen=True)
class UncertainRegression(Regression):
    """Numbers as ``Regression``, each with several outputs: the number, and what tells its uncertainty.

    A model's own interval reaches from the number to a distance below and above it (``sides``). Conformal thresholds
    count these distances, so that intervals are wider for some graphs than for others. The outputs of all columns for
    the numbers come first, then those for the next quantity.
    """

    is_parsable: ClassVar[bool] = False
    outputs_per_column: ClassVar[int]

    @property
    def num_outputs(self) -> int:
        return self.outputs_per_column * len(self.names)

    @property
    def num_thresholds(self) -> int:
        return len(self.names)

    def can_score(self, other: Task) -> bool:
        return other.kind in (self.kind, Regression.kind) and self.target_names == other.target_names

    @classmethod
    def from_columns(cls, columns: Sequence[TargetColumn]) -> "UncertainRegression":
        raise InputError(f"targets of kind {cls.kind!r} cannot be read from a table; read numbers")

    @abstractmethod
    def sides(self, output: Outputs) -> Sides:
        """Each number, and the distances from it to the ends of the model's own interval, standardised."""

    @abstractmethod
    def with_sides(self, output: Outputs, sides: Sides) -> Outputs:
        """``output`` changed so that ``sides`` of it are these."""

    def compute_metrics(
        self,
        output: Float[Tensor, "*resamples graphs outputs"],
        target: Float[Tensor, "*resamples graphs columns"],
    ) -> dict[str, Tensor]:
        """As of ``Regression``, of the numbers."""
        return super().compute_metrics(output[..., : len(self.names)], target)

    def decode(self, output: Outputs) -> dict[str, list]:
        return super().decode(output[..., : len(self.names)])

    def half_widths(self, value: AnyValues, deviation: AnyValues, prefix: str) -> dict[str, list]:
        """Half the width, in units, of the intervals of one deviation on both sides, as columns of a table."""
        half = (self.to_units(value + deviation) - self.to_units(value - deviation)) / 2
        return dict(zip((f"{prefix} {name}" for name in self.names), half.T.tolist(), strict=True))

    def target_probability(self, target: Values) -> Values:
        raise InputError(f"a random forest and models of scikit-learn give no deviations, as {self.kind} needs them")

    def convert_output(self, output: Outputs, source: Task) -> Outputs:
        if not isinstance(source, UncertainRegression) or source == self:
            return output
        value, below, above = source.sides(output)
        low, value, high = (self.standardise(source.to_units(end)) for end in (value - below, value, value + above))
        return self.with_sides(output, (value, value - low, high - value))

    def conformal_scores(self, output: Outputs, target: Values) -> ScoreGroups:
        """The error of each column as a multiple of the distance to the end of the interval on its side."""
        value, below, above = self.sides(output)
        error = self.standardise(target) - value
        scores = error.abs() / torch.where(error < 0, below, above)
        return select_known(scores, target)

    def interval_ends(self, output: Outputs, thresholds: Float[Tensor, "columns"]) -> tuple[Values, Values]:
        value, below, above = (part.double() for part in self.sides(output))
        return self.to_units(value - thresholds * below), self.to_units(value + thresholds * above)


def invert_softplus(value: AnyValues) -> AnyValues:
    """The inverse of softplus: ``log(exp(value) - 1)``."""
    value = value.clamp(min=torch.finfo(value.dtype).tiny)
    return value + (-torch.expm1(-value)).log()
