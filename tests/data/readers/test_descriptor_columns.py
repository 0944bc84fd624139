"""Descriptors of one's own and of RDKit beside the graphs of a real table, from training to predictions."""

import csv
import gzip
import json
import logging
import re
from pathlib import Path

import pytest
import torch

from mnagt import evaluate, load_model, predict
from mnagt.cli import main
from mnagt.data.readers.text_table import read_table
from mnagt.errors import InputError
from mnagt.nn.molecule_descriptors import MoleculeDescriptors

Chem = pytest.importorskip("rdkit.Chem")

TINY = ["--model", "gin", "--dim", "8", "--depth", "1", "--epochs", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def esol(data_root) -> list[tuple[str, str]]:
    """SMILES and solubility of the first 60 molecules of ogbg-molesol."""
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        return [(smiles.strip(), value) for value, smiles, _ in list(csv.reader(file))[1:61]]


@pytest.fixture
def write(tmp_path):
    """Writes a table."""

    def write_rows(name: str, head: str, rows) -> Path:
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([head.split(","), *rows])
        return tmp_path / name

    return write_rows


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.real_data
def test_rdkit_descriptors_are_standardised_on_the_training_part_and_kept(esol, write, tmp_path, capsys):
    from rdkit.Chem.Descriptors import descList

    table, out = write("my.csv", "smiles,y", esol), tmp_path / "run"
    assert run("train", table, "--descriptors", "rdkit2d", "--out", out, *TINY) == 0
    (readout,) = (part for part in load_model(out).model.modules() if isinstance(part, MoleculeDescriptors))
    train = json.loads((out / "split.json").read_text())["train"]
    molecules = [Chem.MolFromSmiles(esol[row][0]) for row in train]
    for name in ("MolLogP", "TPSA", "MolWt", "NumHDonors"):
        at = [each for each, _ in descList].index(name)
        values = torch.tensor([descList[at][1](molecule) for molecule in molecules]).double()
        assert readout.mean[at].item() == pytest.approx(values.mean().item(), rel=1e-4)
        assert readout.scale[at].item() == pytest.approx(1 / values.std(correction=0).item(), rel=1e-3)
    alone = predict(out, esol[0][0], device="cpu")["y"]
    assert alone == pytest.approx(load_model(out).predict([esol[0][0]])["y"])
    assert run("explain", out, table, "--graphs", "0,1", "--out", tmp_path / "page.html") == 0
    assert "what descriptors contribute is part of the prediction and not of the colours" in capsys.readouterr().out
    assert "reads rdkit2d of whole molecules" in (tmp_path / "page.html").read_text()
    assert run("export", out, "--format", "torch") == 2
    assert "it reads fingerprints or descriptors" in capsys.readouterr().err


@pytest.mark.real_data
def test_a_table_of_descriptors_is_read_in_training_and_in_prediction(esol, write, tmp_path, caplog):
    own = [(smiles, str(len(smiles)), "" if i == 7 else f"{i / 7:.3f}", f"x{i}") for i, (smiles, _) in enumerate(esol)]
    table, descriptors = write("my.csv", "smiles,y", esol), write("own.csv", "smiles,length,ph,id", reversed(own))
    out = tmp_path / "run"
    with caplog.at_level(logging.INFO):
        assert run("train", table, "--descriptors", descriptors, "--out", out, *TINY) == 0
    assert "own.csv: descriptors are length, ph" in caplog.text
    assert "no ph in 1 row, where its mean is read" in caplog.text
    result = json.loads((out / "result.json").read_text())
    assert evaluate(out, device="cpu")["rmse"] == pytest.approx(result["test"]["rmse"])
    first = predict(out, str(table), descriptors=str(descriptors), device="cpu")["predicted y"]
    with_columns = write("wide.csv", "smiles,ph,length", [(smiles, ph, length) for smiles, length, ph, _ in own])
    assert predict(out, str(with_columns), device="cpu")["y"] == pytest.approx(first)
    shifted = write("warm.csv", "smiles,length,ph", [(smiles, length, "9") for smiles, length, _, _ in own])
    assert predict(out, str(table), descriptors=str(shifted), device="cpu")["predicted y"] != pytest.approx(first)
    scores = evaluate(out, dataset=str(table), descriptors=str(descriptors), device="cpu")
    assert scores["rmse"] == pytest.approx(evaluate(out, part="all", device="cpu")["rmse"])
    with pytest.raises(InputError, match=r"my\.csv: no column 'length', which the model reads beside the graph"):
        predict(out, str(table), device="cpu")
    with pytest.raises(InputError, match="the model reads length, ph beside the graphs, and these have nothing"):
        load_model(out).predict(["CCO"])


@pytest.mark.real_data
def test_columns_of_the_table_itself_are_no_targets(esol, write, tmp_path):
    table = write("my.csv", "smiles,y,ph", [(*row, str(i % 5)) for i, row in enumerate(esol)])
    assert run("train", table, "--descriptors", "ph", "--out", tmp_path / "run", *TINY) == 0
    answers = tmp_path / "answers.csv"
    assert run("predict", tmp_path / "run", table, "--out", answers, "--device", "cpu") == 0
    assert list(read_table(answers).columns) == ["smiles", "y", "ph", "predicted y", "distance", "note"]


@pytest.mark.real_data
def test_a_target_is_no_descriptor(esol, write, capsys):
    table = write("my.csv", "smiles,y,ph", [(*row, str(i % 5)) for i, row in enumerate(esol)])
    assert run("train", table, "--target", "y", "--descriptors", table, *TINY) == 2
    assert "'y' is a target and a descriptor" in capsys.readouterr().err


WRONG = {
    "a molecule missing": (
        lambda rows: rows[3:],
        r"own\.csv: no row for '.*' \(.*my\.csv, line 2; 3 molecules in all\)",
    ),
    "two values": (lambda rows: [*rows, (rows[5][0], "7.5")], "lines 7 and 62 are of the same molecule"),
    "no number": (lambda rows: [*rows[:-1], (rows[-1][0], "warm")], "line 61, column 'ph': 'warm' is neither a number"),
    "no column": (lambda rows: [(row[0], "warm") for row in rows], "no column of numbers beside 'smiles'"),
}


@pytest.mark.real_data
@pytest.mark.parametrize("case", WRONG)
def test_a_table_that_does_not_fit_is_refused_by_line(case, esol, write, capsys):
    change, told = WRONG[case]
    own = change([(smiles, str(i % 11)) for i, (smiles, _) in enumerate(esol)])
    words = ["--descriptors", write("own.csv", "smiles,ph", own), *TINY]
    if case == "no number":
        words = ["--descriptors", "ph", "--descriptor-file", words[1], *TINY]
    assert run("train", write("my.csv", "smiles,y", esol), *words) == 2
    assert re.search(told, capsys.readouterr().err)
