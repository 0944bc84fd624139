import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn import metrics as sklearn
from strategies import generator

from mnagt.metrics import (
    accuracy,
    average_precision,
    bootstrap_intervals,
    confusion_matrix,
    expected_calibration_error,
    f1,
    mae,
    mcc,
    r2,
    rmse,
    roc_auc,
    set_f1,
    spearman,
)

tied_scores = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=31)


def columns(rows: list[tuple[int, bool]]) -> tuple[torch.Tensor, torch.Tensor]:
    score, is_positive = zip(*rows, strict=True)
    return torch.tensor(score) / 3, torch.tensor(is_positive)


@given(tied_scores)
def test_roc_auc_agrees_with_scikit_learn(rows):
    score, is_positive = columns(rows)
    assume(is_positive.any() and not is_positive.all())
    expected = sklearn.roc_auc_score(is_positive.numpy(), score.numpy())
    assert roc_auc(score, is_positive).item() == pytest.approx(expected)


@given(tied_scores)
def test_average_precision_agrees_with_scikit_learn(rows):
    score, is_positive = columns(rows)
    assume(is_positive.any())
    expected = sklearn.average_precision_score(is_positive.numpy(), score.numpy())
    assert average_precision(score, is_positive).item() == pytest.approx(expected)


def test_scores_without_ties_agree_with_scikit_learn():
    score = torch.randn(997, generator=generator(0))
    is_positive = torch.rand(997, generator=generator(1)) < torch.sigmoid(score)
    y, s = is_positive.numpy(), score.numpy()
    assert roc_auc(score, is_positive).item() == pytest.approx(sklearn.roc_auc_score(y, s))
    assert average_precision(score, is_positive).item() == pytest.approx(sklearn.average_precision_score(y, s))


def test_many_tasks_at_once_are_each_task_alone_without_what_is_not_labelled():
    g = generator(0)
    score = (torch.randn(5, 211, generator=g) * 7).round()
    is_positive, is_labelled = torch.rand(5, 211, generator=g) < 0.2, torch.rand(5, 211, generator=g) < 0.7
    for metric in (roc_auc, average_precision):
        alone = [metric(s[known], p[known]) for s, p, known in zip(score, is_positive, is_labelled, strict=True)]
        torch.testing.assert_close(metric(score, is_positive, is_labelled), torch.stack(alone))


@pytest.mark.parametrize("is_positive", [torch.tensor([True, True]), torch.tensor([False, False])])
def test_roc_auc_of_one_class_is_not_a_number(is_positive):
    assert math.isnan(roc_auc(torch.tensor([0.1, 0.2]), is_positive).item())


def test_average_precision_without_a_positive_is_not_a_number():
    assert math.isnan(average_precision(torch.tensor([0.1, 0.2]), torch.tensor([False, False])).item())


words = st.lists(st.integers(0, 4), max_size=6)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=7))
def test_set_f1_is_that_of_sets(pairs):
    def padded(rows: Sequence[list[int]], width: int) -> torch.Tensor:
        return torch.tensor([row + [-100] * (width - len(row)) for row in rows])

    f1 = []
    for said, true in (map(set, pair) for pair in pairs):
        share = len(said & true) / len(said) if said else 0, len(said & true) / len(true) if true else 0
        f1.append(2 * share[0] * share[1] / sum(share) if sum(share) else 0)
    said, true = zip(*pairs, strict=True)
    assert set_f1(padded(said, 6), padded(true, 7))["f1"] == pytest.approx(sum(f1) / len(f1))


def test_errors_agree_with_scikit_learn():
    predicted, target = (torch.randn(2, 23, generator=generator(0)) * 2).round()  # with ties
    p, t = predicted.numpy(), target.numpy()
    expected = {
        rmse: sklearn.root_mean_squared_error(t, p),
        mae: sklearn.mean_absolute_error(t, p),
        r2: sklearn.r2_score(t, p),
        spearman: spearmanr(t, p)[0],
    }
    for metric, value in expected.items():
        assert metric(predicted, target).item() == pytest.approx(value)
        missing = torch.full((3,), torch.nan)
        padded = torch.cat([predicted, missing.nan_to_num(99.0)]), torch.cat([target, missing])
        assert metric(*padded).item() == pytest.approx(value), "missing targets are left out"


@pytest.mark.parametrize("metric", [r2, spearman])
def test_constant_targets_have_no_variance_to_explain(metric):
    assert math.isnan(metric(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])).item())


@pytest.mark.filterwarnings("ignore:A single label")
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2)), min_size=1, max_size=31))
def test_metrics_of_classes_agree_with_scikit_learn(rows):
    predicted, target = torch.tensor(rows).T
    assume((target >= 0).any())
    confusion, p, t = confusion_matrix(predicted, target, 3), predicted[target >= 0], target[target >= 0]
    expected = sklearn.confusion_matrix(t, p, labels=[0, 1, 2])
    assert confusion.tolist() == expected.tolist()
    assert accuracy(confusion).item() == pytest.approx(sklearn.accuracy_score(t, p))
    labels = {"labels": [0, 1, 2], "average": None, "zero_division": 0}
    assert f1(confusion).tolist() == pytest.approx(torch.as_tensor(sklearn.f1_score(t, p, **labels)).tolist())
    assert mcc(confusion).item() == pytest.approx(sklearn.matthews_corrcoef(t, p), abs=1e-9)


def test_bootstrap_intervals_are_seeded_and_cover_a_mean_as_often_as_they_say():
    hits, values = 0, torch.randn(200, 60, generator=generator(3))
    for row in values:
        low, high = bootstrap_intervals(lambda rows, row=row: {"mean": row[rows].mean(dim=1)}, 60)["mean"]
        hits += low <= 0 <= high
    assert 0.89 <= hits / 200 <= 0.99
    again = [bootstrap_intervals(lambda rows: {"max": values[0][rows].amax(dim=1)}, 60, seed=s) for s in (1, 1, 2)]
    assert again[0] == again[1]
    assert bootstrap_intervals(lambda rows: {"undefined": torch.full((len(rows),), torch.nan)}, 7) == {}
    assert bootstrap_intervals(lambda rows: {"mean": values[0][rows].mean(dim=1)}, 10, columns=10**6) == {}


def calibration_error(*predictions: tuple[float, bool]) -> float:
    probability, is_correct = zip(*predictions, strict=True)
    return expected_calibration_error(torch.tensor(probability), torch.tensor(is_correct)).item()


def test_the_calibration_error_is_a_mean_over_fifteen_bins():
    assert calibration_error((0.75, True)) == pytest.approx(0.25)
    assert calibration_error((0.81, False), (0.86, True)) == pytest.approx((0.81 - 0.14) / 2), "one bin: 12/15 to 13/15"
    assert calibration_error((0.9, True), (1.0, False)) == pytest.approx((0.1 + 1) / 2), "the last bin and another"
    assert calibration_error((0.1, True), (0.9, False)) == pytest.approx((0.9 + 0.9) / 2)
    assert expected_calibration_error(torch.zeros(0), torch.zeros(0, dtype=torch.bool)) == 0
