"""What older versions saved is still read: model folders, runs, recipes, ledgers, studies, options."""

import csv
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnagt import load_dataset
from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger, trial_key
from mnagt.experiments.trials import run_trials, with_seed
from mnagt.inference.export import OnnxModel
from mnagt.inference.model_folder import load_model
from mnagt.inference.predict import evaluate
from mnagt.migrations import rename_in_journal, rename_settings, rename_weights
from mnagt.models.registry import MODELS
from mnagt.runs.config import TrainConfig
from mnagt.runs.recipes import read_recipe
from mnagt.settings import from_dict
from mnagt.training.progress import Reporter
from mnagt.training.run import resume

FIXTURES = Path(__file__).parent / "fixtures" / "v0.1"
OLD = {"choose_over", "average", "balance", "smoothing", "record", "recompute", "subtrees", "balls", "trees", "scale"}


@pytest.fixture
def unpack(tmp_path, monkeypatch):
    """Unpacks a fixture into the working directory, which holds ``molecules.csv``."""
    (tmp_path / "molecules.csv").write_bytes((FIXTURES / "molecules.csv").read_bytes())
    monkeypatch.chdir(tmp_path)

    def unpack(name: str) -> Path:
        target = Path() if name != "resumed" else Path(name)
        zipfile.ZipFile(FIXTURES / f"{name}.zip").extractall(target)
        return Path(name)

    return unpack


def assert_same_table(found: str, wanted: str) -> None:
    """Texts are equal, numbers to 1e-5."""
    for row, expected in zip(csv.reader(io.StringIO(found)), csv.reader(io.StringIO(wanted)), strict=True):
        for cell, known in zip(row, expected, strict=True):
            try:
                assert float(cell) == pytest.approx(float(known), abs=1e-5)
            except ValueError:
                assert cell == known


@pytest.mark.parametrize(
    ("name", "dataset", "words"),
    [
        ("classes", "MUTAG", ["--level", "0.9"]),
        ("numbers", "molecules.csv", ["--level", "0.9"]),
        ("tasks", "molecules.csv", []),
    ],
)
def test_a_saved_model_predicts_as_it_did(name, dataset, words, unpack, capsys):
    assert main(["predict", str(unpack(name)), dataset, *words]) == 0
    assert_same_table(capsys.readouterr().out, (FIXTURES / f"{name}.csv").read_text())


@pytest.mark.parametrize(
    ("name", "dataset", "words"),
    [
        ("classes", "MUTAG", ["--level", "0.9", "--graphs", "0,1,2,3,4,5,6,7,8,9"]),
        ("wide", "MUTAG", ["--level", "0.9", "--graphs", "0,1,2,3,4,5,6,7,8,9"]),
        ("numbers", "molecules.csv", ["--level", "0.8"]),
    ],
)
def test_a_model_of_version_0_2_predicts_as_it_did(name, dataset, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "molecules.csv").write_bytes((FIXTURES / "molecules.csv").read_bytes())
    saved = FIXTURES.parent / "v0.2"
    zipfile.ZipFile(saved / f"{name}.zip").extractall()
    assert main(["predict", name, dataset, *words]) == 0
    assert_same_table(capsys.readouterr().out, (saved / f"{name}.csv").read_text())


@pytest.mark.parametrize("name", ["classes", "numbers", "tasks"])
def test_a_saved_model_is_evaluated_and_scores_as_it_did(name, unpack):
    folder = unpack(name)
    trained = load_model(folder)
    scores = evaluate(folder, device="cpu")
    assert {metric: scores[metric] for metric in trained.origin["result"]["test"]} == pytest.approx(
        trained.origin["result"]["test"], abs=1e-5, nan_ok=True
    )
    assert not OLD & trained.settings.keys()


def test_a_saved_model_is_saved_again_under_the_names_of_today(unpack, tmp_path):
    trained = load_model(unpack("classes"))
    trained.save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text())["model"]["settings"]
    assert not OLD & saved.keys()
    assert load_model(tmp_path / "again").settings == trained.settings


class StopAfter(Reporter):
    """Ends a training after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, record, best) -> None:
        if record["epoch"] == self.last:
            raise KeyboardInterrupt


def read_losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_an_interrupted_run_goes_on_as_it_would_have(unpack):
    run, done = unpack("interrupted"), unpack("resumed")
    with pytest.raises(KeyboardInterrupt):
        resume(run, reporter=StopAfter(23))
    assert read_losses(run) == pytest.approx(read_losses(done)[:23], abs=1e-5)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_end_as_it_would_have(unpack):
    """By losses: sums are taken in another order than in 0.1, and two epochs validate equally well but for rounding."""
    run, done = unpack("interrupted"), unpack("resumed")
    record = (run / "run.json").read_text().replace('"checkpoint_seconds": 0.0', '"checkpoint_seconds": 1000.0')
    (run / "run.json").write_text(record)  # one every step, as it was, takes most of the time
    resume(run)
    assert read_losses(run) == pytest.approx(read_losses(done), abs=1e-5)


def test_trials_on_an_old_ledger_count_for_the_same_recipe(monkeypatch):
    recipe = read_recipe(FIXTURES / "small.toml")
    ledger = Ledger(FIXTURES / "trials.jsonl")
    records = list(ledger.records())
    assert {trial_key(with_seed(recipe, seed)) for seed in range(len(records))} == ledger.by_key().keys()
    monkeypatch.setattr(Ledger, "check", lambda ledger: pytest.fail("a trial would be run again"))
    found = run_trials([with_seed(recipe, seed) for seed in range(len(records))], ledger)
    assert found == records


def test_an_old_recipe_is_read_as_its_new_spelling(tmp_path):
    old = read_recipe(FIXTURES / "small.toml")
    text = (FIXTURES / "small.toml").read_text()
    (tmp_path / "new.toml").write_text(
        text.replace("choose_over", "selection_window").replace("subtree_rows", "wl_vocabulary_size")
    )
    assert read_recipe(tmp_path / "new.toml") == old
    assert old.settings["wl_vocabulary_size"] == 16
    assert old.train.selection_window == 2


def test_an_old_study_goes_on(unpack, capsys):
    pytest.importorskip("optuna")
    folder = unpack("tune")
    recipe = str(FIXTURES / "small.toml")
    before = read_rows(folder / "trials.csv")
    words = ["tune", "--recipe", recipe, "--out", str(folder), "--trials", "3", "--seeds", "1", "--device", "cpu"]
    assert main(words) == 0, capsys.readouterr().err
    after = read_rows(folder / "trials.csv")
    assert len(after) == len(before) + 1
    assert after[:2] == [{name.replace("subtree_", "wl_"): value for name, value in row.items()} for row in before]
    assert main(words) == 0
    assert read_rows(folder / "trials.csv") == after


def read_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_a_journal_of_optuna_is_renamed_once(tmp_path):
    path = tmp_path / "journal"
    path.write_text('{"param_name":"subtree_dropout","x":"\\"joined\\""}\n{"fixed_params": {"subtree_dropout": 0.6}}\n')
    assert rename_in_journal(path, {"wl_dropout": 0})
    assert path.read_text() == (
        '{"param_name":"wl_dropout","x":"\\"sum-mean-max\\""}\n{"fixed_params": {"wl_dropout": 0.6}}\n'
    )
    assert not rename_in_journal(path, {"wl_dropout": 0})
    assert not rename_in_journal(tmp_path / "none", {"wl_dropout": 0})


def test_old_options_work_and_say_their_new_name(tmp_path, capsys):
    words = ["train", "MUTAG", "--recipe", "none", "--epochs", "1", "--choose-over", "1", "--dim", "8", "--depth", "1"]
    words += ["--subtrees", "0", "--readout", "joined", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    said = capsys.readouterr().err.splitlines()
    assert "mnagt: --choose-over is now --selection-window" in said
    assert "mnagt: --subtrees is now --wl-iterations" in said
    settings = load_model(tmp_path / "run").settings
    assert (settings["wl_iterations"], settings["readout"]) == (0, "sum-mean-max")


def test_old_options_are_not_listed(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "--choose-over" not in capsys.readouterr().out


def test_old_names_count_only_where_the_new_one_is_a_setting():
    assert rename_settings({"scale": 1, "dim": 2}, {"scale", "layer_scale", "dim"}) == {"scale": 1, "dim": 2}
    assert rename_settings({"scale": 1}, {"dim"}) == {"scale": 1}
    with pytest.raises(InputError, match="'scale' is the old name of 'layer_scale'; give only one"):
        rename_settings({"scale": 1, "layer_scale": 2}, {"layer_scale"})


def test_dictionaries_from_python_may_use_old_names():
    assert from_dict(TrainConfig, {"average": 0.9}, where="here") == replace(TrainConfig(), ema_decay=0.9)
    config = from_dict(MODELS["mnagt"].config, {"balls": 2, "readout": "virtual"}, where="here")
    assert (config.ego_radius, config.readout) == (2, "virtual-node")


def test_weights_have_the_names_of_today():
    old = {"layers.0.attention.sharpness": 1, "model/encoder.balls.project.weight": 2, "head.0.weight": 3}
    assert list(rename_weights(old)) == [
        "layers.0.attention.logit_scale",
        "model/encoder.ego_statistics.project.weight",
        "head.0.weight",
    ]


def test_a_file_that_0_1_exported_predicts_what_its_model_predicts(unpack):
    pytest.importorskip("onnxruntime")
    unpack("exported")
    trained = load_model(unpack("numbers"))
    exported = OnnxModel("numbers.onnx", trained)
    assert "balls" in exported.names.values()
    batch = trained.align(load_dataset("molecules.csv", targets=("solubility",))).batch(torch.arange(20))
    torch.testing.assert_close(exported(batch), trained.model.eval()(batch).detach(), rtol=1e-4, atol=1e-5)
