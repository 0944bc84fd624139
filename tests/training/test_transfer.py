"""A training that starts from another run: its weights, its settings, and a head of its own."""

import gzip
import json
import logging
import shutil
from pathlib import Path

import pytest
import torch

from mnagt import load_model, resume, train
from mnagt.cli import main
from mnagt.files import read_json

pytest.importorskip("rdkit")

SMALL = ["--dim", "12", "--depth", "1", "--epochs", "2", "--device", "cpu", "--wl-vocabulary-size", "64"]


@pytest.fixture(scope="module")
def tables(data_root, tmp_path_factory) -> dict[str, Path]:
    """The first 80 molecules of ogbg-molesol and ogbg-molbbbp."""
    folder, paths = tmp_path_factory.mktemp("tables"), {}
    for name in ("esol", "bbbp"):
        with gzip.open(data_root / f"ogbg_mol{name}" / "mapping" / "mol.csv.gz", "rt") as file:
            paths[name] = folder / f"{name}.csv"
            paths[name].write_text("".join(line for line, _ in zip(file, range(81), strict=False)))
    return paths


@pytest.fixture(scope="module")
def source(tables, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "esol"
    assert main(["train", str(tables["esol"]), "--model", "mnagt", "--out", str(out), *SMALL]) == 0
    return out


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.real_data
def test_a_frozen_encoder_stays_that_of_the_other_run_and_the_head_learns(tables, source, tmp_path, caplog):
    words = ["--from", source, "--freeze", "encoder", "--split", "random", "--epochs", "2", "--device", "cpu"]
    with caplog.at_level(logging.INFO):
        assert run("train", tables["bbbp"], "--out", tmp_path / "run", *words) == 0
    assert "weights are those of the run on esol; the head starts anew, for other targets" in caplog.text
    before, after = (load_model(folder).model.state_dict() for folder in (source, tmp_path / "run"))
    differing = {name for name in after if not torch.equal(after[name], before.get(name, torch.zeros(0)))}
    assert differing == {name for name in after if name.startswith("head.")}
    assert load_model(tmp_path / "run").settings["dim"] == 12
    assert str(source) not in (tmp_path / "run" / "config.json").read_text()
    assert run("evaluate", tmp_path / "run", "--device", "cpu") == 0


@pytest.mark.real_data
def test_descriptors_that_the_other_run_did_not_read_start_anew(tables, tmp_path):
    words = [*SMALL, "--wl-iterations", "0", "--model", "mnagt"]
    assert run("train", tables["esol"], "--out", tmp_path / "source", *words) == 0
    words = ["--from", tmp_path / "source", "--epochs", "1", "--lr", "0", "--device", "cpu", "--split", "random"]
    assert run("train", tables["bbbp"], "--out", tmp_path / "run", *words, "--descriptors", "rdkit2d") == 0
    before, after = (dict(load_model(tmp_path / name).model.named_parameters()) for name in ("source", "run"))
    assert {name.partition(".")[0] for name in after.keys() - before.keys()} == {"readout"}
    differing = {name for name in before if not torch.equal(before[name], after[name])}
    assert differing == {name for name in before if name.startswith("head.")}


@pytest.mark.real_data
def test_training_goes_on_from_all_weights_where_the_targets_are_the_same(tables, source, tmp_path, caplog):
    words = ["--from", source, "--epochs", "1", "--device", "cpu"]
    with caplog.at_level(logging.INFO):
        assert run("train", tables["esol"], "--out", tmp_path / "same", *words, "--lr", "0") == 0
    assert "weights are those of the run on esol\n" in caplog.text
    assert "too good" not in caplog.text
    assert run("train", tables["esol"], "--out", tmp_path / "more", *words) == 0
    before, same, more = (
        dict(load_model(folder).model.named_parameters()) for folder in (source, tmp_path / "same", tmp_path / "more")
    )
    assert all(torch.equal(before[name], same[name]) for name in before)
    assert {name.partition(".")[0] for name in before if not torch.equal(before[name], more[name])} == {
        "encoder",
        "layers",
        "readout",
        "head",
    }


@pytest.mark.real_data
def test_test_graphs_that_the_other_run_has_seen_are_reported(tables, source, tmp_path, caplog):
    words = ["--from", source, "--epochs", "1", "--device", "cpu", "--split", "random"]
    assert run("train", tables["esol"], "--out", tmp_path / "run", *words) == 0
    other, own = (set(read_json(folder / "split.json")["test"]) for folder in (source, tmp_path / "run"))
    assert f"{len(own - other)} graphs of the test part of 8 were in training or validation of {source}" in caplog.text


@pytest.mark.real_data
def test_test_molecules_in_the_other_run_s_larger_table_are_reported(tables, source, tmp_path, caplog):
    head, *lines = tables["esol"].read_text().splitlines()
    smaller = tmp_path / "smaller.csv"
    smaller.write_text("\n".join([head.replace("measured", "my"), *lines[20:60]]) + "\n")
    words = ["--from", source, "--epochs", "1", "--device", "cpu", "--split", "random"]
    assert run("train", smaller, "--out", tmp_path / "run", *words) == 0
    tested, other = (set(read_json(folder / "split.json")["test"]) for folder in (tmp_path / "run", source))
    shared = len(tested - {graph - 20 for graph in other})
    assert shared >= 2
    assert f"{shared} graphs of the test part of 4 were in training or validation of {source}" in caplog.text


@pytest.mark.real_data
def test_it_is_said_where_the_graphs_of_the_other_run_are_not_known(tables, source, tmp_path, caplog):
    shutil.copytree(source, tmp_path / "source")
    record = read_json(source / "run.json")
    record["config"]["dataset"] = "/nowhere/esol.csv"
    (tmp_path / "source" / "run.json").write_text(json.dumps(record))
    words = ["--from", tmp_path / "source", "--epochs", "1", "--device", "cpu", "--out", tmp_path / "run"]
    assert run("train", tables["bbbp"], *words) == 0
    assert "was trained on graphs of the test part is not known: /nowhere/esol.csv: no such file" in caplog.text


@pytest.mark.real_data
def test_the_settings_of_a_run_are_enough_to_train_it_again(tables, source, tmp_path):
    options = {"init_from": str(source), "epochs": 2, "device": "cpu", "split": "random"}
    whole = train(str(tables["bbbp"]), tmp_path / "whole", **options).result
    (tmp_path / "again").mkdir()
    for name in ("run.json", "split.json"):
        shutil.copy(tmp_path / "whole" / name, tmp_path / "again")
    again = resume(tmp_path / "again").result
    assert (again.valid, again.test["brier"]) == (whole.valid, whole.test["brier"])


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "gin"], "its weights are those of mnagt, not gin; add --model mnagt"),
        (["--dim", "16"], "leave out settings of the model: without, they are those of the other run"),
        (["--from", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_weights_that_do_not_fit_are_refused(words, told, tables, source, tmp_path, capsys):
    common = ["--from", source, "--out", tmp_path / "run", "--epochs", "1", "--device", "cpu"]
    assert run("train", tables["bbbp"], *common, *words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.real_data
def test_scores_on_molecules_that_the_model_was_trained_on_are_reported(tables, source, tmp_path, caplog):
    head, *lines = tables["esol"].read_text().splitlines()
    part, split = tmp_path / "part.csv", read_json(source / "split.json")
    part.write_text("\n".join([head, *lines[20:60]]) + "\n")
    seen = {*split["train"], *split["valid"]}
    assert run("evaluate", source, "--dataset", part, "--device", "cpu") == 0
    number = len(seen & set(range(20, 60)))
    assert f"{number} graphs of the 40 of part were in training or validation of {source}: these" in caplog.text
    caplog.clear()
    part.write_text("\n".join([head, *(lines[row] for row in split["test"])]) + "\n")
    assert run("evaluate", source, "--dataset", part, "--device", "cpu") == 0
    assert run("evaluate", source, "--device", "cpu") == 0
    assert "too good" not in caplog.text
