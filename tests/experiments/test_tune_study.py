"""A search that several processes share: trials are divided, none is lost, none is run for nothing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import optuna
import pytest
from sqlalchemy.exc import SQLAlchemyError

from mnagt import load_dataset
from mnagt.errors import InputError
from mnagt.experiments.tune import TrialRunner, TuneConfig, tune
from mnagt.experiments.tune_space import search_space
from mnagt.experiments.tune_study import HEARTBEAT, Search, open_study, resolve_storage, retry
from mnagt.runs.config import RunConfig, TrainConfig

START = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=2, batch_size=64), device="cpu")
SPACE = {"dim": [8, 16], "depth": 1}
WORDS = ["tune", "MUTAG", "--model", "gin", "--dim", "8", "--depth", "1", "--epochs", "2", "--batch-size", "64"]
WORDS += ["--device", "cpu", "--seeds", "1", "--only", "lr,dim"]


def search(storage: str, trials: int = 8, **settings: float) -> TuneConfig:
    return TuneConfig(trials, seeds=1, only=("lr", "dim"), storage=storage, **settings)  # type: ignore[arg-type]


def begun(storage: str, out: Path, *words: str) -> subprocess.Popen:
    """A search of the command line, under way."""
    told = [sys.executable, "-m", "mnagt", *WORDS, "--storage", storage, "--out", str(out), *words]
    return subprocess.Popen(told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def trials_of(storage: str, name: str = "MUTAG-gin") -> list[optuna.trial.FrozenTrial]:
    there = Search(START, {}, TuneConfig(), resolve_storage(storage)).connect()
    try:
        return optuna.load_study(study_name=name, storage=there).trials
    finally:
        if isinstance(there, optuna.storages.RDBStorage):
            there.engine.dispose()


def divided(storage: str, tmp_path: Path) -> None:
    """Two processes begin the same search at the same moment."""
    both = [begun(storage, tmp_path / name, "--trials", "8") for name in ("one", "other")]
    told = []
    for process in both:
        said, complained = process.communicate(timeout=120)
        assert process.returncode == 0, complained
        assert said.startswith("best of 8: trial "), said
        told.append([int(number) for number in re.findall(r"^trial (\d+): ", complained, re.MULTILINE)])
    assert sorted(told[0] + told[1]) == list(range(8))
    assert min(map(len, told)) >= 1
    trials = trials_of(storage)
    assert [trial.number for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")] == list(range(8))
    assert [trial.number for trial in trials if trial.user_attrs.get("start")] == [0]
    one, other = ((tmp_path / name / "best.toml").read_text() for name in ("one", "other"))
    assert one == other


def test_two_processes_divide_a_search(tmp_path):
    divided(f"sqlite:///{tmp_path}/shared.db", tmp_path)


@pytest.mark.slow
def test_two_processes_divide_a_search_in_a_journal(tmp_path):
    divided(str(tmp_path / "shared.log"), tmp_path)


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of a database server begun for the test."""
    if not shutil.which("initdb"):
        pytest.skip("no PostgreSQL here")
    user = "nobody" if os.getuid() == 0 else None  # it refuses to run as root
    with TemporaryDirectory() as folder:
        shutil.chown(folder, user or os.getuid())
        quiet = {"stdout": subprocess.DEVNULL, "user": user, "cwd": folder}
        subprocess.run(["initdb", "-D", "data", "-A", "trust", "-U", "it"], check=True, **quiet)
        where = f"-c listen_addresses= -k {folder} -c fsync=off"
        subprocess.run(["pg_ctl", "-D", "data", "-l", "log", "-w", "-o", where, "start"], check=True, **quiet)
        yield f"postgresql+psycopg://it@/postgres?host={folder}"
        subprocess.run(["pg_ctl", "-D", "data", "-m", "immediate", "stop"], check=True, **quiet)


@pytest.mark.slow
def test_two_processes_divide_a_search_in_a_database(postgres, tmp_path):
    pytest.importorskip("psycopg")
    divided(postgres, tmp_path)


def test_a_trial_whose_process_is_killed_is_begun_anew_by_another(tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    longer = replace(START, train=replace(START.train, epochs=80))
    other = begun(storage, tmp_path / "other", "--epochs", "80", "--heartbeat-timeout", "1", "--trials", "3")
    until = time.monotonic() + 60
    while not is_under_way(storage) and time.monotonic() < until:
        time.sleep(0.2)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    done, told = [trial.number for trial in trials_of(storage) if trial.state.name == "COMPLETE"], []
    tuned = tune(longer, tmp_path / "out", search=search(storage, 3, heartbeat_timeout=1.0), on_trial=told.append)
    assert Counter(trial.state for trial in tuned.trials) == {"finished": 3, "lost": 1}
    finished = [trial.number for trial in tuned.trials if trial.state == "finished"]
    assert sorted([*done, *(trial.number for trial in told)]) == finished
    (lost,) = (trial for trial in tuned.trials if trial.state == "lost")
    assert lost.settings in [tuned.trials[number].settings for number in finished]


def is_under_way(storage: str) -> bool:
    """A trial has its settings, and is not over."""
    try:
        return any(trial.state.name == "RUNNING" and trial.params for trial in trials_of(storage))
    except (KeyError, RuntimeError, SQLAlchemyError):  # there is no search yet, or not all its tables
        return False


@pytest.mark.parametrize("storage", ["sqlite:///{}/shared.db", "{}/shared.log"])
def test_a_trial_without_a_heartbeat_is_lost_and_its_settings_come_next(storage, tmp_path):
    space = search_space(START, SPACE, ("lr", "dim"))
    options = TuneConfig(trials=2, seeds=1, heartbeat_timeout=1.0)
    search = Search(START, space, options, resolve_storage(storage.format(tmp_path)), "it", is_shared=True)
    open_study(search, load_dataset("MUTAG"))
    runner = TrialRunner(search, load_dataset("MUTAG"))
    quiet, lively = runner.ask(), runner.ask()
    assert quiet is not None
    assert lively is not None
    assert runner.ask() is None, "two are enough"
    until = time.monotonic() + 30
    while (again := runner.ask()) is None and time.monotonic() < until:
        lively.set_user_attr(HEARTBEAT, time.time())
        time.sleep(0.2)
    assert again is not None
    assert again.params == quiet.params
    assert [trial.state.name for trial in runner.study.trials] == ["FAIL", "RUNNING", "RUNNING"]


def test_a_trial_that_was_given_up_counts_once_when_it_ends_after_all(tmp_path, monkeypatch):
    """As if its machine had slept meanwhile."""
    mutag, space = load_dataset("MUTAG"), search_space(START, SPACE, ("lr", "dim"))
    search = Search(
        START, space, TuneConfig(1, seeds=1), resolve_storage(str(tmp_path / "shared.log")), "it", is_shared=True
    )
    study = open_study(search, mutag)
    runner, train = TrialRunner(search, mutag), TrialRunner.train

    def sleep_meanwhile(self: TrialRunner, *args: object) -> None:
        train(self, *args)  # type: ignore[arg-type]
        (running,) = study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
        retry(study, running)

    monkeypatch.setattr(TrialRunner, "train", sleep_meanwhile)
    late = runner.run()
    monkeypatch.undo()
    assert late is not None
    assert late.state == "lost"
    again = runner.run()
    assert again is not None
    assert (again.state, again.settings, again.is_start) == ("finished", late.settings, True)
    assert runner.run() is None
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]


def test_a_shared_search_of_version_0_1_goes_on_with_its_data(tmp_path):
    """Its digest of the data set was computed from other columns."""
    mutag, space = load_dataset("MUTAG"), search_space(START, SPACE, ("lr", "dim"))
    search = Search(
        START, space, TuneConfig(1, seeds=1), resolve_storage(f"sqlite:///{tmp_path}/shared.db"), "it", is_shared=True
    )
    study = open_study(search, mutag)
    study.set_user_attr("search", {**study.user_attrs["search"], "digest": "8185c0407c6565fac5f06ca1"})
    open_study(search, mutag)
    study.set_user_attr("search", {**study.user_attrs["search"], "digest": "8185c0407c6565fac5f06ca2"})
    with pytest.raises(InputError, match="began with digest 8185"):
        open_study(search, mutag)


def test_a_shared_search_is_the_same_for_all(tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    tune(START, tmp_path / "one", search=search(storage, 1), space=SPACE)
    with pytest.raises(InputError, match=r"heartbeat_timeout 60\.0, and now it is 30\.0; .* choose another --study"):
        tune(START, tmp_path / "other", search=search(storage, 1, heartbeat_timeout=30.0), space=SPACE)
    mutag = load_dataset("MUTAG")
    changed = replace(mutag, targets=mutag.targets.flip(0))
    with pytest.raises(InputError, match="began with digest"):
        tune(START, tmp_path / "other", search=search(storage, 1), space=SPACE, dataset=changed)
    named = replace(search(storage, 1), study="another")
    assert tune(START, tmp_path / "other", search=named, space=SPACE, dataset=changed).count == 1


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("sqlite://", "names no file; say sqlite:///FILE"),
        ("what://is/this", "what://is/this: damaged or not a study"),
        ("postgresql+psycopg://me:secret@127.0.0.1:1/none", r"me:\*\*\*@127.0.0.1:1/none: damaged or not a study"),
    ],
)
def test_a_storage_that_cannot_be_is_named_without_its_password(storage, said, tmp_path):
    with pytest.raises(InputError, match=said) as caught:
        tune(START, tmp_path, search=search(storage), space=SPACE)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_journal_is_named(tmp_path):
    (tmp_path / "it").write_text("not a journal\nat all\n")
    with pytest.raises(InputError, match=r"it: damaged or not a study"):
        tune(START, tmp_path / "out", search=search(str(tmp_path / "it")), space=SPACE)
