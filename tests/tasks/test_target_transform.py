"""Targets are learned after a transform that is fitted to the training part, and predictions are in their units."""

import json

import pytest
import torch

from mnagt.errors import InputError
from mnagt.tasks import CensoredRegression, MultiLabel, Regression, SingleLabel, task_from_dict, task_to_dict
from mnagt.tasks.target_transform import TRANSFORMS

VALUES = torch.cat([torch.linspace(0.5, 3, 40), torch.tensor([9.0, 1e4])])[:, None] * torch.tensor([[1.0, 20.0]])


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_is_inverted(transform):
    task = Regression(("a", "b")).with_target_transform(transform).fit(VALUES)
    output = task.standardise(VALUES[2:-2])
    torch.testing.assert_close(task.to_units(output), VALUES[2:-2], rtol=1e-3, atol=1e-3)
    assert task_from_dict(json.loads(json.dumps(task_to_dict(task)))) == task
    assert task.loss(output, VALUES[2:-2]) < 1e-6
    other = Regression(("a", "b")).fit(VALUES)
    assert other.can_join(task)
    torch.testing.assert_close(
        other.convert_output(output, task), other.standardise(VALUES[2:-2]), atol=1e-3, rtol=1e-3
    )
    missing = torch.full((1, 2), torch.nan)
    assert bool(task.standardise(missing).isnan().all())


def test_one_outlier_decides_the_scale_unless_ranks_or_logarithms_are_learned():
    spread = {
        transform: Regression(("a", "b"))
        .with_target_transform(transform)
        .fit(VALUES)
        .standardise(VALUES[:40])
        .std()
        .item()
        for transform in TRANSFORMS
    }
    assert spread["standardise"] < 0.01
    assert spread["log"] > 0.3
    assert spread["rank"] > 0.7


def test_ranks_predict_within_the_range_of_training():
    task = Regression(("a", "b")).with_target_transform("rank").fit(VALUES)
    predicted = task.to_units(torch.tensor([[-50.0, 50.0]]))[0]
    assert predicted[0] == pytest.approx(0.5, abs=0.1)
    assert predicted[1] <= 2e5


def test_what_has_no_logarithm_or_no_numbers_is_refused():
    with pytest.raises(
        InputError, match=r"target 'a' has 1 values that are not above 0, such as -3, .*-transform rank"
    ):
        Regression(("a",)).with_target_transform("log").fit(torch.tensor([[1.0], [-3.0]]))
    with pytest.raises(InputError, match="target_transform is for numbers, and the task is single-label"):
        SingleLabel(("a", "b")).with_target_transform("log")


@pytest.mark.parametrize("task", [Regression(("a", "b")), MultiLabel(("a", "b")), CensoredRegression(("a", "b"))])
def test_target_weights_weigh_the_columns(task):
    target = torch.tensor([[1.0, 0.0], [torch.nan, 1.0], [0.0, 1.0]])
    if task.kind == "censored-regression":
        target = torch.cat([target, torch.zeros(3, 2)], dim=1)
    output = torch.tensor([[0.3, 0.5], [0.7, 2.0], [-1.0, 0.1]])
    alone = [task.with_target_weights(weights).loss(output, target) for weights in ((1.0, 0.0), (0.0, 1.0))]
    both = task.with_target_weights((1.0, 3.0))
    torch.testing.assert_close(both.loss(output, target), (2 * alone[0] + 9 * alone[1]) / 11)  # 2 and 3 labels
    torch.testing.assert_close(task.with_target_weights((2.0, 2.0)).loss(output, target), task.loss(output, target))
    assert both.loss_weight(target) == 11
    assert task.can_join(both)
    with pytest.raises(InputError, match=r"for each of the 2 targets, in their order \(a, b\), got \(1.0,\)"):
        task.with_target_weights((1.0,))
    with pytest.raises(InputError, match="target_weights are for several target columns"):
        SingleLabel(("a", "b")).with_target_weights((1.0, 2.0))


def test_a_bound_pulls_from_one_side_only_and_is_not_scored():
    task = CensoredRegression(("a",), mean=(0.0,), std=(1.0,))
    output = torch.tensor([[12.0], [8.0], [12.0], [8.0], [11.0]], requires_grad=True)
    target = torch.tensor([[10.0, 1.0], [10.0, 1.0], [10.0, -1.0], [10.0, -1.0], [10.0, 0.0]])
    task.loss(output, target).backward()
    assert output.grad is not None
    assert output.grad[:, 0].tolist() == pytest.approx([0, -0.8, 0.8, 0, 0.4])
    assert task.scores(output.detach(), target)["rmse"] == pytest.approx(1.0)
    assert task.describe_targets(target) == "a: mean 10, std 0, 4 bounds"
    merged = task.merge_targets(target, torch.tensor([0, 0, 1, 2, 2]))
    assert merged.tolist() == [[10, 1], [10, -1], [10, 0]]
    opposite = task.merge_targets(target[1:3], torch.tensor([0, 0]))
    assert bool(opposite.isnan().all())
