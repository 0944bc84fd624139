"""Our exact test is scipy's, and is exact where scipy's is not."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import PermutationMethod, wilcoxon

from mnagt.experiments.statistics import Paired, holm, signed_rank


def scipys(gaps: Sequence[float], method: Any) -> float:
    return wilcoxon(gaps, method=method).pvalue  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1, 1).filter(lambda gap: abs(gap) > 1e-6), min_size=1, max_size=23))
def test_without_ties_it_is_scipys_exact_test(gaps):
    gaps = [round(gap, 9) for gap in gaps]
    if len({abs(gap) for gap in gaps}) == len(gaps):
        assert signed_rank(gaps) == pytest.approx(scipys(gaps, "exact"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=9).filter(any))
def test_with_ties_it_is_the_share_of_all_signs(gaps):
    every = scipys(gaps, PermutationMethod(n_resamples=2**10))
    assert signed_rank(gaps) == pytest.approx(min(1, every))


def test_ten_of_ten_is_two_in_a_thousand():
    assert signed_rank([0.01 * i for i in range(1, 11)]) == pytest.approx(2 / 1024)


def test_rounding_makes_no_difference():
    shares = [(0.1 + 0.2) - 0.3 + 0.07, 0.07, -0.07]
    assert signed_rank(shares) == signed_rank([7, 7, -7]) == 1.0
    assert signed_rank([0.3 - (0.1 + 0.2)]) == signed_rank([]) == 1.0


@pytest.mark.parametrize(
    ("ps", "adjusted"),
    [([], []), ([0.03], [0.03]), ([0.04, 0.01, 0.03], [0.06, 0.03, 0.06]), ([0.9, 0.6], [1.0, 1.0])],
)
def test_several_tests_at_once_cost_something(ps, adjusted):
    assert holm(ps) == pytest.approx(adjusted)


def test_a_pair_is_told_split_by_split():
    pair = Paired((0.02, 0.04, -0.03, 0.0))
    assert (pair.mean, pair.wins, pair.losses) == (pytest.approx(0.0075), 2, 1)
    assert pair.error == pytest.approx(0.0298608 / 2, rel=1e-4)
    assert math.isnan(Paired((0.5,)).error)
