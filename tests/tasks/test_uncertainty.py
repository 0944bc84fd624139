"""Numbers with an uncertainty each: their losses, intervals in any transform, mixtures of models, and coverage."""

import csv
import gzip
import math
import re
from dataclasses import replace

import pytest
import torch

from mnagt import load_model, predict
from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.inference.ensemble import average_outputs
from mnagt.tasks import UNCERTAINTIES, Evidential, MeanVariance, MultiLabel, QuantileRegression, Regression
from mnagt.tasks.uncertain import UncertainRegression

_OTHERS = [kind for kind in UNCERTAINTIES if kind != "mean-variance"]
TASK = MeanVariance(("y",), mean=(10.0,), std=(2.0,))


def test_the_minimum_of_the_loss_is_the_mean_and_the_deviation_of_the_targets():
    torch.manual_seed(0)
    target = torch.randn(4000, 1) * 3 + 7
    task, output = MeanVariance(("y",)), torch.zeros(1, 2, requires_grad=True)
    optimizer = torch.optim.LBFGS([output], max_iter=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = task.loss(output.expand(4000, 2), target)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    decoded = task.decode(output.detach())
    assert decoded["y"][0] == pytest.approx(target.mean().item(), abs=0.01)
    assert decoded["std y"][0] == pytest.approx(target.std().item(), abs=0.01)


@pytest.mark.parametrize("transform", ["standardise", "log", "rank", "none"])
def test_normal_intervals_hold_normal_targets_as_often_as_they_say(transform):
    torch.manual_seed(1)
    values = torch.randn(20_000, 1, dtype=torch.double) * 0.4 + 1
    target = {"log": values.exp(), "rank": values.exp()}.get(transform, values)
    task = Regression(("y",)).with_target_transform(transform).with_uncertainty(MeanVariance).fit(target)
    assert isinstance(task, MeanVariance)
    standard = task.standardise(target)
    output = torch.stack([standard.mean(), 2 * standard.std().log()]).expand(len(target), 2)
    for level in (0.5, 0.8, 0.95):
        thresholds = task.model_thresholds(level)
        assert thresholds is not None
        found = task.interval_coverage(output, target, thresholds)["y"]
        assert found.share == pytest.approx(level, abs=0.012)
        ends = task.prediction_sets(output[:1], thresholds, level)
        assert ends[f"y high({level:g})"][0] - ends[f"y low({level:g})"][0] == pytest.approx(found.width, rel=1e-6)


def test_the_minimum_of_the_pinball_losses_is_at_the_quantiles():
    torch.manual_seed(0)
    target = torch.rand(4000, 1).square()  # skewed: the quantiles lie at unlike distances from the median
    task, output = QuantileRegression(("y",)), torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.Adam([output], lr=0.05)
    for step in range(600):
        optimizer.param_groups[0]["lr"] = 0.05 * 0.99**step
        optimizer.zero_grad()
        task.loss(output.expand(4000, 3), target).backward()
        optimizer.step()
    found = torch.tensor([column[0] for column in task.decode(output.detach()).values()])
    assert found.tolist() == pytest.approx([0.25, 0.05**2, 0.95**2], abs=0.02)
    assert QuantileRegression(("y",)).model_thresholds(0.8) is None


def test_evidence_is_lost_where_predictions_are_wrong():
    task, right = Evidential(("y",)), torch.zeros(1, 4, requires_grad=True)
    wrong = torch.zeros(1, 4, requires_grad=True)
    target = torch.tensor([[0.0]])
    task.loss(right, target).backward()
    task.loss(wrong, target + 5).backward()
    assert right.grad is not None
    assert wrong.grad is not None
    assert right.grad[0, 1] < 0 < wrong.grad[0, 1]  # evidence (nu) rises, and falls


def test_the_evidential_likelihood_is_that_of_a_student_distribution():
    torch.manual_seed(0)
    output, target = torch.randn(5, 4, dtype=torch.double), torch.randn(5, 1, dtype=torch.double)
    task = Evidential(("y",))
    gamma, nu, alpha, beta = task.parameters(output)
    student = torch.distributions.StudentT(2 * alpha, gamma, (beta * (1 + nu) / (nu * alpha)).sqrt())
    regularised = 0.2 * (target - gamma).abs() * (2 * nu + alpha) - student.log_prob(target)
    torch.testing.assert_close(task.loss(output, target), regularised.mean())
    torch.testing.assert_close(task.moments(output)[1], student.stddev)


@pytest.mark.parametrize("kind", UNCERTAINTIES)
def test_an_ensemble_of_one_model_twice_is_that_model_and_others_are_averaged(kind):
    task = Regression(("y", "z"), mean=(10.0, 0.0), std=(2.0, 3.0)).with_uncertainty(UNCERTAINTIES[kind])
    output = torch.randn(7, task.num_outputs, generator=torch.Generator().manual_seed(0))
    for name, column in task.decode(average_outputs(task, torch.stack([output, output]))).items():
        assert column == pytest.approx(task.decode(output)[name], rel=1e-4)
    other = output + torch.tensor([4.0, 0.0, *[0.0] * (task.num_outputs - 2)])
    both = task.decode(average_outputs(task, torch.stack([output, other])))
    assert both["y"] == pytest.approx([(2 * (x + x + 4) / 2 + 10) for x in output[:, 0].tolist()], rel=1e-4)
    assert both["z"] == pytest.approx(task.decode(output)["z"], rel=1e-4)


def test_models_that_differ_are_less_certain_together():
    each = torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]], [[0.0, math.log(4)]]])
    mean, std = TASK.moments(average_outputs(TASK, each))
    assert mean.item() == pytest.approx(0, abs=1e-6)
    assert std.item() == pytest.approx(math.sqrt((1 + 1 + 4) / 3 + 2 / 3), rel=1e-6)
    other = replace(TASK, mean=(4.0,), std=(1.0,))
    torch.testing.assert_close(
        TASK.convert_output(torch.tensor([[2.0, 0.0]]), other), torch.tensor([[-2.0, 2 * math.log(0.5)]])
    )


def test_evidence_of_models_that_differ_widely_is_kept():
    task, one = Evidential(("y",)), math.log(math.e - 1)
    output = torch.tensor([[[-1e4, one, one, -9.0]], [[1e4, one, one, -9.0]]])
    mean = torch.stack([task.to_probability(each) for each in output]).mean(dim=0)
    torch.testing.assert_close(task.to_probability(task.from_probability(mean)), mean, rtol=1e-3, atol=0)
    assert task.moments(average_outputs(task, output))[1].item() == pytest.approx(1e4, rel=1e-3)


@pytest.mark.parametrize("kind", [Regression, *UNCERTAINTIES.values()])
def test_an_error_without_bound_widens_the_intervals(kind):
    task = Regression(("y",), transform="log")
    task = task if kind is Regression else task.with_uncertainty(kind)
    output = torch.zeros(3, task.num_outputs)
    output[0, 0] = 1000.0  # its exponential is no float32
    (scores,) = task.conformal_scores(output, torch.tensor([[1.0], [2.0], [math.nan]]))
    assert len(scores) == 2, "a missing target has no score"
    assert scores[1].isfinite()
    if isinstance(task, UncertainRegression):  # the ends of its own interval are at the number
        output = task.with_sides(output, (output[:, :1], torch.zeros(3, 1), torch.zeros(3, 1)))
        (scores,) = task.conformal_scores(output, torch.tensor([[1.0], [2.0], [math.nan]]))
        assert len(scores) == 2
    assert scores[0] > 1e4


def test_only_numbers_have_a_deviation():
    for task in (MultiLabel(("q",)), TASK):
        with pytest.raises(InputError, match=f"uncertainty is for numbers without bounds, and the task is {task.kind}"):
            task.with_uncertainty(MeanVariance)


@pytest.mark.real_data
@pytest.mark.parametrize("kind", ["mean-variance", *[pytest.param(kind, marks=pytest.mark.slow) for kind in _OTHERS]])
def test_a_real_table_is_learned_with_uncertainties_and_their_coverage_is_shown(kind, data_root, tmp_path, capsys):
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        rows = [(smiles.strip(), value) for value, smiles, _ in list(csv.reader(file))[1:]]
    table, run = tmp_path / "esol.csv", str(tmp_path / "run")
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "y"), *rows])
    words = ["--uncertainty", kind, "--model", "gin", "--dim", "16", "--depth", "2", "--epochs", "12"]
    words += ["--split", "random", "--descriptors", "rdkit2d", "--lr", "0.005", "--device", "cpu"]
    assert main(["train", str(table), "--out", run, *words]) == 0
    assert main(["calibrate", run, "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"113 test graphs +covered +mean width +uncalibrated: covered +mean width", told)
    shares = {level: float(share) for level, share in re.findall(r"level ([\d.]+) +([\d.]+)", told)}
    assert shares["0.8"] == pytest.approx(0.8, abs=0.12)  # 113 graphs after 113: three standard errors of 0.053
    assert shares["0.95"] > shares["0.8"]
    answers = predict(run, str(table), graphs=[0, 1, 2], level=0.9, device="cpu")
    task = load_model(run).task
    assert task.kind == kind
    widths = [high - low for low, high in zip(answers["y low(0.9)"], answers["y high(0.9)"], strict=True)]
    own = answers.get("std y") or [
        high - low for low, high in zip(answers["y quantile(0.05)"], answers["y quantile(0.95)"], strict=True)
    ]
    ratios = [width / each for width, each in zip(widths, own, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 3)
    assert len({round(width, 6) for width in widths}) == 3
    assert main(["evaluate", run, "--dataset", str(table), "--device", "cpu"]) == 0
    assert main(["train", str(table), "--forest-trees", "5", "--uncertainty", kind]) == 2
    assert kind in capsys.readouterr().err
