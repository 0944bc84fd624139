"""Numbers with a standard deviation of their own: mean-variance estimation."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.tasks.base import divide
from mnagt.tasks.regression import Values
from mnagt.tasks.uncertain import Sides, UncertainRegression

MAX_LOG_VARIANCE = 10.0
BETA = 0.5

Outputs = Float[Tensor, "*any twice_columns"]
Moments = tuple[Float[Tensor, "*any columns"], Float[Tensor, "*any columns"]]


@dataclass(frozen=True)
class MeanVariance(UncertainRegression):
    r"""Numbers as ``Regression``, each with a standard deviation: outputs are means and logarithms of variances.

    The loss is the negative log-likelihood of a normal distribution, in which each graph has the weight
    :math:`\sigma^{2\beta}`, not differentiated (Seitzer et al., 2022, with :math:`\beta` = 0.5): without it the mean is
    learned where the variance is small, and hardly anywhere else. Intervals are as wide as the deviation says. The
    members of an ensemble are mixed: their means differ by what the models do not know, which adds to the variance.

    >>> MeanVariance(("weight",), mean=(10.0,), std=(2.0,)).decode(torch.tensor([[1.5, 0.0]]))
    {'weight': [13.0], 'std weight': [2.0]}
    """

    kind: ClassVar[str] = "mean-variance"
    outputs_per_column: ClassVar[int] = 2

    def moments(self, output: Outputs) -> Moments:
        """The mean and the standard deviation of each number, standardised."""
        mean, log_variance = output.chunk(2, dim=-1)
        return mean, (log_variance.clamp(-MAX_LOG_VARIANCE, MAX_LOG_VARIANCE) / 2).exp()

    def sides(self, output: Outputs) -> Sides:
        mean, std = self.moments(output)
        return mean, std, std

    def with_sides(self, output: Outputs, sides: Sides) -> Outputs:
        mean, below, above = sides
        return torch.cat([mean, 2 * ((below + above) / 2).clamp(min=torch.finfo(mean.dtype).tiny).log()], dim=-1)

    def loss(self, output: Outputs, target: Values) -> Float[Tensor, ""]:
        mean, std = self.moments(output)
        error = mean - self.standardise(target.nan_to_num())
        likelihood = ((error / std).square() + 2 * std.log()) / 2
        weighted = likelihood * std.detach() ** (2 * BETA)
        return divide((weighted * self.cell_weights(target)).sum(), self.loss_weight(target))

    def decode(self, output: Outputs) -> dict[str, list]:
        """The numbers, and half the width of the interval of one standard deviation on both sides."""
        return super().decode(output) | self.half_widths(*self.moments(output), "std")

    def to_probability(self, output: Outputs) -> Outputs:
        """The first two moments: their averages over models are those of the mixture."""
        mean, std = self.moments(output)
        return torch.cat([mean, std.square() + mean.square()], dim=-1)

    def from_probability(self, probability: Outputs) -> Outputs:
        mean, second = probability.chunk(2, dim=-1)
        return torch.cat([mean, (second - mean.square()).clamp(min=torch.finfo(mean.dtype).tiny).log()], dim=-1)

    def model_thresholds(self, level: float) -> Float[Tensor, "columns"]:
        """Those of a normal distribution."""
        quantile = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))
        return quantile.expand(len(self.names))
