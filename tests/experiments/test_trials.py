"""Trials run once; their figures add up."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from mnagt.errors import InputError
from mnagt.experiments import trials
from mnagt.experiments.ledger import Ledger
from mnagt.experiments.trials import run_trial, run_trials, summarise, with_seed
from mnagt.training.config import RunConfig, TrainConfig
from mnagt.training.run import Result

CONFIG = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1, batch_size=64), device="cpu")
CONFIGS = [with_seed(CONFIG, seed) for seed in (2, 3, 5)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "trials.jsonl")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were run, instead of running them."""
    seen: list[int] = []

    def instead(config: RunConfig) -> Result:
        seen.append(config.train.seed)
        return Result("accuracy", 1, 0.5, {"accuracy": config.train.seed / 10}, 1009, 2.0, "a CPU")

    monkeypatch.setattr(trials, "run_trial", instead)
    return seen


def test_a_seed_changes_weights_and_split():
    other = with_seed(CONFIG, 7)
    assert (other.train.seed, other.split.seed) == (7, 7)
    assert replace(other, train=CONFIG.train, split=CONFIG.split) == CONFIG


def test_a_trial_is_a_run_and_gives_the_same_twice():
    one, other = run_trial(CONFIG), run_trial(CONFIG)
    assert replace(one, seconds=0) == replace(other, seconds=0)


def test_finished_trials_are_not_run_again(ledger, runs):
    told = []
    first = run_trials(CONFIGS[:2], ledger, told=lambda config, record: told.append(config))
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
