"""Several targets for each graph, one output each: binary labels, or numbers."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mnagt import metrics
from mnagt.errors import InputError
from mnagt.settings import OneOf
from mnagt.tasks.base import ExplainedOutput, ScoreGroups, Task, choose_outputs, constant, divide
from mnagt.tasks.target_column import TargetColumn, parse_binary, parse_number

Labels = Float[Tensor, "graphs labels"]
Values = Float[Tensor, "graphs columns"]


@dataclass(frozen=True)
class ColumnTask(Task):
    """A task with one output for each column of the targets; NaN marks missing values."""

    names: tuple[str, ...]
    is_parsable: ClassVar[bool] = True
    expected_cell: ClassVar[str]
    """What a cell of a target column may hold, for messages."""

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.names

    def loss_weight(self, target: Float[Tensor, "graphs targets"]) -> Float[Tensor, ""]:
        return target.isfinite().sum().float()

    def target_columns(self, requested: Sequence[str] | None) -> Sequence[str]:
        return self.names if requested is None else requested

    @classmethod
    def from_columns(cls, columns: Sequence[TargetColumn]) -> "ColumnTask":
        return cls(tuple(column.name for column in columns))

    def parse_targets(self, columns: Sequence[TargetColumn]) -> Float[Tensor, "graphs targets"]:
        expected = f"neither {self.expected_cell} nor empty; fix it"
        parsed = [column.parse(self.parse_cell, math.nan, expected) for column in columns]
        return torch.tensor(parsed, dtype=torch.float32).T.contiguous()

    @staticmethod
    @abstractmethod
    def parse_cell(text: str) -> float | None:
        """The target in a cell, or None."""


@dataclass(frozen=True)
class MultiLabel(ColumnTask):
    """Several binary labels for each graph, some missing (NaN): sigmoid, binary cross entropy, mean AP and ROC-AUC.

    Labels of which the evaluated graphs are all positive or all negative are left out of both means, as in OGB's
    evaluator.

    >>> MultiLabel(("toxic", "soluble")).decode(torch.tensor([[0.0, 0.0]]))
    {'p(toxic)': [0.5], 'p(soluble)': [0.5]}
    """

    metric: Annotated[str, OneOf(("ap", "rocauc"))] = "ap"
    weights: tuple[float, ...] = ()
    """The weight of a positive in the loss of each label; empty where it is 1."""
    kind: ClassVar[str] = "multi-label"
    thresholds_per_output: ClassVar[int] = 2
    link: ClassVar[Literal["identity", "logit", "log"]] = "logit"
    fitted_fields: ClassVar[tuple[str, ...]] = ("weights",)
    expected_cell: ClassVar[str] = "0, 1"
    parse_cell = staticmethod(parse_binary)

    def with_class_weights(self, target: Labels) -> "MultiLabel":
        """The weight of a positive is negatives / positives, or 1 for a label that has only one of the two."""
        positives, negatives = (target == 1).sum(dim=0), (target == 0).sum(dim=0)
        has_both = (positives > 0) & (negatives > 0)
        return replace(self, weights=tuple((negatives / positives).where(has_both, 1.0).tolist()))

    def with_plain_loss(self) -> "MultiLabel":
        return replace(self, weights=())

    def sample_weights(self, probability: Labels) -> Labels:
        if not self.weights:
            return super().sample_weights(probability)
        return torch.where(probability == 1, torch.tensor(self.weights), 1.0)

    def loss(self, output: Labels, target: Labels) -> Float[Tensor, ""]:
        weight = constant(self.weights, output.dtype, output.device) if self.weights else None
        loss = F.binary_cross_entropy_with_logits(output, target.nan_to_num(), reduction="none", pos_weight=weight)
        return divide((loss * target.isfinite()).sum(), self.loss_weight(target))

    def scores(self, output: Labels, target: Labels) -> dict[str, float]:
        score, is_positive, is_labelled = output.T.contiguous(), target.T > 0, target.T.isfinite()
        auc = metrics.roc_auc(score, is_positive, is_labelled)
        has_both = auc.isfinite()
        ap = metrics.average_precision(score, is_positive, is_labelled)
        return {"ap": ap[has_both].mean().item(), "rocauc": auc[has_both].mean().item()}

    def decode(self, output: Labels) -> dict[str, list]:
        columns = zip(self.names, output.sigmoid().T.tolist(), strict=True)
        return {f"p({name})": column for name, column in columns}

    def to_probability(self, output: Float[Tensor, "*any labels"]) -> Float[Tensor, "*any labels"]:
        return output.sigmoid()

    def from_probability(self, probability: Float[Tensor, "*any labels"]) -> Float[Tensor, "*any labels"]:
        return probability.logit(eps=torch.finfo(probability.dtype).eps)

    def target_probability(self, target: Labels) -> Labels:
        return target

    def conformal_scores(self, output: Labels, target: Labels) -> ScoreGroups:
        """One minus the probability of the label, for the positives and then the negatives of each label."""
        probability = output.sigmoid()
        scores = torch.stack([probability, 1 - probability], dim=2)  # of a negative, of a positive
        return [scores[target[:, i] == label, i, label] for i in range(self.num_outputs) for label in (1, 0)]

    def prediction_sets(
        self, output: Labels, thresholds: Float[Tensor, "twice_labels"], level: float
    ) -> dict[str, list]:
        """For each label "yes", "no" or "yes|no"; where neither is within its threshold, the more probable."""
        columns = {}
        for i, name in enumerate(self.names):
            probability = output[:, i].sigmoid().double()
            may_be_negative = probability <= thresholds[2 * i + 1]
            may_be_positive = (1 - probability <= thresholds[2 * i]) | (~may_be_negative & (probability > 0.5))
            rows = zip(may_be_positive.tolist(), may_be_negative.tolist(), strict=True)
            columns[f"{name} set({level:g})"] = [("yes|no" if no else "yes") if yes else "no" for yes, no in rows]
        return columns

    def reliability(self, output: Labels, target: Labels) -> metrics.Reliability:
        """Of the probabilities of positives, over all labels."""
        is_labelled = target.isfinite()
        probability, target = output.double().sigmoid()[is_labelled], target[is_labelled]
        brier = (probability - target).square().mean().item()
        return metrics.Reliability(brier, metrics.expected_calibration_error(probability, target > 0))

    def explained_outputs(
        self, output: Labels, target: str | None = None, class_names: Sequence[str] = ()
    ) -> list[ExplainedOutput]:
        """The log-odds of the most probable label, or of ``target``."""
        chosen = choose_outputs(target, (self.names,), "label", output.argmax(dim=1))
        return [
            ExplainedOutput(self.names[i], "log-odds", lambda out, i=i: out[:, i], lambda out, i=i: out[:, i].sigmoid())
            for i in chosen
        ]

    @classmethod
    def from_columns(cls, columns: Sequence[TargetColumn]) -> "MultiLabel":
        return cls(tuple(column.name for column in columns), "rocauc")


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
    thresholds_per_output: ClassVar[int] = 1
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
