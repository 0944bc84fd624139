"""A ledger keeps finished trials, whole lines only."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger, describe_environment, trial_key
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.training.run import Result

RESULT = Result("accuracy", 2, 0.75, {"accuracy": 0.5}, 1009, 1.5, "a CPU")


def trial(seed: int) -> RunConfig:
    return RunConfig("MUTAG", "gin", train=TrainConfig(seed=seed))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "results" / "trials.jsonl")


def test_there_is_nothing_before_the_first_trial(ledger):
    assert list(ledger.records()) == []
    assert ledger.by_key() == {}


def test_a_trial_is_found_again(ledger):
    for seed in (2, 3):
        ledger.append(trial(seed), RESULT)
    record = ledger.by_key()[trial_key(trial(3))]
    assert record["config"]["train"]["seed"] == 3
    assert record["result"]["test"] == {"accuracy": 0.5}
    assert {"date", "machine", "versions", "commit"} <= record.keys()
    assert trial_key(trial(5)) not in ledger.by_key()


def test_a_trial_added_twice_is_there_once_and_the_first_stands(ledger):
    first = ledger.append(trial(2), RESULT)
    again = ledger.append(trial(2), replace(RESULT, valid=0.25))
    assert again["result"]["valid"] == first["result"]["valid"] == 0.75
    assert len(list(ledger.records())) == 1


def test_the_key_is_that_of_the_trial_and_not_of_the_machine():
    config = trial(0)
    assert trial_key(config) == trial_key(replace(config, device="cuda"))
    assert trial_key(config) == trial_key(replace(config, train=replace(config.train, checkpoint_seconds=1.0)))
    others = [
        trial(1),
        replace(config, model="mnagt"),
        replace(config, settings={"dim": 32}),
        replace(config, dataset="X"),
    ]
    assert len({trial_key(c) for c in [config, *others]}) == 5


def test_defaults_written_out_are_the_same_trial():
    assert trial_key(replace(trial(0), settings={"dim": 64})) == trial_key(trial(0))


def test_a_setting_that_came_later_counts_as_its_default(ledger):
    ledger.append(trial(2), RESULT)
    (record,) = ledger.records()
    del record["config"]["train"]["ema_decay"], record["config"]["settings"]["head_dropout"]
    ledger.path.write_text(json.dumps(record) + "\n")
    assert trial_key(trial(2)) in ledger.by_key()


def test_a_trial_with_a_setting_that_is_gone_is_passed_over(ledger):
    ledger.append(trial(2), RESULT)
    (record,) = ledger.records()
    record["config"]["settings"]["phlogiston"] = 1.0
    ledger.path.write_text(json.dumps(record) + "\n")
    assert ledger.by_key() == {}


def test_a_line_cut_short_by_a_crash_is_passed_over_and_then_removed(ledger):
    ledger.append(trial(2), RESULT)
    with ledger.path.open("a") as file:
        file.write('{"key": "half')
    assert len(list(ledger.records())) == 1
    ledger.append(trial(3), RESULT)
    assert [record["config"]["train"]["seed"] for record in ledger.records()] == [2, 3]
    assert "half" not in ledger.path.read_text()


def test_a_whole_last_line_without_its_end_is_kept(ledger):
    ledger.append(trial(2), RESULT)
    ledger.path.write_text(ledger.path.read_text().rstrip("\n"))
    ledger.append(trial(3), RESULT)
    assert [record["config"]["train"]["seed"] for record in ledger.records()] == [2, 3]


@pytest.mark.parametrize(
    ("line", "said"), [("{oops", "not JSON"), ("[1]", "not a trial"), ('{"config": {}, "result": null}', "not a trial")]
)
def test_a_damaged_line_is_refused_by_number(ledger, line, said):
    ledger.append(trial(2), RESULT)
    whole = ledger.path.read_text()
    ledger.path.write_text(f"{whole}{line}\n{whole}")
    with pytest.raises(InputError, match=rf"trials\.jsonl, line 2: {said}; remove the line"):
        list(ledger.records())


def test_a_folder_is_no_ledger(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        list(Ledger(tmp_path).records())


def test_a_ledger_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*trials\.jsonl: there is a file where its folder would be"):
        Ledger(tmp_path / "file" / "trials.jsonl").check()


def test_on_a_full_disk_the_ledger_stays_as_it_was(ledger, monkeypatch):
    ledger.append(trial(2), RESULT)
    before = ledger.path.read_bytes()

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("mnagt.experiments.ledger.os.fsync", refuse)
        with pytest.raises(InputError, match=r"cannot write .*trials\.jsonl: No space left on device"):
            ledger.append(trial(3), RESULT)
    assert ledger.path.read_bytes() == before


def test_two_writers_can_add_at_once(ledger):
    def add(seed: int) -> None:
        Ledger(ledger.path).append(trial(seed), RESULT)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(40)))
    assert {record["config"]["train"]["seed"] for record in ledger.records()} == set(range(40))


def test_circumstances_can_be_written():
    told = describe_environment()
    assert json.loads(json.dumps(told)) == told
