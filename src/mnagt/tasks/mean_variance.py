"""Numbers with a standard deviation of their own: mean-variance estimation."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.errors import InputError
from mnagt.settings import OneOf
from mnagt.tasks.base import ScoreGroups, Task, divide
from mnagt.tasks.columns import NUMBER_METRICS, Regression, Values
from mnagt.tasks.target_column import TargetColumn

MAX_LOG_VARIANCE = 10.0
BETA = 0.5

Outputs = Float[Tensor, "*any twice_columns"]
Moments = tuple[Float[Tensor, "*any columns"], Float[Tensor, "*any columns"]]


@dataclass(frozen=True)
class MeanVariance(Regression):
    r"""Numbers as ``Regression``, each with a standard deviation: outputs are means and logarithms of variances.

    The loss is the negative log-likelihood of a normal distribution, in which each graph has the weight
    :math:`\sigma^{2\beta}`, not differentiated (Seitzer et al., 2022, with :math:`\beta` = 0.5): without it the mean is
    learned where the variance is small, and hardly anywhere else. Intervals are as wide as the deviation says. The
    members of an ensemble are mixed: their means differ by what the models do not know, which adds to the variance.

    >>> MeanVariance(("weight",), mean=(10.0,), std=(2.0,)).decode(torch.tensor([[1.5, 0.0]]))
    {'weight': [13.0], 'std weight': [2.0]}
    """

    metric: Annotated[str, OneOf(NUMBER_METRICS)] = "rmse"
    kind: ClassVar[str] = "mean-variance"
    is_parsable: ClassVar[bool] = False

    @classmethod
    def of(cls, task: Task) -> "MeanVariance":
        """The task ``task``, of numbers, with a deviation of each."""
        if type(task) is not Regression:
            raise InputError(f"uncertainty is for numbers without bounds, and the task is {task.kind}; leave it out")
        return cls(**{each.name: getattr(task, each.name) for each in fields(task)})

    @property
    def num_outputs(self) -> int:
        return 2 * len(self.names)

    @property
    def num_thresholds(self) -> int:
        return len(self.names)

    def can_score(self, other: Task) -> bool:
        return other.kind in (self.kind, Regression.kind) and self.target_names == other.target_names

    @classmethod
    def from_columns(cls, columns: Sequence[TargetColumn]) -> "MeanVariance":
        raise InputError(f"targets of kind {cls.kind!r} cannot be read from a table; read numbers")

    def moments(self, output: Outputs) -> Moments:
        """The mean and the standard deviation of each number, standardised."""
        mean, log_variance = output.chunk(2, dim=-1)
        return mean, (log_variance.clamp(-MAX_LOG_VARIANCE, MAX_LOG_VARIANCE) / 2).exp()

    def loss(self, output: Outputs, target: Values) -> Float[Tensor, ""]:
        mean, std = self.moments(output)
        error = mean - self.standardise(target.nan_to_num())
        likelihood = ((error / std).square() + 2 * std.log()) / 2
        weighted = likelihood * std.detach() ** (2 * BETA)
        return divide((weighted * self.cell_weights(target)).sum(), self.loss_weight(target))

    def compute_metrics(
        self,
        output: Float[Tensor, "*resamples graphs twice_columns"],
        target: Float[Tensor, "*resamples graphs columns"],
    ) -> dict[str, Tensor]:
        """As of ``Regression``, of the means."""
        return super().compute_metrics(self.moments(output)[0], target)

    def decode(self, output: Outputs) -> dict[str, list]:
        """The numbers, and half the width of the interval of one standard deviation on both sides."""
        mean, std = self.moments(output)
        half = (self.to_units(mean + std) - self.to_units(mean - std)) / 2
        deviations = dict(zip((f"std {name}" for name in self.names), half.T.tolist(), strict=True))
        return super().decode(mean) | deviations

    def to_probability(self, output: Outputs) -> Outputs:
        """The first two moments: their averages over models are those of the mixture."""
        mean, std = self.moments(output)
        return torch.cat([mean, std.square() + mean.square()], dim=-1)

    def from_probability(self, probability: Outputs) -> Outputs:
        mean, second = probability.chunk(2, dim=-1)
        return torch.cat([mean, (second - mean.square()).clamp(min=torch.finfo(mean.dtype).tiny).log()], dim=-1)

    def target_probability(self, target: Values) -> Values:
        raise InputError(f"a random forest and models of scikit-learn give no deviations, as {self.kind} needs them")

    def convert_output(self, output: Outputs, source: Task) -> Outputs:
        if not isinstance(source, MeanVariance) or source == self:
            return output
        mean, std = source.moments(output)
        low, middle, high = (self.standardise(source.to_units(value)) for value in (mean - std, mean, mean + std))
        return torch.cat([middle, 2 * ((high - low) / 2).clamp(min=torch.finfo(mean.dtype).tiny).log()], dim=-1)

    def conformal_scores(self, output: Outputs, target: Values) -> ScoreGroups:
        """The error of each column in standard deviations, after its transform."""
        mean, std = self.moments(output)
        errors = (mean - self.standardise(target)).abs() / std
        return [column[column.isfinite()] for column in errors.unbind(dim=1)]

    def interval_ends(
        self, output: Outputs, thresholds: Float[Tensor, "columns"]
    ) -> tuple[Float[Tensor, "graphs columns"], Float[Tensor, "graphs columns"]]:
        mean, std = (part.double() for part in self.moments(output))
        return self.to_units(mean - thresholds * std), self.to_units(mean + thresholds * std)

    def normal_thresholds(self, level: float) -> Float[Tensor, "columns"]:
        quantile = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))
        return quantile.expand(len(self.names))
