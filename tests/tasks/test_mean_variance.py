"""Numbers with a deviation each: the likelihood, intervals in any transform, mixtures of models, and their coverage."""

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
from mnagt.tasks import MeanVariance, MultiLabel, Regression

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
    task = MeanVariance.of(Regression(("y",)).with_target_transform(transform)).fit(target)
    standard = task.standardise(target)
    output = torch.stack([standard.mean(), 2 * standard.std().log()]).expand(len(target), 2)
    for level in (0.5, 0.8, 0.95):
        thresholds = task.normal_thresholds(level)
        assert thresholds is not None
        found = task.interval_coverage(output, target, thresholds)
        assert found is not None
        assert found.share == pytest.approx(level, abs=0.012)
        ends = task.prediction_sets(output[:1], thresholds, level)
        assert ends[f"y high({level:g})"][0] - ends[f"y low({level:g})"][0] == pytest.approx(found.width, rel=1e-6)


def test_models_that_differ_are_less_certain_together():
    each = torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]], [[0.0, math.log(4)]]])
    mean, std = TASK.moments(average_outputs(TASK, each))
    assert mean.item() == pytest.approx(0, abs=1e-6)
    assert std.item() == pytest.approx(math.sqrt((1 + 1 + 4) / 3 + 2 / 3), rel=1e-6)
    other = replace(TASK, mean=(4.0,), std=(1.0,))
    torch.testing.assert_close(
        TASK.convert_output(torch.tensor([[2.0, 0.0]]), other), torch.tensor([[-2.0, 2 * math.log(0.5)]])
    )


def test_only_numbers_have_a_deviation():
    for task in (MultiLabel(("q",)), TASK):
        with pytest.raises(InputError, match=f"uncertainty is for numbers without bounds, and the task is {task.kind}"):
            MeanVariance.of(task)


@pytest.mark.real_data
def test_a_real_table_is_learned_with_deviations_and_their_coverage_is_shown(data_root, tmp_path, capsys):
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        rows = [(smiles.strip(), value) for value, smiles, _ in list(csv.reader(file))[1:]]
    table, run = tmp_path / "esol.csv", str(tmp_path / "run")
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "y"), *rows])
    words = ["--uncertainty", "mean-variance", "--model", "gin", "--dim", "16", "--depth", "2", "--epochs", "12"]
    words += ["--split", "random", "--descriptors", "rdkit2d", "--lr", "0.005", "--device", "cpu"]
    assert main(["train", str(table), "--out", run, *words]) == 0
    assert main(["calibrate", run, "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"113 test graphs +covered +mean width +normal: covered +mean width", told)
    shares = {level: float(share) for level, share in re.findall(r"level ([\d.]+) +([\d.]+)", told)}
    assert shares["0.8"] == pytest.approx(0.8, abs=0.12)  # 113 graphs after 113: three standard errors of 0.053
    assert shares["0.95"] > shares["0.8"]
    answers = predict(run, str(table), graphs=[0, 1, 2], level=0.9, device="cpu")
    task = load_model(run).task
    assert task.kind == "mean-variance"
    widths = [high - low for low, high in zip(answers["y low(0.9)"], answers["y high(0.9)"], strict=True)]
    ratios = [width / std for width, std in zip(widths, answers["std y"], strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 3)
    assert len({round(width, 6) for width in widths}) == 3
    assert main(["evaluate", run, "--dataset", str(table), "--device", "cpu"]) == 0
    assert main(["train", str(table), "--forest-trees", "5", "--uncertainty", "mean-variance"]) == 2
    assert "mean-variance" in capsys.readouterr().err
