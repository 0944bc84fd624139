"""Several runs in one folder, which other commands take as one model."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from mnagt import load_dataset
from mnagt.cli import main
from mnagt.data.readers.smiles import find_scaffolds
from mnagt.errors import InputError
from mnagt.explain import explain
from mnagt.files import read_json
from mnagt.inference.ensemble import Ensemble, load_models
from mnagt.inference.predict import calibrate, evaluate, predict
from mnagt.inference.weights import load_tensors
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.folder import read_run_config
from mnagt.serve.config import ServeConfig
from mnagt.serve.service import Service
from mnagt.training.several_runs import choose_folds, resume_several, train_several, vary

CONFIG = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1, seed=5), device="cpu")
MUTAG = load_dataset("MUTAG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("several") / "ensemble"
    train_several(CONFIG, out, "ensemble", 2, dataset=MUTAG)
    return out


def test_members_differ_in_their_seed_and_share_the_split(folder):
    seeds = [read_run_config(folder / name).train.seed for name in ("member-0", "member-1")]
    assert seeds == [5, 6]
    splits = [(folder / name / "split.json").read_text() for name in ("member-0", "member-1")]
    assert splits[0] == splits[1]


def test_the_folder_is_one_model(folder):
    ensemble = load_models([folder])
    assert isinstance(ensemble, Ensemble)
    some = torch.tensor([3, 14])
    members = torch.stack([member.outputs(MUTAG, some).softmax(dim=1) for member in ensemble.members]).mean(dim=0)
    torch.testing.assert_close(ensemble.outputs(MUTAG, some).softmax(dim=1), members)
    torch.testing.assert_close(ensemble.predictor()(MUTAG.batch(some)).softmax(dim=1), members)
    assert predict(folder, "MUTAG", graphs=[3, 14])["p(1)"] == pytest.approx(members[:, 1].tolist())
    written = json.loads((folder / "result.json").read_text())
    assert evaluate(folder, device="cpu")["accuracy"] == written["test"]["accuracy"]
    assert set(written["runs"]) == {"member-0", "member-1"}
    (each,) = explain(ensemble, MUTAG, some[:1])
    found = each.attribution
    assert found.baseline + found.nodes.sum().item() == pytest.approx(found.output, abs=0.03)
    assert each.probability == pytest.approx(members[0].max().item(), rel=1e-4)
    service = Service(ensemble, ServeConfig())
    try:
        assert service.describe()["model"] == "gin"
        torch.testing.assert_close(service.model(MUTAG.batch(some)).softmax(dim=1), members)
    finally:
        service.close()


def test_it_is_calibrated_as_one(folder):
    assert calibrate(folder, device="cpu").test_graphs == 19
    assert load_models([folder]).calibration is not None
    assert "set(0.9)" in predict(folder, "MUTAG", graphs=[0], level=0.9)


def test_what_is_missing_is_trained_when_it_goes_on(folder, tmp_path):
    out = tmp_path / "some"
    train_several(CONFIG, out, "replicates", 2, dataset=MUTAG)
    first, second = (out / f"replicate-{i}" for i in range(2))
    kept, weights = (first / "model.safetensors").stat().st_mtime_ns, load_tensors(second / "model.safetensors")[0]
    for path in second.iterdir():
        path.unlink()
    second.rmdir()
    several = resume_several(out)
    assert (first / "model.safetensors").stat().st_mtime_ns == kept
    again = load_tensors(second / "model.safetensors")[0]
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    head, rows = several.table()
    assert head[:3] == ["run", "epoch", "valid accuracy"]
    assert [row[0] for row in rows] == ["replicate-0", "replicate-1", "mean", "deviation"]
    with pytest.raises(InputError, match="holds a run already"):
        train_several(CONFIG, out, "folds", 3)
    (out / "runs.json").write_text('{"runs": ["../elsewhere"]}')
    with pytest.raises(InputError, match=r"runs.json: damaged"):
        resume_several(out)


def test_folds_test_each_graph_once(tmp_path, capsys):
    out = tmp_path / "cv"
    words = ["--model", "gin", "--dim", "4", "--depth", "1", "--epochs", "1", "--device", "cpu"]
    assert main(["train", "MUTAG", "--folds", "3", "--out", str(out), *words]) == 0
    assert "deviation" in capsys.readouterr().out
    tested = [i for n in range(3) for i in json.loads((out / f"fold-{n}" / "split.json").read_text())["test"]]
    assert sorted(tested) == list(range(188))
    assert main(["train", "--resume", str(out)]) == 0
    with pytest.raises(InputError, match="at least 3 folds"):
        vary(CONFIG, "folds", 2)
    with pytest.raises(InputError, match="of graphs, scaffolds or groups, and not by butina"):
        vary(RunConfig("x.csv", split=SplitConfig("butina")), "folds", 3)
    with pytest.raises(InputError, match="given by a column"):
        vary(RunConfig("x.csv", split=SplitConfig(column="part")), "folds", 3)
    groups = vary(RunConfig("x.csv", split=SplitConfig("group", column="batch")), "folds", 3)
    assert [each.split for each in groups] == [
        SplitConfig("group-folds", folds=3, fold=i, column="batch") for i in range(3)
    ]
    assert main(["train", "MUTAG", "--ensemble", "0"]) == 2
    assert "--ensemble counts from 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "told"), [("folds", "folds are of whole scaffolds"), ("replicates", "the same parts")]
)
def test_what_several_runs_on_molecules_vary_is_told(kind, told, tmp_path, caplog, capsys):
    pytest.importorskip("rdkit")
    rings = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCNCC1", "c1ccsc1", "C1CCCC1"]
    rows = [f"{ring}{'C' * n},{n + i / 7}" for i, ring in enumerate(rings) for n in range(1, 11)]
    (tmp_path / "my.csv").write_text("\n".join(["smiles,y", *rows]) + "\n")
    words = ["--model", "gin", "--dim", "8", "--depth", "1", "--epochs", "1", "--device", "cpu", f"--{kind}", "3"]
    table, out = str(tmp_path / "my.csv"), tmp_path / "run"
    assert main(["train", table, "--out", str(out), *words]) == 0
    assert told in caplog.text
    assert f"next: mnagt predict {out} NEW.csv" in capsys.readouterr().out
    if kind == "folds":
        scaffolds = find_scaffolds([row.split(",")[0] for row in rows])
        parts = [read_json(out / f"fold-{i}" / "split.json") for i in range(3)]
        assert sorted(chain(*(part["test"] for part in parts))) == list(range(60))
        for part in parts:
            of_parts = [{scaffolds[row] for row in part[name]} for name in ("train", "valid", "test")]
            assert [len(each) for each in of_parts] == [2, 2, 2]
            assert len(set().union(*of_parts)) == 6
        assert read_json(out / "runs.json")["config"]["split"]["kind"] == "scaffold-folds"
    for command in ("evaluate", "calibrate"):
        assert main([command, str(out)]) == 2
        assert f"name one run ({out / next(iter(read_json(out / 'runs.json')['runs']))})" in capsys.readouterr().err
    caplog.clear()
    assert main(["train", table, "--out", str(tmp_path / "again"), *words, "--split", "random"]) == 0
    assert told not in caplog.text


def test_folds_of_few_scaffolds_are_drawn_at_random_and_one_large_scaffold_is_told(tmp_path, caplog):
    pytest.importorskip("rdkit")
    rows = [f"{'C' * n},{n}" for n in range(1, 40)]
    path = tmp_path / "my.csv"
    path.write_text("\n".join(["smiles,y", *rows]) + "\n")
    config = RunConfig(str(path))
    assert choose_folds(config, load_dataset(path), 3).split.kind == "stratified"
    assert "too few scaffolds" in caplog.text
    path.write_text("\n".join(["smiles,y", *rows, "C1CC1,1", "C1CCC1,2", "C1CCC1C,2", "c1ccccc1,3"]) + "\n")
    assert choose_folds(config, load_dataset(path), 3).split.kind == "scaffold-folds"
    assert "fold 0 has 39 of 43 molecules" in caplog.text
    given = replace(config, split=SplitConfig("random"))
    assert choose_folds(given, load_dataset(path), 3) == given
