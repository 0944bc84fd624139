"""Scores of predictions against targets, as plain functions.

Written here and checked against scikit-learn in the tests: scikit-learn costs 1.5 s to import and loops over tasks in
Python, and these run where the tensors lie.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def accuracy(predicted: Int[Tensor, "graphs"], target: Int[Tensor, "graphs"]) -> float:
    """Share of graphs whose class was predicted."""
    return (predicted == target).double().mean().item()


def roc_auc(score: Float[Tensor, "graphs"], is_positive: Bool[Tensor, "graphs"]) -> float:
    """Chance that a positive scores above a negative, ties counting half; NaN if one of the two is missing."""
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if positives == 0 or negatives == 0:
        return float("nan")
    _, inverse, counts = score.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    rank = (last - (counts.double() - 1) / 2)[inverse]
    return (rank[is_positive].sum().item() - positives * (positives + 1) / 2) / (positives * negatives)


def average_precision(score: Float[Tensor, "graphs"], is_positive: Bool[Tensor, "graphs"]) -> float:
    """Precision averaged over the recall steps, equal scores taken together; NaN without a positive."""
    positives = int(is_positive.sum())
    if positives == 0:
        return float("nan")
    order = score.argsort(descending=True, stable=True)
    score, hits = score[order], is_positive[order].double()
    is_last = torch.cat([score[1:] != score[:-1], torch.ones(1, dtype=torch.bool, device=score.device)])
    true, found = hits.cumsum(0)[is_last], torch.arange(1, len(score) + 1, device=score.device)[is_last]
    recalled = torch.diff(true, prepend=true.new_zeros(1)) / positives
    return (recalled * true / found).sum().item()


def rmse(predicted: Float[Tensor, "..."], target: Float[Tensor, "..."]) -> float:
    """Root of the mean squared error."""
    return (predicted - target).double().square().mean().sqrt().item()


def mae(predicted: Float[Tensor, "..."], target: Float[Tensor, "..."]) -> float:
    """Mean absolute error."""
    return (predicted - target).double().abs().mean().item()
