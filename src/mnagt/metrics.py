"""Scores of predictions against targets, as plain functions.

Written here and checked against scikit-learn in the tests: scikit-learn costs 1.5 s to import and loops over tasks in
Python, and these run where the tensors lie.
"""

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def accuracy(predicted: Int[Tensor, "graphs"], target: Int[Tensor, "graphs"]) -> float:
    """Share of graphs whose class was predicted."""
    return (predicted == target).double().mean().item()


def roc_auc(
    score: Float[Tensor, "*tasks graphs"],
    is_positive: Bool[Tensor, "*tasks graphs"],
    is_labelled: Bool[Tensor, "*tasks graphs"] | None = None,
) -> Float[Tensor, "*tasks"]:
    """Chance that a positive scores above a negative, ties counting half; NaN if one of the two is missing."""
    true, false = _found(score, is_positive, is_labelled)
    area = (false.diff() * (true[..., 1:] + true[..., :-1])).sum(dim=-1) / 2
    return area / (true[..., -1] * false[..., -1])


def average_precision(
    score: Float[Tensor, "*tasks graphs"],
    is_positive: Bool[Tensor, "*tasks graphs"],
    is_labelled: Bool[Tensor, "*tasks graphs"] | None = None,
) -> Float[Tensor, "*tasks"]:
    """Precision averaged over the recall steps, equal scores taken together; NaN without a positive."""
    true, false = _found(score, is_positive, is_labelled)
    precision = (true / (true + false).clamp(min=1))[..., 1:]
    return (true.diff() * precision).sum(dim=-1) / true[..., -1]


def _found(
    score: Float[Tensor, "*tasks graphs"],
    is_positive: Bool[Tensor, "*tasks graphs"],
    is_labelled: Bool[Tensor, "*tasks graphs"] | None,
) -> tuple[Float[Tensor, "*tasks graphs_and_none"], Float[Tensor, "*tasks graphs_and_none"]]:
    """Positives and negatives among the best 0, 1, 2, ... scores, as counted at the last equal score before."""
    score, order = score.sort(dim=-1, descending=True)
    is_last = F.pad(score[..., 1:] != score[..., :-1], (0, 1), value=True)
    is_negative = ~is_positive
    if is_labelled is not None:
        is_positive, is_negative = is_positive & is_labelled, is_negative & is_labelled

    def counted(which: Bool[Tensor, "*tasks graphs"]) -> Float[Tensor, "*tasks graphs_and_none"]:
        count = which.gather(-1, order).cumsum(dim=-1)
        return F.pad(count.where(is_last, 0).cummax(dim=-1).values, (1, 0)).double()

    return counted(is_positive), counted(is_negative)


def set_f1(said: Int[Tensor, "graphs said"], true: Int[Tensor, "graphs true"]) -> dict[str, float]:
    """F1, precision and recall between two sets of keys a graph, averaged over graphs; below 0 there is no key.

    Where a set is empty, what would be divided by its size is 0.
    """
    said, true = _distinct(said), _distinct(true)
    hits = ((said[:, :, None] == true[:, None, :]) & (said >= 0)[:, :, None]).sum(dim=(1, 2)).double()
    precision = hits / (said >= 0).sum(dim=1).clamp(min=1)
    recall = hits / (true >= 0).sum(dim=1).clamp(min=1)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    return {"f1": f1.mean().item(), "precision": precision.mean().item(), "recall": recall.mean().item()}


def _distinct(keys: Int[Tensor, "graphs some"]) -> Int[Tensor, "graphs some"]:
    """The keys of each row in order, -1 in place of those that came before."""
    keys = keys.sort(dim=1).values
    return keys.where(F.pad(keys[:, 1:] != keys[:, :-1], (1, 0), value=True), -1)


def rmse(predicted: Float[Tensor, "..."], target: Float[Tensor, "..."]) -> float:
    """Root of the mean squared error."""
    return (predicted - target).double().square().mean().sqrt().item()


def mae(predicted: Float[Tensor, "..."], target: Float[Tensor, "..."]) -> float:
    """Mean absolute error."""
    return (predicted - target).double().abs().mean().item()
