"""Rare classes can be made to count."""

import pytest
import torch
import torch.nn.functional as F

from mnagt import RunConfig, TrainConfig, load_dataset, load_model, train
from mnagt.errors import InputError
from mnagt.tasks import NO_CLASS, MultiLabel, Regression, SingleLabel


def test_classes_count_the_same_however_rare():
    target = torch.tensor([0] * 6 + [1] * 3 + [NO_CLASS])
    task = SingleLabel(("a", "b", "c")).with_class_weights(target)
    assert task.weights == pytest.approx(
        (10 / 18, 10 / 9, 10 / 3)
    )  # a class that does not occur counts as occurring once
    two = SingleLabel(("a", "b")).with_class_weights(torch.tensor([0] * 7 + [1] * 3))
    output = torch.randn(10, 2)
    each = F.cross_entropy(output, torch.tensor([0] * 7 + [1] * 3), reduction="none")
    torch.testing.assert_close(
        two.loss(output, torch.tensor([0] * 7 + [1] * 3)), (each[:7].mean() + each[7:].mean()) / 2
    )


def test_a_yes_counts_as_much_more_as_it_is_rarer():
    target = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, torch.nan], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    task = MultiLabel(("a", "b", "c")).with_class_weights(target)
    assert task.weights == (3, 1, 2)
    output = torch.zeros(4, 3)
    assert task.loss(output, target).item() > MultiLabel(("a", "b", "c")).loss(output, target).item()


def test_numbers_have_no_classes():
    with pytest.raises(InputError, match="the task is regression; leave out class_weights"):
        Regression(("y",)).with_class_weights(torch.zeros(3, 1))


def test_a_run_balances_by_its_training_part(tmp_path):
    config = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1, class_weights=True), device="cpu")
    run = train(config, tmp_path / "run")
    counts = torch.bincount(load_dataset("MUTAG").targets[run.split.train])
    task = load_model(tmp_path / "run").task
    assert isinstance(task, SingleLabel)
    torch.testing.assert_close(torch.tensor(task.weights), counts.sum() / (2 * counts))


def test_a_smoothed_answer_leaves_some_to_every_class():
    target, output = torch.tensor([0, 2, NO_CLASS]), torch.randn(3, 3)
    log, spread = output.log_softmax(dim=1)[:2], torch.full((2, 3), 0.1)
    answers = 0.7 * F.one_hot(target[:2], 3) + spread
    loss = SingleLabel(("a", "b", "c")).with_label_smoothing(0.3).loss(output, target)
    torch.testing.assert_close(loss, -(answers * log).sum(dim=1).mean())
    with pytest.raises(InputError, match="the task is regression; leave out label_smoothing"):
        Regression(("y",)).with_label_smoothing(0.1)
