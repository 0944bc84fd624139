"""Metrics of predictions against targets.

The tests compare them with scikit-learn, which takes 1.5 s to import and loops over columns in Python. These run on the
device of the tensors.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Scores = Float[Tensor, "*tasks graphs"]
Flags = Bool[Tensor, "*tasks graphs"]
Counts = Float[Tensor, "*tasks graphs_and_none"]
Confusion = Float[Tensor, "*tasks classes classes"]

LOWER_IS_BETTER = frozenset({"rmse", "mae", "brier", "ece", "loss"})
"""Metrics of which the smallest value is best; of all others it is the largest."""
LEVEL = 0.95
"""Of bootstrap intervals."""
RESAMPLES, MIN_RESAMPLES, MAX_RESAMPLED = 1000, 200, 10_000_000
"""Bootstrap samples of a part; fewer where they would hold more targets than that in all, and none below the second."""


def roc_auc(score: Scores, is_positive: Flags, is_labelled: Flags | None = None) -> Float[Tensor, "*tasks"]:
    """Area under the ROC curve, equal scores counting half; NaN where there are no positives or no negatives.

    >>> roc_auc(torch.tensor([0.1, 0.4, 0.3, 0.8]), torch.tensor([False, False, True, True])).item()
    0.75
    """
    return areas_under_curves(score, is_positive, is_labelled)[0]


def average_precision(score: Scores, is_positive: Flags, is_labelled: Flags | None = None) -> Float[Tensor, "*tasks"]:
    """Area under the precision-recall curve, by steps; equal scores are one step. NaN without a positive.

    >>> average_precision(torch.tensor([0.1, 0.9, 0.3]), torch.tensor([True, True, False])).item()
    0.8333333333333333
    """
    return areas_under_curves(score, is_positive, is_labelled)[1]


def areas_under_curves(
    score: Scores, is_positive: Flags, is_labelled: Flags | None = None
) -> tuple[Float[Tensor, "*tasks"], Float[Tensor, "*tasks"]]:
    """``roc_auc`` and ``average_precision``, of scores that are sorted once.

    >>> [area.item() for area in areas_under_curves(torch.tensor([0.1, 0.9]), torch.tensor([False, True]))]
    [1.0, 1.0]
    """
    true, false = _cumulative_counts(score, is_positive, is_labelled)
    area = (false.diff() * (true[..., 1:] + true[..., :-1])).sum(dim=-1) / 2
    precision = (true / (true + false).clamp(min=1))[..., 1:]
    average = (true.diff() * precision).sum(dim=-1) / true[..., -1]
    return area / (true[..., -1] * false[..., -1]), average


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


def confusion_matrix(
    predicted: Int[Tensor, "*tasks graphs"], target: Int[Tensor, "*tasks graphs"], classes: int
) -> Confusion:
    """How many graphs of each class (rows) were predicted as each class (columns); negative targets are left out.

    >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), 2).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    cell = torch.where(target < 0, classes**2, target * classes + predicted)
    counts = torch.zeros(*cell.shape[:-1], classes**2 + 1, dtype=torch.float64, device=cell.device)
    counts = counts.scatter_add(-1, cell, torch.ones_like(cell, dtype=torch.float64))
    return counts[..., :-1].unflatten(-1, (classes, classes))


def accuracy(confusion: Confusion) -> Float[Tensor, "*tasks"]:
    """Share of graphs whose predicted class is the target.

    >>> accuracy(torch.tensor([[1.0, 1.0], [0.0, 2.0]])).item()
    0.75
    """
    return confusion.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / confusion.sum(dim=(-2, -1))


def f1(confusion: Confusion) -> Float[Tensor, "*tasks classes"]:
    """F1 of each class: the harmonic mean of precision and recall; 0 for a class that is neither there nor predicted.

    >>> f1(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))[1].item()
    0.800000011920929
    """
    hits = confusion.diagonal(dim1=-2, dim2=-1)
    return 2 * hits / (confusion.sum(dim=-1) + confusion.sum(dim=-2)).clamp(min=1)


def mcc(confusion: Confusion) -> Float[Tensor, "*tasks"]:
    """Matthews correlation coefficient, for any number of classes (Gorodkin, 2004); 0 where one class is all there is.

    >>> mcc(torch.tensor([[2.0, 0.0], [0.0, 3.0]])).item()
    1.0
    """
    target, predicted, total = confusion.sum(dim=-1), confusion.sum(dim=-2), confusion.sum(dim=(-2, -1))
    hits = confusion.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    above = hits * total - (target * predicted).sum(dim=-1)
    below = (total**2 - predicted.square().sum(dim=-1)) * (total**2 - target.square().sum(dim=-1))
    return above / below.sqrt().where(below > 0, 1)


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


def masked_mean(values: Scores, is_labelled: Flags) -> Float[Tensor, "*tasks"]:
    """The mean of the values that are labelled; NaN where none is.

    >>> masked_mean(torch.tensor([1.0, 9.0]), torch.tensor([True, False])).item()
    1.0
    """
    return values.double().where(is_labelled, 0.0).sum(dim=-1) / is_labelled.sum(dim=-1)


def rmse(predicted: Scores, target: Scores) -> Float[Tensor, "*tasks"]:
    """Root mean squared error; targets that are NaN are left out.

    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])).item()
    0.0
    """
    return masked_mean((predicted - target).double().square(), target.isfinite()).sqrt()


def mae(predicted: Scores, target: Scores) -> Float[Tensor, "*tasks"]:
    """Mean absolute error; targets that are NaN are left out.

    >>> mae(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])).item()
    0.5
    """
    return masked_mean((predicted - target).double().abs(), target.isfinite())


def r2(predicted: Scores, target: Scores) -> Float[Tensor, "*tasks"]:
    """Coefficient of determination: 1 - squared error / variance of the targets; NaN where they are all alike.

    >>> r2(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])).item()
    1.0
    """
    is_labelled, target = target.isfinite(), target.double()
    centred = target - masked_mean(target, is_labelled)[..., None]
    error, variance = (masked_mean(x.square(), is_labelled) for x in (predicted.double() - target, centred))
    return 1 - error / variance.where(variance > 0, torch.nan)


def spearman(predicted: Scores, target: Scores) -> Float[Tensor, "*tasks"]:
    """Spearman's rank correlation; equal values share their mean rank. NaN where one side is constant.

    >>> round(spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([1.0, 4.0, 5.0])).item(), 6)
    1.0
    """
    is_labelled = target.isfinite()
    a, b = (_ranks(x.double().where(is_labelled, torch.inf)) for x in (predicted, target))
    a, b = (rank - masked_mean(rank, is_labelled)[..., None] for rank in (a, b))
    covariance, *variances = (masked_mean(product, is_labelled) for product in (a * b, a * a, b * b))
    below = (variances[0] * variances[1]).sqrt()
    return covariance / below.where(below > 0, torch.nan)


def _ranks(values: Scores) -> Scores:
    """Ranks from the smallest value on; equal values share their mean rank."""
    ordered, values = values.sort(dim=-1).values.contiguous(), values.contiguous()
    first, last = (torch.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (first + last).double() / 2


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
    probability: Scores, is_correct: Flags, is_labelled: Flags | None = None, bins: int = 15
) -> Float[Tensor, "*tasks"]:
    """The mean over bins of equal width of the difference between mean probability and frequency, weighted by size.

    >>> expected_calibration_error(torch.tensor([0.75, 0.75]), torch.tensor([True, False])).item()
    0.25
    """
    is_labelled = torch.ones_like(is_correct) if is_labelled is None else is_labelled
    index = (probability * bins).long().clamp(min=0, max=bins - 1)
    gap = (probability.double() - is_correct.double()).where(is_labelled, 0.0)
    gaps = torch.zeros(*gap.shape[:-1], bins, dtype=torch.float64, device=gap.device).scatter_add(-1, index, gap)
    return gaps.abs().sum(dim=-1) / is_labelled.sum(dim=-1).clamp(min=1)


def bootstrap_intervals(
    compute: Callable[[Int[Tensor, "resamples graphs"]], Mapping[str, Float[Tensor, "resamples"]]],
    graphs: int,
    *,
    columns: int = 1,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Percentile bootstrap intervals of metrics over ``graphs`` graphs, which are drawn again with replacement.

    Args:
        compute: Metrics of rows of graph indices.
        graphs: How many graphs there are.
        columns: Targets of each graph.
        level: Share of resamples that lies between the ends.
        seed: Of the resamples.

    Returns:
        Low and high end by metric. A metric that is not a number in half of the resamples has none.

    >>> values = torch.arange(100.0)
    >>> low, high = bootstrap_intervals(lambda rows: {"mean": values[rows].mean(dim=1)}, 100)["mean"]
    >>> 43 < low < 46 and 53 < high < 57
    True
    """
    size = graphs * max(1, columns)
    resamples = min(RESAMPLES, MAX_RESAMPLED // size) if size else 0
    if graphs < 2 or resamples < MIN_RESAMPLES:
        return {}
    generator, at_once = torch.Generator().manual_seed(seed), max(1, 2**15 // size)
    counts = [min(at_once, resamples - start) for start in range(0, resamples, at_once)]
    values: dict[str, list[float]] = {}
    for count in counts:
        samples = compute(torch.randint(graphs, (count, graphs), generator=generator))
        for name, column in samples.items():  # lists: small tensors kept between large ones would make the heap grow
            values.setdefault(name, []).extend(column.double().tolist())
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    finite = {name: [value for value in column if isfinite(value)] for name, column in values.items()}
    return {
        name: torch.tensor(column, dtype=torch.float64).quantile(ends).tolist()
        for name, column in finite.items()
        if 2 * len(column) > resamples
    }
