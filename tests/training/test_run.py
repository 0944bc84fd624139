"""A run leaves a folder that explains itself; killed, it goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnagt import load_dataset, load_model, resume, train
from mnagt.data.encodings import with_encodings
from mnagt.data.registry import EMBEDDED
from mnagt.errors import InputError
from mnagt.files import hold_lock, read_json
from mnagt.inference.predict import evaluate, predict
from mnagt.inference.weights import load_tensors
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.split import make_split
from mnagt.training.progress import Live

SETTINGS = {"dim": 16, "depth": 2, "head_dim": 8, "dropout": 0.3}
CONFIG = RunConfig("MUTAG", "mnagt", SETTINGS, TrainConfig(epochs=3, batch_size=32, checkpoint_seconds=0), device="cpu")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "first"
    train(CONFIG, folder)
    return folder


def test_the_folder_holds_all_that_was_done(run_folder):
    names = {path.name for path in run_folder.iterdir()}
    assert names == {
        "run.json", "split.json", "config.json", "model.safetensors", "domain.safetensors", "README.md",
        "metrics.jsonl", "result.json",
    }  # fmt: skip
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    split = read_json(run_folder / "split.json")
    assert sorted(i for part in split.values() for i in part) == list(range(188))


def test_the_saved_model_scores_what_the_result_says(run_folder):
    result = read_json(run_folder / "result.json")
    assert evaluate(run_folder, device="cpu")["accuracy"] == result["test"]["accuracy"]
    assert evaluate(run_folder, part="valid", device="cpu")["accuracy"] == result["valid"]


def test_predictions_are_the_models_answers_in_order(run_folder):
    table = predict(run_folder, "MUTAG", graphs=[5, 3, 100], device="cpu")
    dataset, trained = load_dataset("MUTAG"), load_model(run_folder)
    answers = trained.outputs(dataset, torch.tensor([5, 3, 100])).softmax(dim=1)
    assert table["graph"] == [5, 3, 100]
    assert table["p(1)"] == pytest.approx(answers[:, 1].tolist())
    assert table["prediction"] == [("-1", "1")[i] for i in answers.argmax(dim=1).tolist()]


def test_graphs_in_memory_are_predicted_like_those_on_disk(run_folder):
    mutag, trained, some = load_dataset("MUTAG"), load_model(run_folder), torch.tensor([5, 3, 100])
    batch = replace(mutag.batch(some), targets=None)
    assert trained.predict(batch) == trained.predict(mutag, some)


def test_the_same_settings_give_the_same_run(run_folder, tmp_path):
    train(CONFIG, tmp_path / "again")
    one, other = (load_tensors(folder / "model.safetensors")[0] for folder in (run_folder, tmp_path / "again"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_is_not_overwritten(run_folder):
    with pytest.raises(InputError, match="holds a run already"):
        train(CONFIG, run_folder)


def test_resuming_a_finished_run_returns_it(run_folder):
    before = read_json(run_folder / "result.json")
    again = resume(run_folder)
    assert again.result.test == before["test"]


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(InputError, match=r"run\.json: no such file; `mnagt train"):
        resume(tmp_path)


@pytest.mark.real_data
def test_a_model_cannot_read_graphs_with_other_columns(run_folder, data_root):
    with pytest.raises(InputError, match="NCI1: "):
        predict(run_folder, "NCI1", device="cpu")


def test_a_changed_data_set_is_noticed_on_resuming(run_folder, tmp_path):
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    kept = read_json(copy / "run.json")
    kept["dataset"]["nodes"] += 1
    (copy / "run.json").write_text(json.dumps(kept))
    with pytest.raises(InputError, match="put the old one back"):
        resume(copy)


@pytest.mark.parametrize("damage", ["config", "weights", "nothing", "shape"])
def test_a_damaged_model_is_refused_by_name(run_folder, tmp_path, damage):
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    config = read_json(copy / "config.json")
    match damage:
        case "config":
            (copy / "config.json").write_text("{")
        case "weights":
            (copy / "model.safetensors").write_bytes(b"\x00" * 64)
        case "nothing":
            (copy / "model.safetensors").unlink()
        case "shape":
            config["model"]["settings"]["dim"] = 8
            (copy / "config.json").write_text(json.dumps(config))
    said = {"config": "config.json: not JSON", "weights": "model.safetensors: damaged", "nothing": "no trained model"}
    with pytest.raises(InputError, match=said.get(damage, "of another model")):
        load_model(copy)


def test_splits_follow_their_settings(tmp_path):
    mutag = load_dataset("MUTAG")
    assert make_split(SplitConfig("random", seed=1), mutag).to_dict() != make_split(SplitConfig(), mutag).to_dict()
    fold = make_split(SplitConfig("stratified", fold=3), mutag)
    assert abs(len(fold.test) - 18.8) < 1
    for name, part in fold.to_dict().items():
        (tmp_path / f"{name}.csv").write_text("\n".join(map(str, part)))
    assert make_split(SplitConfig("files", folder=str(tmp_path)), mutag).to_dict() == fold.to_dict()
    with pytest.raises(InputError, match="fold must be 0 to 9"):
        make_split(SplitConfig("stratified", fold=10), mutag)


def test_structural_encodings_are_worked_out_once_for_the_data_set():
    run = train(replace(CONFIG, settings={**SETTINGS, "random_walk": 3, "laplacian": 2}))
    assert {"random-walk": 3, "laplacian": 2}.items() <= run.trained.model.encodings.items()
    mutag = load_dataset("MUTAG")
    one, both = with_encodings(mutag, {"random-walk": 3}), with_encodings(mutag, {"random-walk": 3, "laplacian": 2})
    assert both.encodings["random-walk"] is one.encodings["random-walk"]
    assert with_encodings(mutag, {"random-walk": 4}).encodings["random-walk"].shape[1] == 4


def test_one_process_at_a_time_goes_on_with_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("mnagt.training.run.remove_checkpoint", lambda path: None)
    train(CONFIG, tmp_path / "run")
    with (
        hold_lock(tmp_path / "run" / "run.json", "busy"),
        pytest.raises(InputError, match="another process is at work on this run"),
    ):
        resume(tmp_path / "run")
    resume(tmp_path / "run")


def test_tensorboard_gets_every_epoch(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(CONFIG, tmp_path / "run", tensorboard=True)
    board = events.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3]


def test_a_finished_run_stays_as_it_is_with_its_checkpoint_or_without(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("mnagt.training.run.remove_checkpoint", lambda path: None)
    train(CONFIG, tmp_path / "kept")  # as 0.1 left its runs
    monkeypatch.undo()
    for folder in (shutil.copytree(run_folder, tmp_path / "copy"), tmp_path / "kept"):
        before = load_tensors(folder / "model.safetensors")[0]
        run = resume(folder)
        assert run.result.test == read_json(folder / "result.json")["test"]
        assert [record["epoch"] for record in run.history] == [1, 2, 3]
        after = load_tensors(folder / "model.safetensors")[0]
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        assert not (folder / "last.safetensors").exists()
    (tmp_path / "copy" / "result.json").write_text('{"metric": 3}')
    with pytest.raises(InputError, match="is damaged; restore it or train again"):
        resume(tmp_path / "copy")


def test_a_live_bar_that_never_began_can_end(tmp_path, monkeypatch):
    monkeypatch.setattr("mnagt.training.run.remove_checkpoint", lambda path: None)
    (tmp_path / "run").mkdir()
    train(replace(CONFIG, train=replace(CONFIG.train, epochs=1)), tmp_path / "whole")
    damaged = tmp_path / "whole" / "last.safetensors"
    damaged.write_bytes(b"nothing")
    with pytest.raises(InputError, match="damaged or not a checkpoint"):
        resume(tmp_path / "whole", reporter=Live())


def test_a_run_on_a_path_can_be_used_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "MINE.zip").write_bytes((EMBEDDED / "MUTAG.zip").read_bytes())
    monkeypatch.chdir(tmp_path)
    train(replace(CONFIG, dataset="MINE.zip"), "run")
    monkeypatch.chdir("/")
    assert evaluate(tmp_path / "run", device="cpu")["graphs"] == 19


def test_other_targets_are_another_data_set(tmp_path):
    mutag = load_dataset("MUTAG")
    train(CONFIG, tmp_path / "run", dataset=replace(mutag, targets=1 - mutag.targets))
    with pytest.raises(InputError, match="put the old one back"):
        resume(tmp_path / "run")


LONG = ["train", "MUTAG", "--epochs", "14", "--batch-size", "32", "--dim", "16", "--depth", "2", "--head-dim", "8",
        "--dropout", "0.3", "--checkpoint-seconds", "0", "--device", "cpu"]  # fmt: skip


def start(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "mnagt", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_epochs(folder: Path, epochs: int, process: subprocess.Popen) -> None:
    log = folder / "metrics.jsonl"
    while process.poll() is None and (not log.exists() or log.read_text().count("\n") < epochs):
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    process = start(*LONG, "--out", str(folder))
    assert process.communicate()[1] is not None
    assert process.returncode == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_in_the_middle_and_resumed_it_ends_bit_for_bit_the_same(number, undisturbed, tmp_path):
    folder = tmp_path / "run"
    process = start(*LONG, "--out", str(folder))
    wait_for_epochs(folder, 3, process)
    process.send_signal(number)
    told = process.communicate()[1]
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert f"mnagt train --resume {folder}" in told
    assert not (folder / "model.safetensors").exists()
    assert not list(folder.glob(".*")) or number == signal.SIGKILL
    process = start("train", "--resume", str(folder))
    told = process.communicate()[1]
    assert process.returncode == 0, told
    assert "going on after epoch" in told
    one, other = (load_tensors(run / "model.safetensors")[0] for run in (undisturbed, folder))
    assert all(torch.equal(one[key], other[key]) for key in one.keys() | other.keys())
    assert not (folder / "last.safetensors").exists()
    assert (folder / "metrics.jsonl").read_text() == (undisturbed / "metrics.jsonl").read_text()
    one, other = (read_json(run / "result.json") for run in (undisturbed, folder))
    assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in other.items() if k != "seconds"}


@pytest.mark.parametrize(("field", "kind"), [({"fold": 3}, "stratified"), ({"folder": "here"}, "files")])
def test_a_setting_of_another_kind_of_split_is_refused(field, kind):
    with pytest.raises(InputError, match=f"is for a split of kind '{kind}'"):
        SplitConfig(**field)
