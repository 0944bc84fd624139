"""chemprop in a comparison: the table that it is given, its predictions as outputs, and its program."""

import csv
import gzip
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnagt import load_dataset, read_smiles
from mnagt.cli import main
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError
from mnagt.experiments.chemprop import check_task, write_table
from mnagt.experiments.compare import CONSTANT
from mnagt.runs.config import SplitConfig
from mnagt.runs.split import make_split
from mnagt.tasks import Mixed, MultiLabel, Regression, SingleLabel

pytest.importorskip("rdkit")
PROGRAM = os.environ.get("MNAGT_CHEMPROP", "chemprop")
WORDS = ["--models", "wl-linear,chemprop", "--seeds", "1", "--curve-seeds", "0", "--epochs", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def molecules() -> PackedDataset:
    labels = MultiLabel(("a", "b"))
    targets = torch.tensor([[0, 1], [1, torch.nan], [1, 0], [0, 0], [1, 1]])
    return replace(read_smiles(["C", "CC", "CCC", "CCO", "CO"]).graphs, task=labels, targets=targets)


def test_the_table_holds_the_parts_and_validation_molecules_are_predicted_too(molecules, tmp_path):
    split = Split(torch.tensor([1, 3]), torch.tensor([4]), torch.tensor([0, 2]))
    assert write_table(tmp_path / "table.csv", molecules, split) == (["smiles0"], ["target0", "target1"])
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == [
        ("CC", "1.0", "", "1.0", "train"),
        ("CCO", "0.0", "0.0", "1.0", "train"),
        ("CO", "1.0", "1.0", "1.0", "val"),
        ("CO", "1.0", "1.0", "1.0", "test"),
        ("C", "0.0", "1.0", "1.0", "test"),
        ("CCC", "1.0", "0.0", "1.0", "test"),
    ]


def test_predictions_are_outputs_of_our_task():
    share, number = torch.tensor([[0.2], [0.9]]), torch.tensor([[-3.0], [5.0]])
    classes, labels = SingleLabel(("no", "yes")), MultiLabel(("active",))
    assert classes.decode(classes.from_predicted_columns(share))["p(yes)"] == pytest.approx([0.2, 0.9])
    assert labels.decode(labels.from_predicted_columns(share))["p(active)"] == pytest.approx([0.2, 0.9])
    for transform in ("standardise", "none"):
        task = Regression(("y",), mean=(2.0,), std=(3.0,), transform=transform)
        assert task.decode(task.from_predicted_columns(number))["y"] == pytest.approx([-3, 5])


def test_what_it_cannot_be_given_is_refused(molecules):
    check_task(molecules)
    with pytest.raises(InputError, match="these graphs have none"):
        check_task(load_dataset("MUTAG"))
    mixed = Mixed(("a", "y"), (MultiLabel(("a",)), Regression(("y",))))
    for task in (mixed, SingleLabel(("low", "middle", "high"))):
        with pytest.raises(InputError, match="it is given numbers, labels or two classes"):
            check_task(replace(molecules, task=task))


@pytest.fixture(scope="module")
def esol(data_root, tmp_path_factory) -> str:
    """Molecules of ogbg-molesol."""
    path: Path = tmp_path_factory.mktemp("tables") / "esol.csv"
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        path.write_text("".join(line for line, _ in zip(file, range(301), strict=False)))
    return str(path)


@pytest.mark.real_data
def test_it_is_said_how_it_is_added(esol, tmp_path, capsys):
    words = ["compare", esol, *WORDS, "--chemprop", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    told = "chemprop is left out: its program is not installed; to compare it too: python -m venv chem"
    assert told in capsys.readouterr().err
    assert told in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.real_data
def test_a_real_table_is_learned_by_it_on_the_same_parts(esol, tmp_path, capsys):
    if shutil.which(PROGRAM) is None:
        pytest.skip("chemprop is not on the path; MNAGT_CHEMPROP names its program")
    words = ["compare", esol, "--split", "random", *WORDS, "--chemprop", PROGRAM, "--out", str(tmp_path / "out")]
    assert main(words) == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(found["models"]) == {"wl-linear", "chemprop", CONSTANT}
    assert found["models"]["chemprop"]["valid"] < found["models"][CONSTANT]["valid"]
    (record,) = json.loads((tmp_path / "out" / "chemprop.json").read_text()).values()
    split = make_split(SplitConfig("random"), load_dataset(esol)).to_dict()
    assert record["split"] == {part: len(graphs) for part, graphs in split.items()}
    assert record["peak_memory_mb"] > 100
    assert f"chemprop {record['version']} was trained by its own program" in capsys.readouterr().out
    (tmp_path / "fails").write_text("#!/bin/sh\necho 'no such option'\nexit 3\n")
    (tmp_path / "fails").chmod(0o755)
    words = [*words[:-3], str(tmp_path / "fails"), *words[-2:]]
    assert main(words) == 0, "finished trainings are not run again"
    assert main([*words[:-1], str(tmp_path / "other")]) == 0
    assert "fails train failed: no such option" in capsys.readouterr().err
