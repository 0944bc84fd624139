"""Several binary labels for each graph."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mnagt import metrics
from mnagt.settings import OneOf
from mnagt.tasks.base import ColumnTask, ExplainedOutput, ScoreGroups, choose_outputs, constant, divide
from mnagt.tasks.target_column import TargetColumn, parse_binary

Labels = Float[Tensor, "graphs labels"]


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
        probability = output.sigmoid().cpu()
        return {f"p({name})": probability[:, i].tolist() for i, name in enumerate(self.names)}

    def to_probability(self, output: Float[Tensor, "*any labels"]) -> Float[Tensor, "*any labels"]:
        return output.sigmoid()

    def from_probability(self, probability: Float[Tensor, "*any labels"]) -> Float[Tensor, "*any labels"]:
        return probability.logit(eps=torch.finfo(probability.dtype).eps)

    def target_probability(self, target: Labels) -> Labels:
        return target

    @property
    def num_thresholds(self) -> int:
        return 2 * self.num_outputs

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
