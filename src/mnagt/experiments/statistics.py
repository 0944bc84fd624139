"""Are two models apart? Differences on equal splits, and how often chance alone would give them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np


@dataclass(frozen=True)
class Paired:
    """One model less another, split by split."""

    gaps: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.gaps)

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for one split."""
        return stdev(self.gaps) / len(self.gaps) ** 0.5 if len(self.gaps) > 1 else float("nan")

    @property
    def wins(self) -> int:
        return sum(gap > 0 for gap in self.gaps)

    @property
    def losses(self) -> int:
        return sum(gap < 0 for gap in self.gaps)

    @property
    def p(self) -> float:
        return signed_rank(self.gaps)


def signed_rank(gaps: Sequence[float]) -> float:
    r"""Two-sided p of Wilcoxon's signed-rank test, exact for any number of gaps and any ties.

    .. math:: p = P(|W - \bar W| \ge |w - \bar W|), \qquad W = \sum_i s_i r_i

    over all equally likely signs :math:`s_i \in \{0, 1\}`, where :math:`r_i` is the rank of the i-th gap by size. Gaps
    of zero are left out; equal ones share the mean of their ranks. Gaps are compared to ten digits: differences of
    shares differ by rounding where they should not.
    """
    gaps = [gap for gap in (round(gap, 10) for gap in gaps) if gap]
    sizes = sorted(abs(gap) for gap in gaps)
    rank = {size: 2 * sizes.index(size) + 1 + sizes.count(size) for size in sizes}  # doubled, which makes it whole
    ways = [1] + [0] * sum(rank[size] for size in sizes)
    for size in sizes:
        for total in range(len(ways) - 1, rank[size] - 1, -1):
            ways[total] += ways[total - rank[size]]
    middle = (len(ways) - 1) / 2
    off = abs(sum(rank[gap] for gap in gaps if gap > 0) - middle)
    return sum(count for total, count in enumerate(ways) if abs(total - middle) >= off) / 2 ** len(gaps)


def holm(ps: Sequence[float]) -> list[float]:
    """The same p, held to account for being several (Holm 1979): the chance that any below it is chance alone."""
    order = np.argsort(ps)
    steps = np.arange(len(ps), 0, -1) * np.asarray(ps)[order]
    return np.minimum(np.maximum.accumulate(steps), 1.0)[np.argsort(order)].tolist()
