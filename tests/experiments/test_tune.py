"""A search begins with what it was given, never looks at test, and goes on where it was stopped."""

import csv
import fcntl
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from threading import Timer

import optuna
import pytest
from markup import is_self_contained

from mnagt import load_dataset, read_recipe, train
from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.experiments.tune import LOCK, MIN_FINISHED, PruningReporter, TrialRunner, TuneConfig, tune
from mnagt.experiments.tune_result import TrialResult, TuneResult, build_page, judge_best
from mnagt.experiments.tune_space import search_space, starting_point
from mnagt.experiments.tune_study import MAX_ATTEMPTS, STUDY, Search, open_study
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.split import make_split
from mnagt.tasks import Regression
from mnagt.training.trainer import Interrupted

START = RunConfig(
    "MUTAG",
    "gin",
    {"dim": 8, "depth": 1},
    TrainConfig(epochs=3, batch_size=64, selection_window=2, seed=3),
    SplitConfig(seed=2),
    device="cpu",
)
SEARCH = TuneConfig(trials=13, seeds=2, only=("lr", "dim", "depth"))
LITTLE = {"dim": [8, 16], "depth": 1}


def outcome(tuned: TuneResult) -> list[TrialResult]:
    """All but the time it took, and trials that were lost."""
    return [replace(trial, seconds=0.0, number=0) for trial in tuned.trials if trial.state != "lost"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search")


@pytest.fixture(scope="module")
def found(folder: Path) -> TuneResult:
    """A search on MUTAG."""
    return tune(START, folder, search=SEARCH, space=LITTLE)


# What is tried, and how it is judged


def test_the_recipe_comes_first_and_its_figure_is_that_of_the_last_epochs_of_its_own_runs(found):
    first = found.trials[0]
    assert found.start is first
    assert first.settings == starting_point(START, found.space)
    runs = [
        train(replace(START, train=replace(START.train, seed=3 + i), split=SplitConfig(seed=2 + i))) for i in range(2)
    ]
    figures = [mean(record["valid_accuracy"] for record in run.history[-2:]) for run in runs]
    assert first.scores == tuple(figures)
    assert first.score == mean(figures)
    assert first.epochs == 6


def test_the_best_is_the_best_of_those_that_finished(found):
    assert found.count == len(found.trials) == 13
    finished = [trial for trial in found.trials if trial.state == "finished"]
    assert found.best in finished
    assert found.best.score == max(trial.score for trial in finished)


def test_of_errors_the_smallest_is_the_best(tmp_path):
    mutag = load_dataset("MUTAG")
    sizes = replace(mutag, task=Regression(("size",)), targets=mutag.sizes[:, None].float())
    tuned = tune(START, tmp_path, search=replace(SEARCH, trials=3, seeds=1), space=LITTLE, dataset=sizes)
    assert (tuned.metric, tuned.higher_is_better) == ("rmse", False)
    assert tuned.best is not None
    assert tuned.best.score == min(trial.score for trial in tuned.trials if trial.score is not None)
    study = optuna.load_study(study_name=STUDY, storage=f"sqlite:///{tmp_path / STUDY}")
    assert study.best_trial.number == tuned.best.number


def test_answers_of_the_test_part_change_nothing(tmp_path):
    mutag = load_dataset("MUTAG")
    test = make_split(START.split, mutag).test
    targets = mutag.targets.clone()
    targets[test] = 1 - targets[test]
    search = replace(SEARCH, trials=3, seeds=1)
    one, other = (
        tune(START, tmp_path / name, search=search, space=LITTLE, dataset=dataset)
        for name, dataset in (("one", mutag), ("other", replace(mutag, targets=targets)))
    )
    assert outcome(one) == outcome(other)


def watched(scores: list[float], study: optuna.Study) -> PruningReporter:
    """A trial of one seed with these validation scores."""
    watch = PruningReporter(study.ask(), "valid_accuracy", window=2, seeds=2)
    watch.begin(len(scores), 1, [])
    for score in scores:
        watch.epoch({"valid_accuracy": score}, None)
    return watch


def test_a_trial_is_pruned_when_most_were_ahead_at_the_same_point():
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(MIN_FINISHED))
    for _ in range(MIN_FINISHED):
        watch = watched([0.5, 0.7, 0.8], study)
        assert watch.scores == [pytest.approx(0.75)]
        study.tell(watch.trial, watch.scores[0])
    assert study.trials[0].intermediate_values == pytest.approx({1: 0.5, 2: 0.6, 3: 0.75})
    assert watched([0.5, 0.7, 0.9], study).epochs == 3
    with pytest.raises(optuna.TrialPruned):
        watched([0.4, 0.9, 0.9], study)
    assert study.trials[-1].intermediate_values == {1: 0.4}


def test_settings_that_cannot_be_trained_are_set_aside_with_the_reason(tmp_path):
    search = TuneConfig(trials=6, seeds=1, only=("dim", "heads"))
    space = {"dim": [8, 12], "heads": [2, 8]}
    gat = replace(START, model="gat", settings={"dim": 8, "depth": 1, "heads": 2})
    tuned = tune(gat, tmp_path, search=search, space=space)
    refused = [trial for trial in tuned.trials if trial.state == "refused"]
    assert {(trial.settings["dim"], trial.settings["heads"]) for trial in refused} == {(12, 8)}
    assert all("heads must divide dim, got 8 heads for a width of 12" in trial.reason for trial in refused)
    assert "heads must divide dim" in build_page(tuned)


def test_a_recipe_that_cannot_be_trained_ends_the_search(tmp_path):
    diverging = replace(START, train=replace(START.train, lr=1e30, clip=0.0))
    with pytest.raises(InputError, match="the loss is nan"):
        tune(diverging, tmp_path, search=SEARCH, space=LITTLE)


# What is left behind


def test_the_best_recipe_can_be_read_and_gives_its_figure_again(found, folder):
    recipe = read_recipe(folder / "best.toml")
    assert (folder / "best.toml").read_text().startswith(f"# Trial {found.best.number} of `mnagt tune`, the best of 13")
    chosen = recipe.settings | vars(recipe.train)
    assert chosen | found.best.settings == chosen
    run = train(replace(recipe, device="cpu"))
    assert mean(record["valid_accuracy"] for record in run.history[-2:]) == found.best.scores[0]


def test_the_table_has_a_row_for_each_trial(found, folder):
    rows = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in found.trials]
    assert [float(row["valid_accuracy"]) for row in rows] == [trial.score for trial in found.trials]
    assert {row["dim"] for row in rows} <= {"8", "16"}


def test_the_report_stands_alone_and_shows_every_setting(found, folder):
    told = (folder / "report.html").read_text()
    assert is_self_contained(told)
    for name, entry in found.space.items():
        is_searched = not isinstance(entry, tuple) or len(entry) > 1
        assert (f'aria-label="accuracy by {name}"' in told) == is_searched
    assert f"{found.best.score:.4f}" in told
    assert set(found.importances) >= {"lr", "dim"}, "ten trials have finished"
    assert sum(found.importances.values()) == pytest.approx(1)
    assert "PED-ANOVA" in told


def test_the_report_says_what_the_best_figure_is_worth(found):
    start, better = (
        TrialResult(i, "finished", found.trials[0].settings, mean(figures), figures, 10, 1.0, is_start=i == 0)
        for i, figures in enumerate([(0.5, 0.6), (0.7, 0.7)])
    )
    told = judge_best(replace(found, trials=(start, better)))
    assert told.startswith("The best is ahead of where it began by 0.1500 ± 0.0500")
    assert "mnagt trials best.toml --first-seed 5" in told
    assert judge_best(replace(found, trials=(start,))).startswith("No trial was better than the settings")
    lost = replace(start, state="lost", score=None, scores=())
    assert "No trial has come to its end yet" in build_page(replace(found, trials=(lost,), importances={}))


# Interrupted, and gone on with


def test_a_search_in_two_parts_is_the_search_in_one(found, tmp_path):
    told = []

    def soon_stop(trial: TrialResult) -> None:
        told.append(trial)
        if len(told) == 7:
            Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(Interrupted):
        tune(START, tmp_path, search=SEARCH, space=LITTLE, on_trial=soon_stop)
    assert 7 <= len(told) < 13
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 1 + len(told)
    tuned = tune(START, tmp_path, search=SEARCH, space=LITTLE, on_trial=soon_stop)
    assert len(told) == 13
    assert outcome(tuned) == outcome(found)


def test_a_finished_search_is_not_run_again_and_no_trial_begins_after_the_time_is_up(found, folder, tmp_path):
    told = []
    assert tune(START, folder, search=SEARCH, space=LITTLE, on_trial=told.append) == found
    tune(START, folder, search=replace(SEARCH, trials=20, timeout=0.0), space=LITTLE, on_trial=told.append)
    assert told == []


def test_a_search_of_version_0_1_goes_on(tmp_path):
    fixtures = Path(__file__).parents[1] / "fixtures" / "v0.1"
    shutil.unpack_archive(fixtures / "tune.zip", tmp_path)
    recipe, told = read_recipe(fixtures / "small.toml"), []
    tuned = tune(recipe, tmp_path / "tune", search=TuneConfig(trials=3, seeds=1), on_trial=told.append)
    assert [trial.number for trial in told] == [2]
    assert [trial.score for trial in tuned.trials[:2]] == [pytest.approx(6 / 19), pytest.approx(23 / 38)]
    assert tuned.start is tuned.trials[0]
    assert tuned.trials[0].settings == starting_point(recipe, tuned.space)
    assert all(trial.settings.keys() == tuned.space.keys() for trial in tuned.trials)
    assert tuned.recipe is not None
    assert read_recipe(tmp_path / "tune" / "best.toml").settings["dim"] == tuned.recipe.settings["dim"]


@pytest.mark.parametrize(
    ("config", "seeds", "said"),
    [
        (replace(START, train=replace(START.train, epochs=5)), 2, "began with train.epochs 3, and now it is 5"),
        (replace(START, settings={"dim": 8}), 2, "began with settings.depth 1, and now it is 4"),
        (START, 3, "began with seeds 2, and now it is 3"),
    ],
)
def test_a_search_goes_on_as_it_began(found, folder, config, seeds, said):
    with pytest.raises(InputError, match=f"{said}; say the same again or choose another --out"):
        tune(config, folder, search=replace(SEARCH, seeds=seeds), space=LITTLE)


def test_two_searches_do_not_share_a_folder(tmp_path):
    with (tmp_path / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another search is running there; wait for it or choose another --out"):
            tune(START, tmp_path, search=SEARCH)


def test_a_damaged_study_is_named(tmp_path):
    (tmp_path / STUDY).write_bytes(b"not a database, but long enough to be looked at" * 9)
    with pytest.raises(InputError, match=r"study\.db: damaged or not a study \(.*\); remove it or choose another"):
        tune(START, tmp_path, search=SEARCH)


def test_a_trial_that_never_ends_is_given_up(tmp_path):
    """As if the process had been killed each time that it was at it."""
    seen = []
    for _ in range(MAX_ATTEMPTS + 1):
        tune(START, tmp_path, search=replace(SEARCH, timeout=0.0), space=LITTLE)
        study = optuna.load_study(study_name=STUDY, storage=f"sqlite:///{tmp_path / STUDY}")
        seen.append([trial.state.name for trial in study.trials])
        if "WAITING" in seen[-1]:
            study.ask()
    assert seen == [["FAIL"] * i + ["WAITING"] * (i < MAX_ATTEMPTS) for i in range(MAX_ATTEMPTS + 1)]


def test_ctrl_c_stops_trials_that_run_side_by_side(tmp_path):
    told: list[TrialResult] = []

    def stop(trial: TrialResult) -> None:
        told.append(trial)
        os.kill(os.getpid(), signal.SIGINT)

    search = replace(SEARCH, trials=50, seeds=1, jobs=2)
    longer = replace(START, train=replace(START.train, epochs=20))
    with pytest.raises(Interrupted):
        tune(longer, tmp_path, search=search, space=LITTLE, dataset=load_dataset("MUTAG"), on_trial=stop)
    assert not multiprocessing.active_children()
    assert 1 <= len(told) <= 2
    study = optuna.load_study(study_name=STUDY, storage=f"sqlite:///{tmp_path / STUDY}")
    settings = [tuple(trial.params.items()) for trial in study.trials]
    assert len(set(settings)) == len(settings) <= 4
    assert (tmp_path / "report.html").exists()


def test_settings_are_drawn_and_results_told_while_others_wait(tmp_path):
    """SQLite would hand a waiting trial to two processes."""
    seen = []

    class Seen(Search):
        @contextmanager
        def lock(self, storage: optuna.storages.BaseStorage) -> Iterator[None]:
            with super().lock(storage):
                seen.append([(trial.state.name, len(trial.params)) for trial in study.trials])
                yield
                seen.append([(trial.state.name, len(trial.params)) for trial in study.trials])

    mutag, space = load_dataset("MUTAG"), search_space(START, LITTLE, SEARCH.only)
    options, storage = TuneConfig(1, seeds=1), f"sqlite:///{tmp_path / STUDY}"
    study = open_study(Search(START, space, options, storage), mutag)
    tried = TrialRunner(Seen(START, space, options, storage), mutag).run()
    assert tried is not None
    assert tried.is_start
    assert seen == [[(state, n)] for state, n in (("WAITING", 0), ("RUNNING", 3), ("RUNNING", 3), ("COMPLETE", 3))]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_killed_with_two_trials_under_way_it_loses_these_and_goes_on(tmp_path):
    words = ["tune", "MUTAG", "--model", "gin", "--epochs", "20", "--seeds", "1", "--device", "cpu", "--jobs", "2"]
    words += ["--only", "lr,dim", "--trials", "6", "--out", str(tmp_path)]
    search = subprocess.Popen([sys.executable, "-m", "mnagt", *words], stderr=subprocess.PIPE, text=True)
    assert search.stderr is not None
    line = search.stderr.readline()
    assert line.startswith("trial "), line
    workers = [int(word) for word in Path(f"/proc/{search.pid}/task/{search.pid}/children").read_text().split()]
    assert len(workers) >= 2
    search.send_signal(signal.SIGKILL)
    search.wait()
    search.stderr.close()
    until = time.monotonic() + 10
    while any(map(is_alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))
    with closing(sqlite3.connect(tmp_path / STUDY)) as there:
        states = dict(there.execute("select number, state from trials").fetchall())
    done = [number for number, state in states.items() if state == "COMPLETE"]
    lost = [number for number, state in states.items() if state == "RUNNING"]
    assert done
    assert len(lost) <= 2  # none, if both were done and the next not begun

    assert main([*words, "--jobs", "1"]) == 0
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["state"] for row in rows].count("lost") == len(lost)
    assert len(rows) - len(lost) == 6
    again = [(row["lr"], row["dim"]) for row in rows if row["state"] != "lost"]
    drawn = [(rows[number]["lr"], rows[number]["dim"]) for number in lost]
    assert {settings for settings in drawn if all(settings)} <= set(again)
    assert len(set(again)) == 6


# The command line


def test_the_best_of_a_command_is_a_recipe_for_trials(tmp_path, capsys):
    recipe, space = tmp_path / "it.toml", tmp_path / "space.toml"
    recipe.write_text('dataset = "MUTAG"\nmodel = "gin"\ndevice = "cpu"\n[settings]\ndim = 8\ndepth = 1\n')
    space.write_text("[space]\ndim = [8, 16]\n")
    words = ["tune", "--recipe", recipe, "--space", space, "--only", "dim,lr", "--trials", 2, "--seeds", 1]
    assert main([str(word) for word in [*words, "--epochs", 2, "--out", tmp_path / "out"]]) == 0
    printed = capsys.readouterr()
    assert [line.split(":")[0] for line in printed.err.splitlines()] == ["trial 0", "trial 1"]
    assert "best of 2: trial " in printed.out
    assert f"try: mnagt trials {tmp_path / 'out' / 'best.toml'} --first-seed 1" in printed.out
    assert main(["trials", str(tmp_path / "out" / "best.toml"), "--seeds", "1", "--ledger", str(tmp_path / "l")]) == 0
    assert "out/best" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trials", "0"], "trials must be at least 1, got 0"),
        (["--timeout", "-1"], "timeout must be at least 0, got -1.0"),
        (["--only", "lrr"], "no range for the setting 'lrr'; did you mean 'lr'?"),
        (["--space", "gone.toml"], "gone.toml: no such file"),
        (["--device", "tpu"], "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["--split", "files"], "a split from files needs their folder"),
        (["--model", "gin", "--heads", "2"], "`mnagt tune --model gin --help` lists them"),
    ],
    ids=" ".join,
)
def test_a_bad_word_is_named_and_nothing_is_written(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "MUTAG", *words]) == 2
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
