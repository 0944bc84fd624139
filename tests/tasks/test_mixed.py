"""Classes and numbers in one table train one model, with all that models of one kind have."""

import csv
import gzip
import json
import re

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from mnagt import load_dataset, load_model, predict, train
from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.explain.explanation import explain
from mnagt.tasks import (
    CensoredRegression,
    MeanVariance,
    Mixed,
    MultiLabel,
    Regression,
    SingleLabel,
    task_from_dict,
    task_to_dict,
)
from mnagt.tasks.target_column import TargetColumn

NAN = float("nan")
TASK = Mixed(
    ("active", "level", "size"), (MultiLabel(("active",)), SingleLabel(("low", "mid", "high")), Regression(("size",)))
)
TARGET = torch.tensor([[1.0, 2.0, 10.0], [0.0, NAN, 30.0], [NAN, 0.0, NAN], [1.0, 1.0, 20.0], [NAN, NAN, NAN]])
OUTPUT = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))


def columns(**texts: list[str]) -> list[TargetColumn]:
    return [TargetColumn(name, cells, "my.csv", lambda row: f"my.csv, line {row + 2}") for name, cells in texts.items()]


def test_the_loss_is_the_mean_over_all_targets_that_are_there():
    task = TASK.fit(TARGET)
    is_known = [0, 1, 3]
    labels = binary_cross_entropy_with_logits(OUTPUT[is_known, 0], TARGET[is_known, 0], reduction="sum")
    classes = cross_entropy(OUTPUT[[0, 2, 3], 1:4], torch.tensor([2, 0, 1]), reduction="sum")
    standard = (TARGET[is_known, 2] - 20) / (200 / 3) ** 0.5
    numbers = (OUTPUT[is_known, 4] - standard).square().sum()
    torch.testing.assert_close(task.loss(OUTPUT, TARGET), (labels + classes + numbers) / 9)
    assert task.loss_weight(TARGET) == 9
    weighted = task.with_target_weights((1.0, 0.0, 2.0))
    torch.testing.assert_close(weighted.loss(OUTPUT, TARGET), (labels + 2 * numbers) / 9)
    with pytest.raises(InputError, match="for each of the 3 targets"):
        task.with_target_weights((1.0, 2.0))


def test_columns_have_the_metrics_of_their_task_and_any_may_choose_the_epoch():
    task = TASK.fit(TARGET)
    scores = task.scores(OUTPUT, TARGET)
    assert next(iter(scores)) == "loss"
    alone = task.tasks[2].scores(OUTPUT[:, 4:], TARGET[:, 2:])
    assert scores["rmse(size)"] == alone["rmse"]
    assert (
        scores["accuracy(level)"]
        == task.tasks[1].scores(OUTPUT[:, 1:4], torch.tensor([2, -100, 0, 1, -100]))["accuracy"]
    )
    assert task.with_metric("rocauc(active)").higher_is_better
    assert not task.with_metric("rmse(size)").higher_is_better
    with pytest.raises(InputError, match="metric must be one of loss, ap"):
        task.with_metric("rmse")


def test_a_temperature_changes_classes_and_no_number():
    task = TASK.fit(TARGET)
    before, after = task.decode(OUTPUT), task.decode(task.apply_temperature(OUTPUT, 3.0))
    assert list(before) == ["p(active)", "level", "level p(low)", "level p(mid)", "level p(high)", "size"]
    assert after["size"] == before["size"]
    assert after["level"] == before["level"]
    assert after["p(active)"] == pytest.approx((OUTPUT[:, 0] / 3).sigmoid().tolist())


def test_kinds_follow_from_the_columns():
    table = columns(
        active=["0", "1", "", "1"],
        level=["low", "high", "low", "low"],
        size=["1.5", "20", "3", "0"],
        dose=[">2"] + ["1"] * 3,
    )
    task = Mixed.from_columns(table)
    assert task.tasks == (
        MultiLabel(("active",), "rocauc"),
        SingleLabel(("high", "low")),
        Regression(("size",)),
        CensoredRegression(("dose",)),
    )
    target = task.parse_targets(table)
    expected = [[0, 1, 1.5, 2, 1], [1, 0, 20, 1, 0], [NAN, 1, 3, 1, 0], [1, 1, 0, 1, 0]]
    torch.testing.assert_close(target, torch.tensor(expected), equal_nan=True)
    assert task.describe_targets(target) == (
        "active: 67 % positive, level: high: 25 %, low: 75 %, size: mean 6.12, std 8.08, dose: mean 1.25, std 0.433, "
        "1 bounds"
    )
    assert task_from_dict(json.loads(json.dumps(task_to_dict(task)))) == task
    with pytest.raises(InputError, match=r"my\.csv, line 3: 'x' is not a number, and others are"):
        Mixed.from_columns(columns(active=["0", "1", "0"], size=["1.5", "x", "2.5"]))


def test_numbers_have_uncertainties_and_transforms_and_classes_have_weights():
    task = TASK.with_uncertainty(MeanVariance)
    assert task.num_outputs == 6
    assert "std size" in task.decode(torch.zeros(1, 6))
    assert task.can_score(TASK)
    assert not task.can_join(TASK)
    weighted = TASK.fit(TARGET).with_class_weights(TARGET)
    assert isinstance(weighted, Mixed)
    assert weighted.tasks[0] != TASK.tasks[0]
    labels = Mixed(("a", "b"), (MultiLabel(("a",)), SingleLabel(("x", "y"))))
    for change in (lambda: labels.with_uncertainty(MeanVariance), lambda: labels.with_target_transform("log")):
        with pytest.raises(InputError, match="the task is mixed"):
            change()


@pytest.fixture(scope="module")
def table(data_root, tmp_path_factory):
    """ogbg-molbace's first 150 molecules: active or not, number of carbons (few missing), and size in three classes."""
    path = tmp_path_factory.mktemp("mixed") / "my.csv"
    with gzip.open(data_root / "ogbg_molbace" / "mapping" / "mol.csv.gz", "rt") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(150), strict=False)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", "active", "carbons", "size"])
        for i, row in enumerate(rows):
            smiles = row["smiles"]
            carbons = smiles.lower().count("c")
            size = "small" if carbons < 22 else "middle" if carbons < 28 else "large"
            writer.writerow([smiles, row["Class"], "" if i % 11 == 0 else carbons + 0.5, "" if i % 13 == 0 else size])
    return path


@pytest.mark.real_data
def test_one_model_learns_classes_and_numbers_of_a_real_table(table, tmp_path, capsys):
    run, targets = str(tmp_path / "run"), ["--targets", "active,carbons,size"]
    words = ["--model", "gin", "--dim", "16", "--depth", "2", "--epochs", "15", "--batch-size", "32", "--lr", "0.01"]
    words += [
        "--uncertainty",
        "quantile",
        "--class-weights",
        "true",
        "--split",
        "random",
        "--device",
        "cpu",
        "--split-seed",
        "1",
    ]
    assert main(["train", str(table), "--out", run, *targets, *words]) == 0
    shown = capsys.readouterr().out
    for name in ("loss", "rocauc(active)", "rmse(carbons)", "accuracy(size)"):
        assert name in shown
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert history[-1]["valid_loss"] < history[0]["valid_loss"]
    assert main(["calibrate", run, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"calibration error", shown)
    level = re.search(r"level 0.9 +(\d+) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+", shown)
    assert level is not None
    graphs = load_dataset(table, targets=["active", "carbons", "size"])
    test = json.loads((tmp_path / "run" / "split.json").read_text())["test"]
    assert int(level[1]) == int(graphs.targets[test, 1].isfinite().sum()) < len(test)
    assert f"{len(test)} test graphs  with a target  covered" in shown
    found = predict(run, str(table), graphs=[0, 1, 2], level=0.9, device="cpu")
    assert set(found) >= {"p(active)", "active set(0.9)", "carbons", "carbons low(0.9)", "carbons quantile(0.05)"}
    assert set(found) >= {"size", "size p(small)", "size set(0.9)"}
    assert set(found["predicted size"]) <= {"small", "middle", "large"}
    assert main(["evaluate", run, "--dataset", str(table), "--device", "cpu"]) == 0
    (card,) = (tmp_path / "run").rglob("README.md")
    assert "mixed (active, carbons, size)" in card.read_text()
    trained = load_model(run)
    assert trained.task.describe() == "mixed (active, carbons, size)"
    assert graphs.task.kind == "mixed"
    for target, unit, is_number in (("active", "log-odds", False), ("carbons", "units of carbons", True)):
        (each,) = explain(trained, graphs, torch.tensor([0]), target=target)
        assert (each.output.unit, each.probability is None) == (unit, is_number)
    (each,) = explain(trained, graphs, torch.tensor([0]), target="size")
    assert each.output.name.startswith("size: ")


@pytest.mark.real_data
def test_the_network_of_the_default_model_is_trained_alone(table, caplog):
    small = {"dim": 8, "depth": 1, "head_dim": 4, "epochs": 1, "device": "cpu"}
    run = train(table, target=["active", "carbons"], **small)
    assert "trees predict classes or numbers, and the task is mixed" in caplog.text
    assert (run.trained.name, run.trained.settings["members"]) == ("mnagt-ensemble", [])
    assert list(run.trained.predict(["CCO", "CCN"])) == ["p(active)", "carbons", "distance"]


@pytest.mark.real_data
def test_models_of_scikit_learn_refuse_classes_and_numbers_together(table, capsys):
    assert main(["train", str(table), "--targets", "active,carbons", "--model", "morgan-forest"]) == 2
    assert "predicts classes, labels or numbers, and the task is mixed" in capsys.readouterr().err
