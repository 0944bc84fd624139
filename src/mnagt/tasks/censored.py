"""Numbers of which some are known by a bound only: >10, <0.1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mnagt.tasks.base import ScoreGroups, divide
from mnagt.tasks.regression import Regression, Values
from mnagt.tasks.target_column import BOUNDS, TargetColumn, parse_number

ValuesAndSides = Float[Tensor, "graphs twice_columns"]
"""The values of all columns, and after them the side of each: 1 for a lower bound (>), -1 for an upper one, else 0.

Both are NaN where a value is missing.
"""


@dataclass(frozen=True)
class CensoredRegression(Regression):
    """Numbers, some of them censored: above or below a bound.

    A prediction on the right side of a bound costs nothing, and one on the wrong side the squared distance to it.
    Scores, calibration and random forests leave censored values out.

    >>> task = CensoredRegression(("logS",), mean=(0.0,), std=(1.0,))
    >>> task.loss(torch.tensor([[12.0], [8.0]]), torch.tensor([[10.0, 1.0], [10.0, 1.0]])).item()
    2.0
    """

    kind: ClassVar[str] = "censored-regression"

    @property
    def num_columns(self) -> int:
        return 2 * len(self.names)

    def known_values(self, target: Float[Tensor, "*any twice_columns"]) -> Float[Tensor, "*any columns"]:
        """The values that are no bounds; NaN elsewhere."""
        values, side = target.chunk(2, dim=-1)
        return values.where(side == 0, torch.nan)

    def parse_targets(self, columns: Sequence[TargetColumn]) -> ValuesAndSides:
        expected = "neither a number, a bound (>10) nor empty; fix it"

        def parse_value(text: str) -> float | None:
            return parse_number(text.lstrip(BOUNDS))

        values = [column.parse(parse_value, math.nan, expected) for column in columns]
        sides = [[_parse_side(text) if text else math.nan for text in column.texts] for column in columns]
        return torch.tensor([*values, *sides], dtype=torch.float32).T.contiguous()

    def fit(self, target: ValuesAndSides) -> "Regression":
        """Mean and deviation are those of all values, bounds taken as they are."""
        return super().fit(target.chunk(2, dim=1)[0])

    def loss(self, output: Values, target: ValuesAndSides) -> Float[Tensor, ""]:
        values, side = target.chunk(2, dim=1)
        error = output - self.standardise(values.nan_to_num())
        is_right = (error * side) > 0
        error = error.square() * self.cell_weights(values) * ~is_right
        return divide(error.sum(), self.loss_weight(target))

    def loss_weight(self, target: ValuesAndSides) -> Float[Tensor, ""]:
        return super().loss_weight(target.chunk(2, dim=1)[0])

    def compute_metrics(
        self,
        output: Float[Tensor, "*resamples graphs columns"],
        target: Float[Tensor, "*resamples graphs twice_columns"],
    ) -> dict[str, Tensor]:
        """As of ``Regression``, over the values that are no bounds."""
        return super().compute_metrics(output, self.known_values(target))

    def target_probability(self, target: ValuesAndSides) -> Values:
        return super().target_probability(self.known_values(target))

    def conformal_scores(self, output: Values, target: ValuesAndSides) -> ScoreGroups:
        return super().conformal_scores(output, self.known_values(target))

    def find_outliers(self, target: ValuesAndSides) -> Bool[Tensor, "graphs columns"]:
        return super().find_outliers(self.known_values(target))

    def merge_targets(self, target: ValuesAndSides, group: Int[Tensor, "graphs"]) -> Float[Tensor, "groups twice"]:
        """The mean of the known values of a group; where there are none, the mean of bounds of one side."""
        values, side = target.chunk(2, dim=1)
        sides = super().merge_targets(side.where(values.isfinite(), torch.nan), group)
        uncensored = super().merge_targets(self.known_values(target), group)
        bounds = super().merge_targets(values, group).where(sides.abs() == 1, torch.nan)
        merged = uncensored.where(uncensored.isfinite(), bounds)
        sides = torch.where(uncensored.isfinite(), 0.0, sides).where(merged.isfinite(), torch.nan)
        return torch.cat([merged, sides], dim=1)

    def describe_targets(self, target: ValuesAndSides) -> str:
        values, side = target.chunk(2, dim=1)
        return f"{super().describe_targets(values)}, {int((side.abs() == 1).sum()):,} bounds"


def _parse_side(text: str) -> float:
    """The side of a bound: 1 for above it, -1 for below, 0 for a number."""
    return 1.0 if text[:1] in (">", "≥") else -1.0 if text[:1] in ("<", "≤") else 0.0
