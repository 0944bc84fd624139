"""Several numbers for each graph."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt import metrics
from mnagt.errors import InputError
from mnagt.tasks.base import ColumnTask, ExplainedOutput, ScoreGroups, Task, choose_outputs, constant, divide
from mnagt.tasks.target_column import parse_number

Values = Float[Tensor, "graphs columns"]


@dataclass(frozen=True)
class Regression(ColumnTask):
    """Several numbers for each graph, some missing (NaN): squared error, RMSE and MAE.

    A model learns standardised values. Scores and predictions are in the units of the targets.

    >>> Regression(("weight",), mean=(10.0,), std=(2.0,)).decode(torch.tensor([[1.5]]))
    {'weight': [13.0]}
    """

    mean: tuple[float, ...] = ()
    """The mean of each column over the training graphs; empty before ``fit``."""
    std: tuple[float, ...] = ()
    """The standard deviation of each column, likewise."""
    kind: ClassVar[str] = "regression"
    metric = "rmse"
    higher_is_better: ClassVar[bool] = False
    has_probability: ClassVar[bool] = False
    is_signed: ClassVar[bool] = True
    fitted_fields: ClassVar[tuple[str, ...]] = ("mean", "std")
    expected_cell: ClassVar[str] = "a number"
    parse_cell = staticmethod(parse_number)

    def fit(self, target: Values) -> "Regression":
        columns = [column[column.isfinite()].double() for column in target.unbind(dim=1)]
        for name, column in zip(self.names, columns, strict=True):
            if len(column) == 0:
                raise InputError(f"target {name!r} has no value in the training part; leave it out or split otherwise")
        mean = tuple(column.mean().item() for column in columns)
        std = tuple(column.std(correction=0).item() or 1.0 for column in columns)
        return replace(self, mean=mean, std=std)

    def _mean_and_std(self, like: Tensor) -> tuple[Float[Tensor, "columns"], Float[Tensor, "columns"]]:
        if not self.mean:
            return like.new_zeros(self.num_outputs), like.new_ones(self.num_outputs)
        return constant(self.mean, like.dtype, like.device), constant(self.std, like.dtype, like.device)

    def standardise(self, value: Values) -> Values:
        """(value - mean) / std of each column."""
        mean, std = self._mean_and_std(value)
        return (value - mean) / std

    def to_units(self, output: Values) -> Values:
        """Outputs in the units of the targets: the inverse of ``standardise``."""
        mean, std = self._mean_and_std(output)
        return output * std + mean

    def loss(self, output: Values, target: Values) -> Float[Tensor, ""]:
        error = (output - self.standardise(target.nan_to_num())).square()
        return divide((error * target.isfinite()).sum(), self.loss_weight(target))

    def scores(self, output: Values, target: Values) -> dict[str, float]:
        is_labelled = target.isfinite()
        predicted, target = self.to_units(output)[is_labelled], target[is_labelled]
        return {"rmse": metrics.rmse(predicted, target), "mae": metrics.mae(predicted, target)}

    def decode(self, output: Values) -> dict[str, list]:
        value = self.to_units(output).cpu()
        return {name: value[:, i].tolist() for i, name in enumerate(self.names)}

    def target_probability(self, target: Values) -> Values:
        """The standardised targets."""
        return self.standardise(target)

    def convert_output(self, output: Values, source: Task) -> Values:
        """Outputs standardised with the mean and deviation of this task in place of those of ``source``."""
        if not isinstance(source, Regression) or source == self:
            return output
        return self.standardise(source.to_units(output))

    @property
    def num_thresholds(self) -> int:
        return self.num_outputs

    def conformal_scores(self, output: Values, target: Values) -> ScoreGroups:
        """The absolute error of each column, in its units."""
        errors = (self.to_units(output) - target).abs()
        return [column[column.isfinite()] for column in errors.unbind(dim=1)]

    def prediction_sets(self, output: Values, thresholds: Float[Tensor, "columns"], level: float) -> dict[str, list]:
        """The ends of an interval around each number."""
        values = self.to_units(output).double()
        ends = {"low": values - thresholds, "high": values + thresholds}
        return {
            f"{name} {side}({level:g})": end[:, i].tolist()
            for i, name in enumerate(self.names)
            for side, end in ends.items()
        }

    def explained_outputs(
        self, output: Values, target: str | None = None, class_names: Sequence[str] = ()
    ) -> list[ExplainedOutput]:
        """The value of the first column, or of ``target``. Confidence falls as exp(-|change| / std)."""
        std = self.std or (1.0,) * self.num_outputs

        def explain_value(i: int, predicted: float) -> ExplainedOutput:
            return ExplainedOutput(
                self.names[i],
                f"units of {self.names[i]}",
                lambda out: out[:, i] * std[i],
                lambda out: (-(out[:, i] - predicted).abs()).exp(),
            )

        chosen = choose_outputs(target, (self.names,), "number", torch.zeros(len(output), dtype=torch.long))
        return [explain_value(i, row[i].item()) for i, row in zip(chosen, output, strict=True)]
