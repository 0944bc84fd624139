import json
import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, roc_auc_score
from strategies import generator

from mnagt.errors import InputError
from mnagt.tasks import TASKS, MultiLabel, Regression, SingleLabel, Task, task_from_dict, task_to_dict

GRAPHS, NAMES = 7, ("a", "b", "c")
NAN = float("nan")


def cases() -> dict[str, tuple[Task, torch.Tensor]]:
    """Every task with targets of its kind; some are missing where they may be."""
    yes_or_no = (torch.rand(GRAPHS, 3, generator=generator(0)) < 0.5).float()
    number = torch.randn(GRAPHS, 3, generator=generator(0)) * torch.tensor([1.0, 10.0, 100.0]) + 5
    yes_or_no[0, 1] = number[0, 1] = NAN
    return {
        "single-label": (SingleLabel(NAMES), torch.arange(GRAPHS) % 3),
        "multi-label": (MultiLabel(NAMES), yes_or_no),
        "regression": (Regression(NAMES), number),
    }


def outputs(seed: int = 1) -> torch.Tensor:
    return torch.randn(GRAPHS, 3, generator=generator(seed))


ASKED = [kind for kind in TASKS if kind != "no targets"]


@pytest.mark.parametrize("kind", ASKED)
def test_a_task_scores_and_decodes_whatever_a_model_says(kind):
    task, target = cases()[kind]
    task = task.fitted(target)
    scores, table = task.scores(outputs(), target), task.decode(outputs())
    assert task.kind == kind
    assert task.outputs == 3
    assert task.metric in scores
    assert all(math.isfinite(score) for score in scores.values())
    assert all(len(column) == GRAPHS for column in table.values())


@pytest.mark.parametrize("kind", ASKED)
def test_a_loss_is_finite_and_so_are_its_gradients(kind):
    task, target = cases()[kind]
    output = outputs().requires_grad_()
    loss = task.fitted(target).loss(output, target)
    (grad,) = torch.autograd.grad(loss, output)
    assert loss.shape == ()
    assert bool(grad.isfinite().all())
    assert bool(grad.any())


@pytest.mark.parametrize("kind", ASKED)
def test_a_task_survives_a_file(kind):
    task, target = cases()[kind]
    fitted = task.fitted(target)
    assert task_from_dict(json.loads(json.dumps(task_to_dict(fitted)))) == fitted


@pytest.mark.parametrize(
    ("content", "message"),
    [({"kind": "ranking"}, "no task 'ranking'"), ({"kind": "multi-label", "colour": 1}, "another version")],
)
def test_a_task_from_elsewhere_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        task_from_dict(content)


@pytest.mark.parametrize("kind", ["multi-label", "regression"])
def test_missing_targets_neither_pull_nor_count(kind):
    task, target = cases()[kind]
    task, is_known, output = task.fitted(target), target.isfinite(), outputs().requires_grad_()
    loss = task.loss(output, target)
    (grad,) = torch.autograd.grad(loss, output)
    assert grad[~is_known].tolist() == [0.0]
    other = torch.where(is_known, output, torch.tensor(99.0))
    torch.testing.assert_close(task.loss(other, target), loss)
    assert task.scores(other.detach(), target) == task.scores(output.detach(), target)


@pytest.mark.parametrize("kind", ["multi-label", "regression"])
def test_a_batch_without_any_target_costs_nothing(kind):
    task, target = cases()[kind]
    assert task.fitted(target).loss(outputs(), torch.full_like(target, NAN)) == 0


@pytest.mark.parametrize("kind", ASKED)
def test_nothing_is_worse_than_a_score_and_not_a_number_is_next(kind):
    task, _ = cases()[kind]
    better, worse = (0.9, 0.1) if task.higher_is_better else (0.1, 0.9)
    assert task.is_better(better, worse)
    assert not task.is_better(worse, better)
    assert not task.is_better(better, better)
    assert task.is_better(NAN, None)
    assert task.is_better(worse, NAN)
    assert not task.is_better(NAN, worse)


def test_multi_label_loss_is_cross_entropy_over_what_is_labelled():
    task, target = cases()["multi-label"]
    is_known = target.isfinite()
    expected = F.binary_cross_entropy_with_logits(outputs()[is_known], target[is_known])
    torch.testing.assert_close(task.loss(outputs(), target), expected)


def test_multi_label_scores_are_means_over_questions_with_both_answers():
    task, target = cases()["multi-label"]
    target[:, 2] = 1.0
    known = [(target[1:, 0], outputs()[1:, 0]), (target[1:, 1], outputs()[1:, 1])]
    target[0, 0] = NAN
    scores = task.scores(outputs(), target)
    assert scores["ap"] == pytest.approx(sum(average_precision_score(t, o) for t, o in known) / 2)
    assert scores["rocauc"] == pytest.approx(sum(roc_auc_score(t, o) for t, o in known) / 2)


def test_multi_label_without_both_answers_anywhere_has_no_score():
    assert math.isnan(MultiLabel(("a",)).scores(torch.zeros(3, 1), torch.ones(3, 1))["ap"])


def test_regression_learns_standardised_and_answers_in_its_own_units():
    task, target = cases()["regression"]
    fitted = task.fitted(target)
    assert isinstance(fitted, Regression)
    mean, std = torch.tensor(fitted.mean), torch.tensor(fitted.std)
    perfect = ((target - mean) / std).nan_to_num()
    assert fitted.loss(perfect, target) == pytest.approx(0, abs=1e-10)
    assert fitted.scores(perfect, target)["mae"] == pytest.approx(0, abs=1e-4)
    assert fitted.decode(perfect)["c"] == pytest.approx(target[:, 2].tolist(), rel=1e-4)
    standardised = perfect[:, 2]
    assert standardised.mean() == pytest.approx(0, abs=1e-5)
    assert standardised.std(correction=0) == pytest.approx(1, abs=1e-5)


def test_regression_scores_are_errors_in_its_own_units():
    task = Regression(("a", "b"), mean=(1.0, 2.0), std=(10.0, 100.0))
    output, target = torch.tensor([[0.5, 0.5]]), torch.tensor([[9.0, NAN]])
    assert task.scores(output, target) == pytest.approx({"rmse": 3.0, "mae": 3.0})


def test_a_constant_target_keeps_its_scale():
    assert Regression(("a",)).fitted(torch.full((7, 1), 0.1)).std == (1.0,)


def test_a_target_never_seen_in_training_is_named():
    with pytest.raises(InputError, match="target 'b' has no value"):
        Regression(("a", "b")).fitted(torch.tensor([[1.0, NAN], [2.0, NAN]]))


def test_single_label_loss_is_cross_entropy():
    task, target = cases()["single-label"]
    torch.testing.assert_close(task.loss(outputs(), target), F.cross_entropy(outputs(), target))


def test_single_label_answers_with_the_likeliest_class():
    table = SingleLabel(("no", "yes")).decode(torch.tensor([[0.0, math.log(3)], [5.0, 0.0]]))
    assert table["prediction"] == ["yes", "no"]
    assert table["p(yes)"][0] == pytest.approx(0.75)


def test_multi_label_answers_with_probabilities():
    table = MultiLabel(("toxic",)).decode(torch.tensor([[0.0], [math.log(3)]]))
    assert table == {"p(toxic)": pytest.approx([0.5, 0.75])}


def test_one_class_is_no_classification():
    with pytest.raises(InputError, match="at least 2 classes"):
        SingleLabel(("only",))
