"""Several targets for each graph, one output each: what labels and numbers share, and binary labels."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mnagt import metrics
from mnagt.errors import InputError, join_names, quote
from mnagt.settings import OneOf
from mnagt.tasks.base import ScoreGroups, Task, constant, describe_each, divide
from mnagt.tasks.explained_output import ExplainedOutput, choose_outputs
from mnagt.tasks.target_column import TargetColumn, parse_binary

Labels = Float[Tensor, "graphs labels"]

LABEL_METRICS = ("ap", "rocauc", "mcc", "f1", "brier", "ece")


@dataclass(frozen=True)
class ColumnTask(Task):
    """A task with one output for each column of the targets; NaN marks missing values."""

    names: tuple[str, ...]
    """The names of the columns."""
    target_weights: tuple[float, ...] = field(default=(), kw_only=True)
    """The weight of each column in the loss; empty where all weigh the same."""
    is_parsable: ClassVar[bool] = True
    expected_cell: ClassVar[str]
    """What a cell of a target column may hold, for messages."""

    @property
    def num_columns(self) -> int:
        return len(self.names)

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.names

    def cell_weights(self, target: Float[Tensor, "graphs targets"]) -> Shaped[Tensor, "graphs targets"]:
        """The weight of each target in the loss: that of its column, and 0 where it is missing."""
        is_labelled = target.isfinite()
        if not self.target_weights:
            return is_labelled
        return is_labelled * constant(self.target_weights, torch.float32, target.device)

    def loss_weight(self, target: Float[Tensor, "graphs targets"]) -> Float[Tensor, ""]:
        return self.cell_weights(target).sum().float()

    def with_target_weights(self, weights: tuple[float, ...]) -> "Task":
        check_target_weights(self.names, weights)
        return replace(self, target_weights=weights)

    def describe_targets(self, target: Float[Tensor, "graphs targets"]) -> str:
        columns = [column[column.isfinite()].double() for column in target.unbind(dim=1)]
        texts = [self._describe_values(column) if len(column) else "none" for column in columns]
        return describe_each(self.names, texts, "targets")

    @abstractmethod
    def _describe_values(self, values: Float[Tensor, "labelled"]) -> str:
        """These values of a column in a few words."""

    def target_columns(self, requested: Sequence[str] | None) -> Sequence[str]:
        return self.names if requested is None else requested

    def merge_targets(
        self, target: Float[Tensor, "graphs targets"], group: Int[Tensor, "graphs"]
    ) -> Float[Tensor, "groups targets"]:
        is_labelled, groups = target.isfinite(), int(group.max()) + 1 if len(group) else 0
        total, count = (
            torch.zeros(groups, target.shape[1], dtype=torch.double).index_add(0, group, values)
            for values in (target.nan_to_num().double(), is_labelled.double())
        )
        return (total / count).to(target.dtype)  # 0 / 0 is NaN: missing

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


def check_target_weights(names: Sequence[str], weights: Sequence[float]) -> None:
    """Refuse weights that are not one for each of the targets ``names``."""
    if len(weights) != len(names) or min(weights) < 0 or not sum(weights):
        raise InputError(
            f"target_weights must be a number of at least 0 for each of the {len(names)} targets, in their "
            f"order ({join_names(names)}), got {quote(weights)}"
        )


@dataclass(frozen=True)
class MultiLabel(ColumnTask):
    """Several binary labels for each graph, some missing (NaN): sigmoid, binary cross entropy, mean AP and ROC-AUC.

    Labels of which the evaluated graphs are all positive or all negative are left out of these means, as in OGB's
    evaluator, and of those of MCC and F1.

    >>> MultiLabel(("toxic", "soluble")).decode(torch.tensor([[0.0, 0.0]]))
    {'p(toxic)': [0.5], 'p(soluble)': [0.5]}
    """

    metric: Annotated[str, OneOf(LABEL_METRICS)] = "ap"
    """The score by which the best epoch is chosen."""
    weights: tuple[float, ...] = ()
    """The weight of a positive in the loss of each label; empty where it is 1."""
    kind: ClassVar[str] = "multi-label"
    thresholds_per_output: ClassVar[int] = 2
    link: ClassVar[Literal["identity", "logit", "log"] | None] = "logit"
    fitted_fields: ClassVar[tuple[str, ...]] = ("weights", "target_weights")
    expected_cell: ClassVar[str] = "0, 1"
    parse_cell = staticmethod(parse_binary)

    @property
    def column_kind(self) -> Literal["number", "label"] | None:
        return "label"

    def from_predicted_columns(self, predicted: Labels) -> Labels:
        return self.from_probability(predicted)

    def with_class_weights(self, target: Labels) -> "MultiLabel":
        """The weight of a positive is negatives / positives, or 1 for a label that has only one of the two."""
        positives, negatives = (target == 1).sum(dim=0), (target == 0).sum(dim=0)
        has_both = (positives > 0) & (negatives > 0)
        return replace(self, weights=tuple((negatives / positives).where(has_both, 1.0).tolist()))

    def with_plain_loss(self) -> "MultiLabel":
        return replace(self, weights=(), target_weights=())

    def sample_weights(self, probability: Labels) -> Labels:
        if not self.weights:
            return super().sample_weights(probability)
        return torch.where(probability == 1, torch.tensor(self.weights), 1.0)

    def _describe_values(self, values: Float[Tensor, "labelled"]) -> str:
        return f"{100 * values.mean().item():.0f} % positive"

    def count_classes(self, target: Labels) -> dict[str, int]:
        counts = zip(self.names, (target == 0).sum(dim=0).tolist(), (target == 1).sum(dim=0).tolist(), strict=True)
        return {f"{value} of {name}": each[value] for name, *each in counts for value in (0, 1)}

    def describe_precision(self, graphs: int) -> str:
        """The interval of a ROC-AUC of 0.5 with as many positives as negatives (Mann-Whitney)."""
        width = 1.96 * ((graphs + 1) / 3) ** 0.5 / graphs
        return f"a ROC-AUC measured on it has a 95 % interval of up to ±{min(width, 0.5):.2f}"

    def merge_targets(self, target: Labels, group: Int[Tensor, "graphs"]) -> Float[Tensor, "groups labels"]:
        share = super().merge_targets(target, group)
        return (share > 0.5).to(share.dtype).where(share.isfinite() & (share != 0.5), torch.nan)

    def loss(self, output: Labels, target: Labels) -> Float[Tensor, ""]:
        weight = constant(self.weights, output.dtype, output.device) if self.weights else None
        loss = F.binary_cross_entropy_with_logits(output, target.nan_to_num(), reduction="none", pos_weight=weight)
        return divide((loss * self.cell_weights(target)).sum(), self.loss_weight(target))

    @property
    def metric_names(self) -> tuple[str, ...]:
        return LABEL_METRICS

    def compute_metrics(
        self, output: Float[Tensor, "*resamples graphs labels"], target: Float[Tensor, "*resamples graphs labels"]
    ) -> dict[str, Tensor]:
        """AP, ROC-AUC, MCC and F1 as means over labels.

        Brier score and calibration error are those of the probabilities of positives, over all labels together.
        """
        score, label = output.transpose(-2, -1).contiguous(), target.transpose(-2, -1)
        is_positive, is_labelled = label > 0, label.isfinite()
        auc, ap = metrics.areas_under_curves(score, is_positive, is_labelled)
        classes = torch.where(is_labelled, is_positive.long(), -1)
        confusion = metrics.confusion_matrix((score > 0).long(), classes, 2)
        each = {"ap": ap, "rocauc": auc, "mcc": metrics.mcc(confusion), "f1": metrics.f1(confusion)[..., 1]}
        means = {name: values.where(auc.isfinite(), torch.nan).nanmean(dim=-1) for name, values in each.items()}
        probability = output.double().sigmoid().flatten(-2)
        is_positive, is_labelled = (target > 0).flatten(-2), target.isfinite().flatten(-2)
        brier = metrics.masked_mean((probability - is_positive.double()).square(), is_labelled)
        ece = metrics.expected_calibration_error(probability, is_positive, is_labelled)
        return means | {"brier": brier, "ece": ece}

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
