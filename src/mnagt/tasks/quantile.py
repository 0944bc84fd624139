"""Numbers with quantiles of their own: quantile regression."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mnagt.tasks.base import constant, divide
from mnagt.tasks.regression import Values
from mnagt.tasks.uncertain import Sides, UncertainRegression, invert_softplus

LOW, HIGH = 0.05, 0.95
"""The quantiles beside the median, between which 90 % of the targets should lie."""

Outputs = Float[Tensor, "*any thrice_columns"]


@dataclass(frozen=True)
class QuantileRegression(UncertainRegression):
    r"""Numbers as ``Regression``, each as three quantiles, of 0.05, 0.5 and 0.95; the median is the prediction.

    The loss is the sum of their pinball losses, :math:`\max(\tau e, (\tau - 1) e)` for the error e. Outputs are medians
    and the distances of the other two below and above it, through softplus: quantiles never cross. Conformal intervals
    are the model's own, widened by a factor (Kivaranovic et al., 2020). An ensemble averages quantiles.

    >>> low = math.log(math.e - 1)  # softplus of it is 1
    >>> QuantileRegression(("weight",), mean=(10.0,), std=(2.0,)).decode(torch.tensor([[1.5, low, low]]))
    {'weight': [13.0], 'weight quantile(0.05)': [11.0], 'weight quantile(0.95)': [15.0]}
    """

    kind: ClassVar[str] = "quantile"
    outputs_per_column: ClassVar[int] = 3

    def sides(self, output: Outputs) -> Sides:
        median, below, above = output.chunk(3, dim=-1)
        return median, F.softplus(below), F.softplus(above)

    def with_sides(self, output: Outputs, sides: Sides) -> Outputs:
        median, below, above = sides
        return torch.cat([median, invert_softplus(below), invert_softplus(above)], dim=-1)

    def loss(self, output: Outputs, target: Values) -> Float[Tensor, ""]:
        median, below, above = self.sides(output)
        value, total = self.standardise(target.nan_to_num()), torch.zeros_like(median)
        for share, quantile in ((LOW, median - below), (0.5, median), (HIGH, median + above)):
            error = value - quantile
            total = total + torch.maximum(share * error, (share - 1) * error)
        return divide((total * self.cell_weights(target)).sum(), self.loss_weight(target))

    def decode(self, output: Outputs) -> dict[str, list]:
        """The medians, and the quantiles on both sides of each."""
        median, below, above = self.sides(output)
        ends = {LOW: self.to_units(median - below), HIGH: self.to_units(median + above)}
        columns = {
            f"{name} quantile({share:g})": end[:, i].tolist()
            for i, name in enumerate(self.names)
            for share, end in ends.items()
        }
        return super().decode(output) | columns

    def to_probability(self, output: Outputs) -> Outputs:
        """The medians and the distances to the other quantiles, which are averaged over models."""
        return torch.cat(self.sides(output), dim=-1)

    def from_probability(self, probability: Outputs) -> Outputs:
        median, below, above = probability.chunk(3, dim=-1)
        return self.with_sides(probability, (median, below, above))

    def model_thresholds(self, level: float) -> Float[Tensor, "columns"] | None:
        """1, at the level of the quantiles; None at others, of which the model says nothing."""
        if not math.isclose(level, HIGH - LOW):
            return None
        return constant((1.0,) * len(self.names), torch.float64, torch.device("cpu"))
