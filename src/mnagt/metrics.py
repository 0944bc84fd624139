"""Metrics of predictions against targets.

The tests compare them with scikit-learn, which takes 1.5 s to import and loops over columns in Python. These run on the
device of the tensors.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Scores = Float[Tensor, "*tasks graphs"]
Flags = Bool[Tensor, "*tasks graphs"]
Counts = Float[Tensor, "*tasks graphs_and_none"]


def accuracy(predicted: Int[Tensor, "graphs"], target: Int[Tensor, "graphs"]) -> float:
    """Share of graphs whose predicted class is the target.

    >>> accuracy(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 1, 1]))
    0.75
    """
    return (predicted == target).double().mean().item()


def roc_auc(score: Scores, is_positive: Flags, is_labelled: Flags | None = None) -> Float[Tensor, "*tasks"]:
    """Area under the ROC curve, equal scores counting half; NaN where there are no positives or no negatives.

    >>> roc_auc(torch.tensor([0.1, 0.4, 0.3, 0.8]), torch.tensor([False, False, True, True])).item()
    0.75
    """
    true, false = _cumulative_counts(score, is_positive, is_labelled)
    area = (false.diff() * (true[..., 1:] + true[..., :-1])).sum(dim=-1) / 2
    return area / (true[..., -1] * false[..., -1])


def average_precision(score: Scores, is_positive: Flags, is_labelled: Flags | None = None) -> Float[Tensor, "*tasks"]:
    """Area under the precision-recall curve, by steps; equal scores are one step. NaN without a positive.

    >>> average_precision(torch.tensor([0.1, 0.9, 0.3]), torch.tensor([True, True, False])).item()
    0.8333333333333333
    """
    true, false = _cumulative_counts(score, is_positive, is_labelled)
    precision = (true / (true + false).clamp(min=1))[..., 1:]
    return (true.diff() * precision).sum(dim=-1) / true[..., -1]


def _cumulative_counts(score: Scores, is_positive: Flags, is_labelled: Flags | None) -> tuple[Counts, Counts]:
    """Positives and negatives among the 0, 1, 2, ... highest scores; equal scores are counted together."""
    score, order = score.sort(dim=-1, descending=True)
    is_last = F.pad(score[..., 1:] != score[..., :-1], (0, 1), value=True)
    is_negative = ~is_positive
    if is_labelled is not None:
        is_positive, is_negative = is_positive & is_labelled, is_negative & is_labelled

    def count(which: Flags) -> Counts:
        counts = which.gather(-1, order).cumsum(dim=-1)
        return F.pad(counts.where(is_last, 0).cummax(dim=-1).values, (1, 0)).double()

    return count(is_positive), count(is_negative)


def set_f1(predicted: Int[Tensor, "graphs words"], target: Int[Tensor, "graphs target_words"]) -> dict[str, float]:
    """F1, precision and recall between two sets of keys for each graph, averaged over graphs.

    Negative keys are padding. Precision is 0 where the predicted set is empty, recall where the target set is.

    >>> set_f1(torch.tensor([[3, 5]]), torch.tensor([[5, -1]]))["precision"]
    0.5
    """
    predicted, target = _distinct(predicted), _distinct(target)
    hits = ((predicted[:, :, None] == target[:, None, :]) & (predicted >= 0)[:, :, None]).sum(dim=(1, 2)).double()
    precision = hits / (predicted >= 0).sum(dim=1).clamp(min=1)
    recall = hits / (target >= 0).sum(dim=1).clamp(min=1)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    return {"f1": f1.mean().item(), "precision": precision.mean().item(), "recall": recall.mean().item()}


def _distinct(keys: Int[Tensor, "graphs words"]) -> Int[Tensor, "graphs words"]:
    """The keys of each row in order, -1 in place of repetitions."""
    keys = keys.sort(dim=1).values
    return keys.where(F.pad(keys[:, 1:] != keys[:, :-1], (1, 0), value=True), -1)


def rmse(predicted: Float[Tensor, "..."], target: Float[Tensor, "..."]) -> float:
    """Root mean squared error.

    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    0.0
    """
    return (predicted - target).double().square().mean().sqrt().item()


def mae(predicted: Float[Tensor, "..."], target: Float[Tensor, "..."]) -> float:
    """Mean absolute error.

    >>> mae(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    0.5
    """
    return (predicted - target).double().abs().mean().item()


class Reliability(NamedTuple):
    """How well predicted probabilities match frequencies; 0 is perfect.

    >>> Reliability(brier=0.2, ece=0.05).ece
    0.05
    """

    brier: float
    """Brier score: the mean squared difference between probabilities and targets."""
    ece: float
    """Expected calibration error, see ``expected_calibration_error``."""


def expected_calibration_error(
    probability: Float[Tensor, "predictions"], is_correct: Bool[Tensor, "predictions"], bins: int = 15
) -> float:
    """The mean over bins of equal width of the difference between mean probability and frequency, weighted by size.

    >>> expected_calibration_error(torch.tensor([0.75, 0.75]), torch.tensor([True, False]))
    0.25
    """
    index = (probability * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add(0, index, probability.double() - is_correct.double())
    return gap.abs().sum().item() / max(1, len(probability))
