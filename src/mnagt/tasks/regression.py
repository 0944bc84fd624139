"""Several numbers for each graph."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mnagt import metrics
from mnagt.errors import InputError
from mnagt.settings import OneOf
from mnagt.tasks.base import IntervalCoverage, ScoreGroups, Task, constant, divide
from mnagt.tasks.columns import ColumnTask
from mnagt.tasks.explained_output import ExplainedOutput, choose_outputs
from mnagt.tasks.target_column import parse_number
from mnagt.tasks.target_transform import TRANSFORMS, apply_transform, fit_knots, invert_transform

MAX_DEVIATIONS = 10
"""Robust standard deviations (from the MAD) from the median beyond which a value is an outlier."""

NUMBER_METRICS = ("rmse", "mae", "r2", "spearman")

_UNITS = {"log": "logarithm", "rank": "normal score"}
"""What an explained output of transformed targets measures."""

Values = Float[Tensor, "graphs columns"]
AnyValues = Float[Tensor, "*resamples graphs columns"]


@dataclass(frozen=True)
class Regression(ColumnTask):
    """Several numbers for each graph, some missing (NaN): squared error; RMSE, MAE, R² and Spearman's correlation.

    A model learns standardised values. Scores and predictions are in the units of the targets.

    >>> Regression(("weight",), mean=(10.0,), std=(2.0,)).decode(torch.tensor([[1.5]]))
    {'weight': [13.0]}
    """

    mean: tuple[float, ...] = ()
    """The mean of each column over the training graphs; empty before ``fit``."""
    std: tuple[float, ...] = ()
    """The standard deviation of each column, likewise."""
    metric: Annotated[str, OneOf(NUMBER_METRICS)] = "rmse"
    transform: Annotated[str, OneOf(TRANSFORMS)] = "standardise"
    """What is standardised: the values, their logarithm, the normal scores of their quantiles, or nothing."""
    knots: tuple[float, ...] = ()
    """What ``rank`` knows of each column, end to end."""
    kind: ClassVar[str] = "regression"
    has_probability: ClassVar[bool] = False
    thresholds_per_output: ClassVar[int] = 1
    fitted_fields: ClassVar[tuple[str, ...]] = ("mean", "std", "transform", "knots", "target_weights")
    expected_cell: ClassVar[str] = "a number"
    parse_cell = staticmethod(parse_number)

    @property
    def column_kind(self) -> Literal["number", "label"] | None:
        return "number" if self.num_outputs == self.num_columns == len(self.names) else None

    def from_predicted_columns(self, predicted: Values) -> Values:
        return self.standardise(predicted)

    def fit(self, target: Values) -> "Regression":
        columns = [column[column.isfinite()].double() for column in target.unbind(dim=1)]
        for name, column in zip(self.names, columns, strict=True):
            if len(column) == 0:
                raise InputError(f"target {name!r} has no value in the training part; leave it out or split otherwise")
        knots = [fit_knots(*each) for each in zip(self.names, [self.transform] * len(columns), columns, strict=True)]
        if self.transform == "none":
            return replace(self, mean=(0.0,) * len(columns), std=(1.0,) * len(columns))
        columns = [
            apply_transform(self.transform, column[:, None], each)[:, 0]
            for column, each in zip(columns, knots, strict=True)
        ]
        mean = tuple(column.mean().item() for column in columns)
        std = tuple(column.std(correction=0).item() or 1.0 for column in columns)
        return replace(self, mean=mean, std=std, knots=sum(knots, ()))

    def with_target_transform(self, transform: str) -> "Regression":
        return replace(self, transform=transform)

    def with_uncertainty(self, kind: type[Task]) -> Task:
        if type(self) is not Regression:
            return super().with_uncertainty(kind)
        return kind(**{each.name: getattr(self, each.name) for each in fields(self)})

    def known_values(self, target: Tensor) -> AnyValues:
        """The targets that are numbers; NaN elsewhere."""
        return target

    def describe_precision(self, graphs: int) -> str:
        """The interval of a standard deviation of normal errors: 1.96 / sqrt(2 n) of itself."""
        return f"an RMSE measured on it has a 95 % interval of about ±{100 * 1.96 / (2 * graphs) ** 0.5:.0f} %"

    def find_outliers(self, target: Values) -> Bool[Tensor, "graphs columns"]:
        deviation = (target - target.nanmedian(dim=0).values).abs()
        robust = 1.4826 * deviation.nanmedian(dim=0).values  # the standard deviation, for normal values
        return (deviation > MAX_DEVIATIONS * robust) & (robust > 0)

    def _describe_values(self, values: Float[Tensor, "labelled"]) -> str:
        return f"mean {values.mean().item():.3g}, std {values.std(correction=0).item():.3g}"

    def _mean_and_std(self, like: Tensor) -> tuple[Float[Tensor, "columns"], Float[Tensor, "columns"]]:
        if not self.mean:
            return like.new_zeros(len(self.names)), like.new_ones(len(self.names))
        return constant(self.mean, like.dtype, like.device), constant(self.std, like.dtype, like.device)

    def standardise(self, value: AnyValues) -> AnyValues:
        """(value - mean) / std of each column, after its transform."""
        mean, std = self._mean_and_std(value)
        return (apply_transform(self.transform, value, self.knots) - mean) / std

    def to_units(self, output: AnyValues) -> AnyValues:
        """Outputs in the units of the targets: the inverse of ``standardise``."""
        mean, std = self._mean_and_std(output)
        return invert_transform(self.transform, output * std + mean, self.knots)

    def loss(self, output: Values, target: Values) -> Float[Tensor, ""]:
        error = (output - self.standardise(target.nan_to_num())).square()
        return divide((error * self.cell_weights(target)).sum(), self.loss_weight(target))

    @property
    def metric_names(self) -> tuple[str, ...]:
        return NUMBER_METRICS

    def compute_metrics(self, output: AnyValues, target: AnyValues) -> dict[str, Tensor]:
        """RMSE and MAE over all columns together; R² and Spearman's correlation as means over columns."""
        predicted, columns = self.to_units(output).flatten(-2), target.flatten(-2)
        values = {"rmse": metrics.rmse(predicted, columns), "mae": metrics.mae(predicted, columns)}
        predicted, columns = (x.transpose(-2, -1) for x in (self.to_units(output), target))
        for name, metric in (("r2", metrics.r2), ("spearman", metrics.spearman)):
            values[name] = metric(predicted, columns).nanmean(dim=-1)
        return values

    def decode(self, output: Values) -> dict[str, list]:
        return dict(zip(self.names, self.to_units(output).T.tolist(), strict=True))

    def target_probability(self, target: Values) -> Values:
        """The standardised targets."""
        return self.standardise(target)

    def convert_output(self, output: Values, source: Task) -> Values:
        """Outputs standardised with the mean and deviation of this task in place of those of ``source``."""
        if not isinstance(source, Regression) or source == self:
            return output
        return self.standardise(source.to_units(output))

    def conformal_scores(self, output: Values, target: Values) -> ScoreGroups:
        """The absolute error of each column, in its units."""
        return select_known((self.to_units(output) - target).abs(), target)

    def prediction_sets(
        self, output: Float[Tensor, "graphs outputs"], thresholds: Float[Tensor, "columns"], level: float
    ) -> dict[str, list]:
        """The ends of an interval around each number."""
        ends = dict(zip(("low", "high"), self.interval_ends(output, thresholds), strict=True))
        return {
            f"{name} {side}({level:g})": end[:, i].tolist()
            for i, name in enumerate(self.names)
            for side, end in ends.items()
        }

    def interval_ends(
        self, output: Float[Tensor, "graphs outputs"], thresholds: Float[Tensor, "columns"]
    ) -> tuple[Values, Values]:
        """Low and high ends of the intervals within ``thresholds``, in units."""
        values = self.to_units(output).double()
        return values - thresholds, values + thresholds

    def interval_coverage(
        self, output: Float[Tensor, "graphs outputs"], target: Tensor, thresholds: Float[Tensor, "columns"]
    ) -> dict[str, IntervalCoverage]:
        ends, target = self.interval_ends(output, thresholds), self.known_values(target)
        columns = zip(self.names, *(each.unbind(dim=1) for each in (*ends, target)), strict=True)
        return {name: _measure_coverage(*values) for name, *values in columns}

    def explained_outputs(
        self, output: Values, target: str | None = None, class_names: Sequence[str] = ()
    ) -> list[ExplainedOutput]:
        """The value of the first column, or of ``target``. Confidence falls as exp(-|change| / std)."""
        means, stds = self.mean or (0.0,) * len(self.names), self.std or (1.0,) * len(self.names)

        def explain_value(i: int, predicted: float) -> ExplainedOutput:
            return ExplainedOutput(
                self.names[i],
                f"{_UNITS.get(self.transform, 'units')} of {self.names[i]}",
                lambda out: out[:, i] * stds[i] + means[i],
                lambda out: (-(out[:, i] - predicted).abs()).exp(),
                is_number=True,
            )

        chosen = choose_outputs(target, (self.names,), "number", torch.zeros(len(output), dtype=torch.long))
        return [explain_value(i, row[i].item()) for i, row in zip(chosen, output, strict=True)]


def select_known(scores: Values, target: Values) -> ScoreGroups:
    """The conformal scores of each column where it has a target; what cannot be computed is infinite.

    Without infinite scores, thresholds would be those of the other graphs, and intervals too narrow.
    """
    scores = scores.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return [column[~cells.isnan()] for column, cells in zip(scores.unbind(dim=1), target.unbind(dim=1), strict=True)]


def _measure_coverage(
    low: Float[Tensor, "graphs"], high: Float[Tensor, "graphs"], target: Float[Tensor, "graphs"]
) -> IntervalCoverage:
    is_known, is_within = target.isfinite(), (low <= target) & (target <= high)
    share, width = is_within[is_known].double().mean().item(), (high - low)[is_known].mean().item()
    return IntervalCoverage(share, width, int(is_known.sum()))
