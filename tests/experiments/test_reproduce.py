"""Experiments are lists of trials; running one is filling a ledger, and can be interrupted and repeated."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from data.tu_files import folder

import mnagt
from mnagt.cli import main
from mnagt.data.registry import load_dataset
from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger, trial_key
from mnagt.experiments.reproduce import Cell, read_cells, reproduce
from mnagt.experiments.reproduce_tables import (
    EXPERIMENTS,
    MODEL_OF,
    OURS,
    PAPER,
    PROTOCOLS,
    Protocol,
    ReproduceConfig,
    list_trials,
    recipe,
    select_cells,
)
from mnagt.experiments.statistics import Paired
from mnagt.experiments.trials import with_seed
from mnagt.models.registry import MODELS, full_settings
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.recipes import read_recipe, read_recipes
from mnagt.runs.split import make_split
from mnagt.settings import from_dict
from mnagt.training.run import train

RESULTS = Path(__file__).parents[2] / "results"
FIXTURES = Path(__file__).parents[1] / "fixtures"
QUICK = ReproduceConfig(seeds=2, is_quick=True, datasets=("MUTAG",), only=("gcn/*", "gin/*"), devices=("cpu",))
TABLE1 = EXPERIMENTS["table1"]
OURS_ROW = next(row for row in TABLE1.rows if row.name == OURS)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "trials.jsonl")


# --- the description ---


def test_only_selects_by_the_name_of_a_row_or_else_by_its_model():
    def names(experiment: str, *patterns: str) -> list[str]:
        config = ReproduceConfig(only=patterns, datasets=("NCI1",))
        return [row.name for row, _ in select_cells(EXPERIMENTS[experiment], config)]

    assert names("attribution", "mnagt/*", "mnagt without attention/NCI1") == ["mnagt", "mnagt without attention"]
    assert names("hops", "mnagt-paper/*") == [f"mnagt-paper, max_hop {hops}" for hops in range(1, 6)]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_of_every_experiment_can_be_built(name):
    experiment = EXPERIMENTS[name]
    assert len({row.name for row in experiment.rows}) == len(experiment.rows)
    for row, dataset in select_cells(experiment, ReproduceConfig()):
        trial = list_trials(row, dataset, experiment, ReproduceConfig(seeds=1))[0][0]
        assert (trial.dataset, trial.model) == (dataset, row.model)
        told = full_settings(trial.model, trial.settings)
        assert {setting: told[setting] for setting in row.settings} == dict(row.settings)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_are_held_against_rows_of_the_same_table(name):
    names = {row.name for row in EXPERIMENTS[name].rows}
    assert {row.against for row in EXPERIMENTS[name].rows} - {None} <= names
    assert any(row.model == OURS for row in EXPERIMENTS[name].rows)
    assert name == "attribution" or any(row.model == "mnagt-paper" for row in EXPERIMENTS[name].rows)


def test_the_paper_is_told_as_printed():
    table1, table2, ablation = PAPER["table1"]["test"], PAPER["table2"]["test"], PAPER["ablation"]
    assert {*table1, *table2} == set(MODEL_OF)
    for dataset, least in (("NCI1", 1.46), ("COLLAB", 1.75)):  # what its text says it gains over the best baseline
        best = max(figures[dataset][0] for name, figures in table1.items() if name != "MNA-GT")
        assert table1["MNA-GT"][dataset][0] - best == pytest.approx(least)
    gains = [ablation["adaptive"] - ablation[mixer] for mixer in ("sum", "mean", "concat")]
    assert gains == pytest.approx([2.12, 1.58, 0.78])  # printed beside the accuracies
    assert sum(len(figures) for figures in table2.values()) == 15
    assert [row.model for row in TABLE1.rows] == [*(MODEL_OF[name] for name in table1), "gin", OURS]


def test_a_recipe_is_that_of_the_data_set_or_else_that_of_nci1():
    assert recipe("COLLAB", "gat") == read_recipe("collab/gat")
    assert recipe("path/to/Mine.zip", "sat") == replace(recipe("NCI1", "sat"), dataset="path/to/Mine.zip")
    model = next(name for name in MODELS if name not in read_recipes("ogbg-molpcba"))
    assert recipe("ogbg-molpcba", model) == replace(recipe("ogbg-molpcba", OURS), model=model, settings={})


def test_the_package_carries_the_recipes():
    inside = Path(mnagt.__file__).parent / "recipes"
    assert inside.samefile(Path(__file__).parents[2] / "recipes")


# --- protocols ---


def splits(protocol: Protocol, seeds: int = 3, dataset: str = "MUTAG") -> list[list[RunConfig]]:
    config = ReproduceConfig(protocol=protocol, seeds=seeds, first_seed=5)
    return list_trials(OURS_ROW, dataset, TABLE1, config)


def test_redrawn_trials_have_splits_of_their_own():
    assert [(t.split.seed, t.train.seed) for (t,) in splits("redrawn")] == [(5, 5), (6, 6), (7, 7)]


def test_a_fixed_split_is_the_same_for_all():
    assert [(t.split.seed, t.train.seed) for (t,) in splits("fixed")] == [(5, 5), (5, 6), (5, 7)]


def test_folds_test_every_graph_once_and_try_three_rates():
    graphs, tested = load_dataset("MUTAG"), []
    for candidates in splits("folds", 10):
        parts = [make_split(trial.split, graphs).test.tolist() for trial in candidates]
        assert parts[0] == parts[1] == parts[2]
        rates = [trial.train.lr / recipe("MUTAG", OURS).train.lr for trial in candidates]
        assert rates == pytest.approx([1 / 3, 1, 3])
        tested += parts[0]
    assert sorted(tested) == list(range(188))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_split_that_comes_with_the_data_stays(protocol):
    trials = splits(protocol, dataset="ogbg-molpcba")
    assert [len(candidates) for candidates in trials] == [1, 1, 1]
    assert len({(trial.split.kind, trial.split.seed) for (trial,) in trials}) == 1
    assert len({trial.train.seed for (trial,) in trials}) == 3


def test_in_a_fold_validation_chooses_and_only_once_all_rates_were_tried():
    config = ReproduceConfig(protocol="folds", seeds=1, only=("gin/NCI1",))
    ((candidates,),) = (list_trials(row, dataset, TABLE1, config) for row, dataset in select_cells(TABLE1, config))
    there = {
        trial_key(trial): {"result": {"metric": "accuracy", "valid": 0.9, "test": {"accuracy": test}}, "chosen_by": by}
        for trial, test, by in zip(candidates, (0.9, 0.2, 0.8), (0.5, 0.7, 0.6), strict=True)
    }
    assert read_cells(TABLE1, config, there)[0].tests == {0: 20.0}
    del there[trial_key(candidates[0])]
    assert read_cells(TABLE1, config, there)[0].tests == {}


def test_a_quick_look_is_no_trial_of_the_real_thing():
    real, quick = (
        list_trials(OURS_ROW, "NCI1", TABLE1, ReproduceConfig(is_quick=is_quick))[0][0] for is_quick in (False, True)
    )
    assert trial_key(real) != trial_key(quick)


# --- the ledger ---


@pytest.mark.parametrize(
    ("name", "seeds"), [("table1", None), ("ablation", None), ("hops", 2), ("heads", 2), ("layers", 2)]
)
def test_trials_of_version_0_1_give_the_tables_that_it_printed(name, seeds, tmp_path, capsys):
    words = ["reproduce", name, "--report-only", "--first-seed", "30", "--ledger", str(RESULTS / "table1.jsonl")]
    assert main([*words, *(["--seeds", str(seeds)] if seeds else []), "--out", str(tmp_path)]) == 0
    printed, _, _ = capsys.readouterr().out.rpartition("report ")
    assert printed == (FIXTURES / "v0.1" / "tables" / f"{name}.txt").read_text()


def test_trials_of_version_0_1_are_found_by_their_settings():
    small = read_recipe(FIXTURES / "v0.1" / "small.toml")
    there = Ledger(FIXTURES / "v0.1" / "trials.jsonl").by_key()
    tests = [there[trial_key(with_seed(small, seed))]["result"]["test"]["accuracy"] for seed in (0, 1)]
    assert [round(19 * test) for test in tests] == [7, 12]


NO_LEDGERS = {"sweep.jsonl", "molecules-first.jsonl"}
"""A sweep of 0.1 in a format of its own, and trials of models that have changed."""


@pytest.mark.parametrize("name", sorted({path.name for path in RESULTS.glob("*.jsonl")} - NO_LEDGERS))
def test_every_ledger_can_be_read(name):
    ledger = Ledger(RESULTS / name)
    assert len(ledger.by_key()) == len(list(ledger.records())) > 0


def test_trials_recorded_without_curves_and_fingerprints_still_count():
    records = sorted(Ledger(RESULTS / "nci1.jsonl").records(), key=lambda record: record["config"]["split"]["seed"])
    assert not any("curves" in record or "dataset" in record for record in records)
    default, gin = (
        Cell(OURS_ROW, "NCI1", tuple(record for record in records if record["config"]["model"] == model))
        for model in (OURS, "gin")
    )
    assert (round(default.mean, 1), round(default.deviation, 1)) == (84.6, 1.6)
    pair = default.less(gin)
    assert pair is not None
    assert (pair.wins, round(pair.p, 3)) == (8, 0.014)


def test_pairs_are_made_of_what_both_have():
    def cell(*tests: float | None) -> Cell:
        told = [
            None if test is None else {"result": {"metric": "accuracy", "test": {"accuracy": test}}} for test in tests
        ]
        return Cell(OURS_ROW, "NCI1", tuple(told))

    pair = cell(0.5, None, 0.75, 0.5).less(cell(0.25, 0.5, 0.75, None))
    assert pair == Paired((25.0, 0.0))
    assert cell(0.5, None).less(cell(None, 0.5)) is None


# --- running ---


def test_an_experiment_is_run_once_and_looked_up_after(ledger):
    lines: list[str] = []
    found = reproduce("table1", QUICK, ledger, say=lines.append)
    assert [(cell.row.name, len(cell.known)) for cell in found.cells] == [("GCN", 2), ("GIN", 2)]
    assert lines[0] == f"MUTAG: 4 trials, 0 of them in {ledger.path}"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "[1/4] GCN on MUTAG, seed 0",
        "[2/4] GIN on MUTAG, seed 0",
        "[3/4] GCN on MUTAG, seed 1",
        "[4/4] GIN on MUTAG, seed 1",
    ]
    again: list[str] = []
    more = reproduce("table1", replace(QUICK, seeds=3), ledger, say=again.append)
    assert again[0] == f"MUTAG: 6 trials, 4 of them in {ledger.path}"
    assert len(again) == 3
    assert [cell.records[:2] for cell in more.cells] == [cell.records for cell in found.cells]
    only = reproduce("table1", QUICK, Ledger(Path("nowhere.jsonl")), is_report_only=True)
    assert not any(cell.known for cell in only.cells)


def test_a_data_set_that_is_not_there_keeps_no_other_from_running(ledger, tmp_path, monkeypatch):
    monkeypatch.setenv("MNAGT_DATA", str(tmp_path / "empty"))
    config = replace(QUICK, datasets=("MUTAG", "nowhere/Gone.zip"), seeds=1, only=("gcn/*",))
    found = reproduce("table1", config, ledger)
    assert [len(cell.known) for cell in found.cells] == [1, 0]
    (problem,) = found.problems
    assert problem.startswith("nowhere/Gone.zip was left out: nowhere/Gone.zip: no such file or folder; data sets by")


def test_trials_that_fail_alike_are_told_together(ledger, tmp_path):
    few = folder(tmp_path / "FEW")
    found = reproduce("table1", replace(QUICK, datasets=(str(few), "MUTAG"), only=("gin/*",)), ledger)
    assert [len(cell.known) for cell in found.cells] == [0, 2]
    (problem,) = found.problems
    assert problem.startswith(f"GIN on {few}, seed 0 and 1 others failed: the split's valid part is empty")


def test_parameters_are_counted_without_training():
    found = reproduce("parameters", ReproduceConfig(datasets=("MUTAG",)), Ledger(Path("nowhere.jsonl")))
    counts = {cell.row.model: cell.counted for cell in found.cells}
    assert set(counts) == {OURS, *MODEL_OF.values()} <= set(MODELS)
    for model in (OURS, "gin"):
        one = train(replace(recipe("MUTAG", model), device="cpu", train=TrainConfig(epochs=1)))
        assert counts[model] == one.result.parameters


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"protocol": "loose"}, "expected 'redrawn' or 'folds' or 'fixed', got 'loose'"),
        ({"protocol": "folds", "seeds": 11}, "10 at most"),
    ],
)
def test_settings_are_checked(settings, said):
    with pytest.raises(InputError, match=said):
        from_dict(ReproduceConfig, settings, where="here")


# --- the command ---


def test_the_command_prints_a_table_and_writes_a_report(tmp_path, capsys):
    words = ["reproduce", "table1", "--quick", "--datasets", "MUTAG", "--only", "gcn/*", "mnagt/*", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "[4/4] mnagt on MUTAG, seed 1: accuracy" in printed.err
    assert printed.out.splitlines()[0].split("  ")[0] == "method"
    assert printed.out.splitlines()[0].split()[1:3] == ["MUTAG,", "ours"]
    assert "MUTAG, ours, without duplicates" in printed.out.splitlines()[0]
    assert "no figure here is a result" in printed.out
    assert printed.out.endswith("next    mnagt reproduce table1\n")
    assert {path.name for path in tmp_path.iterdir()} == {"trials.jsonl", "report.html", "table1.md", "figures"}
    assert main([*words, "--out", str(tmp_path), "--report-only"]) == 0
    assert capsys.readouterr().out == printed.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel1"], "no experiment 'tabel1'; did you mean 'table1'?"),
        (
            ["table1", "--only", "gcn/NCI2"],
            "--only gcn/NCI2: no such MODEL/DATASET or ROW/DATASET; there are: gcn/NCI1, gat/NCI1",
        ),
        (["table1", "--devices", "cuda:99"], "no device 'cuda:99'"),
        (["table1", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["table1", "--minutes", "-1"], "minutes must be at least 0, got -1.0"),
    ],
)
def test_what_cannot_be_done_is_refused(words, said, tmp_path, capsys):
    assert main(["reproduce", *words, "--out", str(tmp_path), "--ledger", str(tmp_path / "trials.jsonl")]) == 2
    assert capsys.readouterr().err.startswith(f"mnagt: error: {said}")


def test_data_that_cannot_be_had_are_told_on_the_page(tmp_path, monkeypatch, capsys):
    (tmp_path / "ogbg-molpcba.zip").write_bytes(b"no zip")
    monkeypatch.setenv("MNAGT_DATA", str(tmp_path))
    words = ["reproduce", "table2", "--datasets", "ogbg-molpcba", "--out", str(tmp_path / "out")]
    assert main([*words, "--ledger", str(tmp_path / "trials.jsonl")]) == 2
    assert "ogbg-molpcba was left out: " in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "ogbg-molpcba was left out: " in page
    assert "0.2832 ± 0.0026" in page


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path):
    words = [
        "reproduce",
        "table1",
        "--quick",
        "--datasets",
        "MUTAG",
        "--only",
        "gcn/*",
        "--seeds",
        "300",
        "--jobs",
        "2",
    ]
    program = [sys.executable, "-m", "mnagt", *words, "--device", "cpu", "--out", str(tmp_path)]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[3/300]"):
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest.splitlines()[-1].startswith(f"mnagt: interrupted; finished trials are in {tmp_path}/trials.jsonl")
    assert "Traceback" not in rest
    assert 3 <= len(Ledger(tmp_path / "trials.jsonl").by_key()) < 300


def test_after_its_time_no_trial_is_begun(tmp_path, capsys):
    words = ["reproduce", "table1", "--quick", "--datasets", "MUTAG", "--only", "gcn/*", "--device", "cpu"]
    words += ["--out", str(tmp_path)]
    for jobs in ("1", "2"):
        assert main([*words, "--minutes", "0", "--jobs", jobs]) == 0
        assert "Incomplete: 0 of 2 trials are in the ledger" in capsys.readouterr().out
    assert main([*words, "--minutes", "9"]) == 0
    assert len(Ledger(tmp_path / "trials.jsonl").by_key()) == 2


@pytest.mark.real_data
def test_a_row_of_table_1_runs_on_the_papers_data(data_root, tmp_path):
    words = ["reproduce", "table1", "--quick", "--seeds", "1", "--only", "gcn/NCI1", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    (record,) = Ledger(tmp_path / "trials.jsonl").records()
    assert (record["dataset"]["graphs"], record["split"]["test"], record["config"]["split"]["kind"]) == (
        4110,
        411,
        "random",
    )
    assert "79.68 ± 2.05" in (tmp_path / "table1.md").read_text()
