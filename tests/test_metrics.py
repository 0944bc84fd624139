import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn import metrics as sklearn
from strategies import generator

from mnagt.metrics import accuracy, average_precision, expected_calibration_error, mae, rmse, roc_auc, set_f1

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
    predicted, target = torch.randn(2, 7, 3, generator=generator(0))
    p, t = predicted.numpy().ravel(), target.numpy().ravel()
    assert rmse(predicted, target) == pytest.approx(sklearn.root_mean_squared_error(t, p))
    assert mae(predicted, target) == pytest.approx(sklearn.mean_absolute_error(t, p))


def test_accuracy_is_the_share_of_hits():
    assert accuracy(torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 1, 1])) == 0.75


def calibration_error(*predictions: tuple[float, bool]) -> float:
    probability, is_correct = zip(*predictions, strict=True)
    return expected_calibration_error(torch.tensor(probability), torch.tensor(is_correct))


def test_the_calibration_error_is_a_mean_over_fifteen_bins():
    assert calibration_error((0.75, True)) == pytest.approx(0.25)
    assert calibration_error((0.81, False), (0.86, True)) == pytest.approx((0.81 - 0.14) / 2), "one bin: 12/15 to 13/15"
    assert calibration_error((0.9, True), (1.0, False)) == pytest.approx((0.1 + 1) / 2), "the last bin and another"
    assert calibration_error((0.1, True), (0.9, False)) == pytest.approx((0.9 + 0.9) / 2)
    assert expected_calibration_error(torch.zeros(0), torch.zeros(0, dtype=torch.bool)) == 0
