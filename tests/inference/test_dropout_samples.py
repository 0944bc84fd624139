"""Monte Carlo dropout: predictions with dropout, averaged; all else is as in evaluation."""

import csv
import gzip
from pathlib import Path

import pytest
import torch

from mnagt import load_dataset, load_model, predict, train
from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.inference.ensemble import DropoutEnsemble, Ensemble
from mnagt.runs.folder import load_run_split

SMALL = {"dim": 16, "depth": 1, "epochs": 3, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "mutag"
    train("MUTAG", out, model="mnagt", forest_trees=3, wl_vocabulary_size=64, **SMALL)
    return out


def test_dropout_acts_and_nothing_else_changes(folder):
    trained, mutag = load_model(folder), load_dataset("MUTAG")
    state = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    plain = trained.outputs(mutag)
    samples = DropoutEnsemble.sample(trained, 25)
    found, again = samples.predict(mutag), samples.predict(mutag)
    assert found == again
    spread = torch.tensor(found["spread p(1)"])
    assert bool((spread > 0).all())
    probability = plain.softmax(dim=1)[:, 1]
    assert (torch.tensor(found["p(1)"]) - probability).abs().max() < 0.2
    assert not any(module.training for module in trained.model.modules())
    assert all(torch.equal(state[name], tensor) for name, tensor in trained.model.state_dict().items())
    torch.testing.assert_close(trained.outputs(mutag), plain)


def test_more_samples_agree_better(folder):
    trained, mutag = load_model(folder), load_dataset("MUTAG")
    whole = torch.tensor(DropoutEnsemble.sample(trained, 200).predict(mutag)["p(1)"])
    few, more = (torch.tensor(DropoutEnsemble.sample(trained, n).predict(mutag)["p(1)"]) for n in (2, 50))
    assert (more - whole).abs().mean() < (few - whole).abs().mean() / 2


def test_what_has_no_dropout_is_refused(folder, tmp_path):
    train("MUTAG", tmp_path / "gin", model="gin", dropout=0.0, **SMALL)
    with pytest.raises(InputError, match="this gin was trained without dropout"):
        predict(tmp_path / "gin", "MUTAG", dropout_samples=5)
    for folders, count, told in (([folder], 1, "at least 2 samples"), ([folder, folder], 5, "sampled in one model")):
        with pytest.raises(InputError, match=told):
            predict(folders, "MUTAG", dropout_samples=count)
    assert not isinstance(load_model(folder), Ensemble)


@pytest.mark.real_data
def test_intervals_of_a_real_table_hold_its_test_targets(data_root, tmp_path):
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        rows = [(smiles.strip(), value) for value, smiles, _ in list(csv.reader(file))[1:]]
    with (tmp_path / "esol.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "y"), *rows])
    table, run, answers = (str(tmp_path / name) for name in ("esol.csv", "run", "answers.csv"))
    words = ["--model", "gin", "--dim", "16", "--depth", "2", "--dropout", "0.2", "--epochs", "8", "--lr", "0.005"]
    assert main(["train", table, "--out", run, "--split", "random", *words, "--device", "cpu"]) == 0
    words = ["--dropout-samples", "10", "--level", "0.9", "--out", answers, "--device", "cpu"]
    assert main(["predict", run, table, *words]) == 0
    with Path(answers).open(newline="") as file:
        told = list(csv.DictReader(file))
    test = load_run_split(Path(run))[1].test.tolist()
    held = [float(told[i]["y low(0.9)"]) <= float(told[i]["y"]) <= float(told[i]["y high(0.9)"]) for i in test]
    assert sum(held) / len(held) == pytest.approx(0.9, abs=0.12)
    assert all(float(told[i]["spread y"]) > 0 for i in test)
