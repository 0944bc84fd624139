"""Trials run once; their figures add up."""

import csv
import gzip
import math
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mnagt import load_dataset
from mnagt.data.splits import PARTS
from mnagt.data.table_config import TableConfig
from mnagt.errors import InputError
from mnagt.experiments import trials
from mnagt.experiments.ledger import Ledger
from mnagt.experiments.trials import Trial, run_trial, run_trials, summarise, thin_curves, with_seed
from mnagt.files import read_json
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.fingerprint import dataset_fingerprint
from mnagt.runs.folder import load_run_dataset
from mnagt.training.run import Result, train

CONFIG = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1, batch_size=64), device="cpu")
CONFIGS = [with_seed(CONFIG, seed) for seed in (2, 3, 5)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "trials.jsonl")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were run, instead of running them."""
    seen: list[int] = []

    def instead(config: RunConfig, **options: object) -> Trial:
        seen.append(config.train.seed)
        result = Result("accuracy", 1, 0.5, {"accuracy": config.train.seed / 10}, 1009, 2.0, "a CPU")
        return Trial(result, {})

    monkeypatch.setattr(trials, "run_trial", instead)
    return seen


def test_a_seed_changes_weights_and_split():
    other = with_seed(CONFIG, 7)
    assert (other.train.seed, other.split.seed) == (7, 7)
    assert replace(other, train=CONFIG.train, split=CONFIG.split) == CONFIG


def test_a_trial_is_a_run_and_gives_the_same_twice():
    one, other = run_trial(CONFIG), run_trial(CONFIG)
    assert replace(one.result, seconds=0) == replace(other.result, seconds=0)
    assert one.notes | {"peak_memory_mb": 0} == other.notes | {"peak_memory_mb": 0}
    assert set(one.notes) == {
        "chosen_by", "last_valid", "curves", "dataset", "split", "without_duplicates", "peak_memory_mb",
    }  # fmt: skip
    assert one.notes["peak_memory_mb"] > 50
    found = one.notes["without_duplicates"]
    assert 0 < found["graphs"] < one.notes["split"]["test"]
    assert 0 <= found["accuracy"] <= 1


@pytest.mark.parametrize("window", [1, 2, 7])
def test_the_score_that_chose_the_epoch_is_the_mean_over_the_window_that_ends_with_it(window):
    config = replace(CONFIG, train=replace(CONFIG.train, epochs=5, selection_window=window, lr=0.2, seed=1))
    trial, run = run_trial(config), train(config)
    scores = [record["valid_accuracy"] for record in run.history]
    assert len(set(scores)) > 2, "the scores differ, so that another window would give another mean"
    length = min(window, 5)
    means = {end: sum(scores[end - length : end]) / length for end in range(length, 6)}
    assert window > 5 or max(means.values()) > means[5], "the best stretch is not the last"
    assert trial.notes["chosen_by"] == pytest.approx(means[trial.result.epoch]) == pytest.approx(max(means.values()))
    assert trial.notes["last_valid"] == pytest.approx(means[5])


def test_a_trial_by_validation_alone_is_the_same_training_without_test_scores(ledger, monkeypatch):
    config = replace(CONFIG, train=replace(CONFIG.train, epochs=3, selection_window=2))
    (whole,) = run_trials([config], ledger)
    monkeypatch.setattr(trials, "train", None)
    (part,) = run_trials([config], ledger, is_validation_only=True)
    assert part["result"]["test"] == {}
    assert [part[name] for name in ("chosen_by", "last_valid", "curves", "split", "dataset")] == [
        whole[name] for name in ("chosen_by", "last_valid", "curves", "split", "dataset")
    ]
    assert part["result"]["valid"] == whole["result"]["valid"]
    assert run_trials([config], ledger) == [whole], "neither stands for the other"
    assert run_trials([config], ledger, is_validation_only=True) == [part]


def test_a_record_tells_what_the_trial_was_done_on(ledger):
    (record,) = run_trials([CONFIG], ledger)
    assert read_json(ledger.path) == record
    assert record["dataset"]["graphs"] == 188
    assert {name: record["split"][name] for name in ("train", "valid", "test")} == {
        "train": 150,
        "valid": 19,
        "test": 19,
    }
    assert record["split"]["digest"] != run_trial(with_seed(CONFIG, 1)).notes["split"]["digest"]
    assert record["curves"]["epoch"] == [1]
    assert record["curves"]["valid_accuracy"] == [pytest.approx(record["chosen_by"], rel=1e-4)]


def test_a_fingerprint_sees_every_tensor():
    graphs = load_dataset("MUTAG")
    assert graphs.node_labels is not None
    assert graphs.edge_labels is not None
    changed = [
        replace(graphs, targets=graphs.targets.flip(0)),
        replace(graphs, node_labels=graphs.node_labels.flip(0)),
        replace(graphs, edge_labels=graphs.edge_labels.flip(0)),
        replace(graphs, source=graphs.source.flip(0)),
    ]
    assert dataset_fingerprint(graphs) == dataset_fingerprint(load_dataset("MUTAG"))
    assert len({dataset_fingerprint(each)["digest"] for each in (graphs, *changed)}) == 5


@pytest.mark.parametrize(("epochs", "points"), [(1, 1), (25, 25), (26, 13), (100, 25), (103, 21)])
def test_a_curve_is_kept_in_few_points(epochs, points):
    kept = thin_curves([{"epoch": e, "lr": 0.1, "loss": float(e)} for e in range(1, epochs + 1)])
    assert (len(kept["epoch"]), kept["epoch"][-1], list(kept)) == (points, epochs, ["epoch", "loss"])
    stretch = kept["epoch"][0]
    assert kept["loss"][0] == pytest.approx((1 + stretch) / 2)


def test_trials_take_turns_on_devices(ledger, monkeypatch):
    used = []

    def instead(config: RunConfig, **options: object) -> Trial:
        used.append(config.device)
        return Trial(Result("accuracy", 1, 0.5, {"accuracy": 0.5}, 1, 2.0, "a CPU"), {})

    monkeypatch.setattr(trials, "run_trial", instead)
    run_trials(CONFIGS[:1], ledger)
    run_trials(CONFIGS, ledger, devices=["cuda:0", "cuda:1"])
    assert used == ["cpu", "cuda:0", "cuda:1"]


def test_a_failure_that_is_told_keeps_no_other_from_running(ledger):
    failures = []
    configs = [CONFIGS[0], replace(CONFIG, dataset="NOWHERE"), CONFIGS[1]]
    records = run_trials(
        configs, ledger, on_failure=lambda config, error: failures.append((config.dataset, str(error)))
    )
    assert [record["config"]["train"]["seed"] for record in records] == [2, 3]
    assert [name for name, _ in failures] == ["NOWHERE"]
    assert "no data set 'NOWHERE'" in failures[0][1]


def test_a_process_that_dies_is_told_with_the_remedy(ledger):
    def kill(config: RunConfig, record: dict) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    many = [with_seed(CONFIG, seed) for seed in range(40)]
    with pytest.raises(InputError, match=r"one of the 2 processes has died.*lower --jobs"):
        run_trials(many, ledger, jobs=2, on_trial=kill)
    assert 1 <= len(ledger.by_key()) < 40


def test_finished_trials_are_not_run_again(ledger, runs):
    told = []
    first = run_trials(CONFIGS[:2], ledger, on_trial=lambda config, record: told.append(config))
    assert (runs, told) == ([2, 3], CONFIGS[:2])
    again = run_trials(CONFIGS, ledger)
    assert runs == [2, 3, 5]
    assert again[:2] == first
    assert [record["config"]["train"]["seed"] for record in again] == [2, 3, 5]


def test_the_same_trial_asked_twice_is_run_once(ledger, runs):
    assert len(run_trials([CONFIG, CONFIG], ledger)) == 2
    assert runs == [0]


def test_a_trial_that_fails_keeps_those_before_it(ledger):
    with pytest.raises(InputError, match="no data set 'NOWHERE'"):
        run_trials([CONFIGS[0], replace(CONFIG, dataset="NOWHERE")], ledger)
    assert len(ledger.by_key()) == 1


def test_a_ledger_that_cannot_be_written_stops_before_the_first_trial(tmp_path, runs):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"trials\.jsonl: .*; choose another"):
        run_trials(CONFIGS, Ledger(tmp_path / "file" / "trials.jsonl"))
    assert runs == []


def test_side_by_side_gives_what_one_after_the_other_gives(ledger, tmp_path):
    together = run_trials(CONFIGS[:2], ledger, jobs=2)
    alone = run_trials(CONFIGS[:2], Ledger(tmp_path / "alone.jsonl"))
    assert [r["config"] for r in together] == [r["config"] for r in alone]
    assert [r["result"]["test"] for r in together] == [r["result"]["test"] for r in alone]


def test_trials_are_added_up(ledger, runs):
    summary = summarise(run_trials(CONFIGS, ledger))
    assert summary.trials == 3
    assert summary.test_mean == pytest.approx((0.2 + 0.3 + 0.5) / 3)
    assert summary.test_std == pytest.approx(math.sqrt((0.1333333**2 + 0.0333333**2 + 0.1666667**2) / 2), rel=1e-5)
    assert (summary.valid_mean, summary.parameters, summary.seconds) == (0.5, 1009, 2.0)


def test_one_trial_has_no_deviation(ledger, runs):
    assert math.isnan(summarise(run_trials([CONFIG], ledger)).test_std)


def of_table(path: Path, split: SplitConfig, **options: Any) -> RunConfig:
    """A trial on a table of molecules."""
    settings = {"dim": 8, "depth": 1, **options.pop("settings", {})}
    train = TrainConfig(epochs=1, batch_size=64)
    return RunConfig(str(path), "gin", settings, train, split, "cpu", targets=("y",), **options)


@pytest.mark.real_data
@pytest.mark.parametrize("case", ["parts", "times", "files", "duplicates", "descriptors"])
def test_trials_read_a_real_table_as_a_run_does(case, data_root, tmp_path):
    pytest.importorskip("rdkit")
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        rows = [(smiles.strip(), y) for y, smiles, _ in list(csv.reader(file))[1:121]]
    parts, paths = [*["train"] * 80, *["val"] * 20, *["test"] * 20], []
    for name, start in (("train", 0), ("valid", 80), ("test", 100)):
        lines = [f'"{smiles}",{y},{parts[start + i]},{97 * i % 120}' for i, (smiles, y) in enumerate(rows[start:])]
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text("\n".join(["smiles,y,part,n", *lines, *lines[:4]]) + "\n")
    path, valid, test = paths
    config = {
        "parts": of_table(path, SplitConfig(column="part")),
        "times": of_table(path, SplitConfig("time", column="n")),
        "files": of_table(path, SplitConfig(), table=TableConfig(valid=str(valid), test=str(test))),
        "duplicates": of_table(path, SplitConfig(), table=TableConfig("drop")),
        "descriptors": of_table(
            path, SplitConfig(), table=TableConfig(descriptor_file=str(path)), settings={"descriptors": ("n",)}
        ),
    }[case]
    trial, run, dataset = run_trial(config), train(config), load_run_dataset(config)
    assert trial.notes["dataset"] == dataset_fingerprint(dataset)
    assert [trial.notes["split"][name] for name in PARTS] == [len(part) for part in run.split.to_dict().values()]
    assert trial.result.test == run.result.test
    assert trial.result.valid == run.result.valid
    if case == "descriptors":
        cells = ["smiles,a,b", *(f'"{smiles}",{97 * i % 120},{31 * i % 11}' for i, (smiles, _) in enumerate(rows))]
        (tmp_path / "own.csv").write_text("\n".join(cells) + "\n")
        by_file = replace(config, table=TableConfig(), settings={"descriptors": (str(tmp_path / "own.csv"),)})
        by_name = replace(
            config, table=TableConfig(descriptor_file=str(tmp_path / "own.csv")), settings={"descriptors": ("a", "b")}
        )
        found = [run_trial(each, is_validation_only=True).result.valid for each in (by_file, by_name)]
        assert found[0] == found[1], "a table stands for its columns"
    assert len(dataset) == {"files": 124 + 44 + 24, "duplicates": 120}.get(case, 124)
