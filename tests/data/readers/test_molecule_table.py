"""A table of molecules trains, scores and predicts; what is wrong with it is told with its line."""

import gzip
import json
import logging
import math
import re
import shutil
from pathlib import Path

import pytest
import torch

from mnagt import RunConfig, SplitConfig, TrainConfig, evaluate, load_dataset, load_model, predict, resume, train
from mnagt.cli import main
from mnagt.data.readers.molecule_table import read_molecules
from mnagt.data.readers.smiles import get_smiles, read_smiles
from mnagt.data.readers.text_table import read_table
from mnagt.errors import InputError
from mnagt.runs.split import make_split
from mnagt.tasks import MultiLabel, Regression, SingleLabel, Unlabelled

pytest.importorskip("rdkit")

TINY = {"dim": 8, "depth": 1}
CHAINS = ["C" * (n + 1) + end for n in range(15) for end in ("", "O", "N")]


@pytest.fixture
def written(tmp_path):
    """Writes a table."""

    def write(text: str | bytes, name: str = "mine.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def column_of(*values: str, name: str = "y") -> str:
    """A table with these values beside as many molecules."""
    return f"smiles,{name}\n" + "".join(f"{'C' * (i + 1)},{value}\n" for i, value in enumerate(values))


# Which columns, which task


@pytest.mark.parametrize("head", ["smiles,y", "y,SMILES", "mol_id,Smiles,y", "id,canonical_smiles,y", "y,Mol"])
def test_obvious_columns_need_no_name(written, head):
    row = ",".join({"y": "1.5", "id": "7", "mol_id": "7"}.get(column, "CCO") for column in head.split(","))
    found = read_molecules(written(f"{head}\n{row}\n{row.replace('1.5', '2.5')}\n"), task="regression")
    assert found.targets == ("y",)
    assert get_smiles(found.dataset) == ["CCO", "CCO"]


@pytest.mark.parametrize(
    ("values", "task", "targets"),
    [
        (["0", "1", "1"], SingleLabel(("0", "1")), [0, 1, 1]),
        (["1.0", "0.0", "1.0"], SingleLabel(("0", "1")), [1, 0, 1]),
        (["yes", "no", "no"], SingleLabel(("no", "yes")), [1, 0, 0]),
        (["-1", "10", "-1"], SingleLabel(("-1", "10")), [0, 1, 0]),
        (["a", "b", "c", "a", "b", "c"], SingleLabel(("a", "b", "c")), [0, 1, 2, 0, 1, 2]),
        (["1.5", "2", "-3e2"], Regression(("y",)), [[1.5], [2.0], [-300.0]]),
    ],
)
def test_the_task_is_found_from_the_column(written, values, task, targets):
    dataset = load_dataset(written(column_of(*values)))
    assert dataset.task == task
    assert dataset.targets.tolist() == targets


def test_several_columns_of_0_and_1_are_questions_and_empty_is_missing(written):
    text = "smiles,a,b\nC,0,\nCC,1.0,nan\nCCC,,1\nCCCC,TRUE,NA\nCCCCC,n/a,1\nCCCCCC,1,NULL\n"
    dataset = load_dataset(written(text), targets=["b", "a"])
    assert dataset.task == MultiLabel(("b", "a"), "rocauc")
    assert dataset.targets.nan_to_num(nan=9).tolist() == [[9, 0], [9, 1], [1, 9], [9, 1], [1, 9], [9, 1]]


def test_several_columns_of_numbers_are_numbers(written):
    dataset = load_dataset(written("smiles,a,b\nC,0.5,\nCC,1,7\n"), targets=["a", "b"])
    assert dataset.task == Regression(("a", "b"))
    assert dataset.targets[1].tolist() == [1, 7]
    assert math.isnan(dataset.targets[0, 1])


def test_a_question_may_be_unanswered_in_a_table_that_is_scored(written):
    path, task = written("smiles,a,b\nC,0,\nCC,1,\n"), MultiLabel(("a", "b"), "ap")
    assert read_molecules(path, task=task).dataset.task == task
    with pytest.raises(InputError, match="column 'b' is empty"):
        read_molecules(path, targets=["a", "b"])


def test_what_is_meant_can_be_said(written):
    path = written(column_of("0", "1", "2", "1"))
    assert load_dataset(path, task="single-label").task == SingleLabel(("0", "1", "2"))
    assert load_dataset(path, task="regression").task == Regression(("y",))
    assert load_dataset(written(column_of("0", "1", "")), task="multi-label").task == MultiLabel(("y",), "rocauc")


def test_molecules_alone_ask_nothing(written):
    assert load_dataset(written("smiles\nC\nCC\n")).task == Unlabelled()
    assert load_dataset(written("C methane\nCC\n", "mine.smi")).task == Unlabelled()


# The file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\ufeffsmiles,y\r\nCCO,1\r\n"),
        ("a.csv", 'y;smiles\n1;"CCO"\n'),
        ("a.tsv", "smiles\ty\nCCO\t1\n"),
        ("A.CSV", "smiles,y\n CCO ,1\n\n\n"),
        ("a.csv.gz", gzip.compress(b"smiles,y\nCCO,1\n", mtime=0)),
    ],
)
def test_tables_come_in_many_forms(written, name, text):
    table = read_table(written(text, name))
    assert table.column(table.find_smiles_column()) == ["CCO"]
    assert table.column("y") == ["1"]


def test_a_list_of_smiles_may_have_names_and_a_head(written):
    for text in ("CCO ethanol, pure\nC\n", "smiles name\nCCO\tethanol, pure\nC"):
        assert read_table(written(text, "a.smi")).columns == {"smiles": ("CCO", "C"), "name": ("ethanol, pure", "")}


REFUSED = {
    "empty file": ("", "mine.csv: the file is empty"),
    "head only": ("smiles,y\n", "no rows under the header"),
    "no smiles": ("a,b\nC,1\n", r"which column holds the SMILES\? Name it \(--smiles\); there are: a, b"),
    "which target": ("smiles,a,b\nC,1,2\n", "which column is the target"),
    "empty column": (column_of("", "nan"), "column 'y' is empty"),
    "one value": (column_of("1", "1"), "column 'y' holds one value only"),
    "a name a row": (column_of("a", "b", "c"), "3 different texts in 3 rows"),
    "mixed": (column_of("1.5", "2.5", ">10"), "line 4, column 'y': '>10' is a bound .* --censored"),
    "infinite": (column_of("1.5", "2.5", "inf"), "line 4, column 'y': 'inf' is not a number"),
    "a slip": (column_of(*"01" * 20, "2"), "line 42, column 'y': '2' is neither 0 nor 1, as nearly all others are"),
    "ragged": ("smiles,y\nC,1\nCC,1,2\n", "line 3: 3 fields, and the header has 2"),
    "quotes left open": ('smiles,y\nC,"1\nCC,2\n', "line 3: unexpected end of data"),
    "twice": ("smiles,y,y\nC,1,2\n", "line 1: column 'y' is there twice"),
    "latin-1": ("smiles,y\nC,1\nCC,caf\xe9\n".encode("latin-1"), "line 3: byte 0xe9 is not UTF-8"),
    "utf-16": ("smiles,y\nC,1\n".encode("utf-16"), "line 1: byte 0xff is not UTF-8"),
    "no molecule": ("smiles,y\nx(,1\n,0\n", r"2 of 2 rows left out: line 2 \(not a SMILES\); line 3 \(no SMILES\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_tables_are_refused_by_line_and_column(written, case):
    text, told = REFUSED[case]
    with pytest.raises(InputError, match=told):
        load_dataset(written(text))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"smiles": "x"}, r"no column 'x' \(--smiles\); there are: smiles, a, b, c"),
        ({"targets": ["a", "x"]}, r"no column 'x' \(--target\)"),
        ({"targets": ["b"], "task": "multi-label"}, "line 3, column 'b': '2' is neither 0, 1 nor empty; fix it"),
        ({"targets": ["c"], "task": "regression"}, "line 2, column 'c': 'x' is neither a number nor empty; fix it"),
        ({"targets": ["a", "b"], "task": "single-label"}, "classes are in one column, and 2 columns are named"),
        (
            {"targets": ["a"], "task": SingleLabel(("1", "2"))},
            "line 2, column 'a': '0' is not one of the classes: 1, 2",
        ),
        ({"targets": ["a"], "task": "sums"}, "no task 'sums'"),
    ],
)
def test_what_is_asked_of_the_columns_must_be_there(written, columns, told):
    with pytest.raises(InputError, match=told):
        load_dataset(written("smiles,a,b,c\nC,0,1,x\nCC,1,2,y\n"), **columns)


def test_a_gz_cut_short_is_refused(written):
    whole = gzip.compress(column_of(*map(str, range(500))).encode())
    with pytest.raises(InputError, match=r"mine\.csv\.gz: not a readable gzip file"):
        load_dataset(written(whole[: len(whole) // 2], "mine.csv.gz"))


def test_columns_are_of_tables_only(tmp_path):
    with pytest.raises(InputError, match="MUTAG: columns and task can only be chosen of a table"):
        load_dataset("MUTAG", smiles="smiles")
    with pytest.raises(InputError, match=r"gone\.csv: no such file"):
        load_dataset(tmp_path / "gone.csv")


def test_rows_left_out_are_reported_with_their_lines_also_from_the_cache(written, caplog):
    path = written(f'smiles,y\nC,1\n\nC(,2\n"CC",\nCCC,3\n,4\n{"C" * 100_000},5\nCCCC,6\n')
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = read_molecules(path)
        lines = [(found.table.lines[row.row], row.reason) for row in found.refused]
        assert lines == [
            (3, "empty row"),
            (4, "not a SMILES"),
            (5, "no value of y"),
            (7, "no SMILES"),
            (8, "100,000 characters; SMILES of up to 10,000 are read"),
        ]
        assert found.kept.tolist() == [0, 4, 7]
        assert found.dataset.targets.tolist() == [[1], [3], [6]]
        assert "5 of 8 rows left out: line 3 (empty row); line 4 (not a SMILES)" in caplog.text


# Training and answers


@pytest.fixture(scope="module")
def chains(tmp_path_factory) -> Path:
    """Chains with two labels each: is there an N, how long is it; and a row that cannot be read."""
    path = tmp_path_factory.mktemp("tables") / "chains.csv"
    rows = [f"{i},{smiles},{'yes' if 'N' in smiles else 'no'},{len(smiles)}" for i, smiles in enumerate(CHAINS)]
    path.write_text("\n".join(["id,smiles,amine,length", *rows, "99,C(,no,2"]) + "\n")
    return path


@pytest.fixture(scope="module")
def run_folder(chains, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "chains"
    settings = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    words = ["--target", "amine", "--smiles", "smiles", "--model", "gin", "--epochs", "2", "--device", "cpu", *settings]
    assert main(["train", str(chains), "--out", str(out), "--split", "stratified", *words]) == 0
    return out


def test_a_run_remembers_its_columns(run_folder, chains):
    result = json.loads((run_folder / "result.json").read_text())
    assert evaluate(run_folder, device="cpu")["accuracy"] == result["test"]["accuracy"]
    assert resume(run_folder).result.test == result["test"]


def test_another_table_is_scored_by_the_models_own_classes(run_folder, chains, written, capsys):
    one_class = written("mol,amine,other\nCCCN,yes,1\nCN,yes,2\nCCC,,3\n")
    assert evaluate(run_folder, dataset=str(one_class), smiles="mol", device="cpu")["graphs"] == 2
    words = ["evaluate", str(run_folder), "--dataset", str(chains), "--device", "cpu", "--json"]
    capsys.readouterr()
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == evaluate(run_folder, part="all", device="cpu")


def test_predictions_stand_beside_the_rows_and_notes_say_which_could_not_be_read(run_folder, chains, tmp_path):
    out = tmp_path / "answers.csv"
    assert main(["predict", str(run_folder), str(chains), "--out", str(out), "--device", "cpu"]) == 0
    told = read_table(out)
    assert tuple(told.columns) == (
        "id",
        "smiles",
        "amine",
        "length",
        "prediction",
        "p(no)",
        "p(yes)",
        "distance",
        "note",
    )
    assert dict(list(told.columns.items())[:4]) == read_table(chains).columns
    assert [column[-1] for column in told.columns.values()][4:] == ["", "", "", "", "not a SMILES"]
    expected = load_model(run_folder).predict(read_smiles(CHAINS).graphs)
    assert told.column("prediction")[:-1] == expected["prediction"]
    assert [float(p) for p in told.column("p(yes)")[:-1]] == pytest.approx(expected["p(yes)"])


def test_answers_do_not_take_the_place_of_the_tables_own_columns(run_folder, written):
    path = written("smiles,note,p(no)\nC(,mine,1\n")
    assert list(predict(run_folder, str(path), device="cpu")) == [
        "smiles", "note", "p(no)", "prediction", "predicted p(no)", "p(yes)", "distance", "predicted note"
    ]  # fmt: skip


def test_rows_can_be_picked_and_a_smiles_can_be_given(run_folder, chains):
    picked = predict(run_folder, str(chains), graphs=[7, 2], device="cpu")
    assert picked["smiles"] == [CHAINS[7], CHAINS[2]]
    alone = predict(run_folder, CHAINS[2], device="cpu")
    assert alone["smiles"] == [CHAINS[2]]
    assert alone["p(yes)"] == pytest.approx(picked["p(yes)"][1:])
    with pytest.raises(InputError, match=r"chains\.csv has rows 0 to 45; asked for 46"):
        predict(run_folder, str(chains), graphs=[46])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("C((", r"'C\(\(' cannot be read as a molecule \(not a SMILES\); and no data set 'C\(\('"),
        ("C" * 300 + "(", "cannot be read as a molecule"),
        ("gone.csv", r"gone\.csv: no such file"),
        ("MUTAG", "MUTAG: the model reads 9 categorical"),
    ],
)
def test_what_is_no_molecule_is_told(run_folder, given, told):
    with pytest.raises(InputError, match=told):
        predict(run_folder, given, device="cpu")


def test_a_model_of_other_graphs_does_not_read_molecules(tmp_path, written):
    train(RunConfig("MUTAG", "gin", TINY, TrainConfig(epochs=1), device="cpu"), tmp_path / "mutag")
    for given, told in ((str(written("smiles\nCCO\n")), "the model reads 1 categorical"), ("CCO", "no data set 'CCO'")):
        with pytest.raises(InputError, match=told):
            predict(tmp_path / "mutag", given, device="cpu")


def test_a_table_without_targets_cannot_be_learned(written):
    with pytest.raises(InputError, match=r"no targets to learn from; name the columns .* \(--target\)"):
        train(RunConfig(str(written("smiles\nC\nCC\n"))))


def test_the_documented_code_runs(run_folder, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "molecules.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shutil.copytree(run_folder, tmp_path / "runs" / "mine")
    (tmp_path / "my.csv").write_text("smiles,active\nC,yes\nCC,no\nC(,no\n")
    (tmp_path / "solubility.csv").write_text("solute,solvent,logs\nCCO,O,1.5\nC,CCO,2\n")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "molecules.md", "exec"), {})
    assert capsys.readouterr().out == "4 C( not a SMILES\n"


@pytest.mark.real_data
def test_a_model_of_an_official_set_reads_smiles(data_root, tmp_path, monkeypatch):
    monkeypatch.setenv("MNAGT_DATA", str(data_root))
    config = RunConfig("ogbg-molfreesolv", "gin", TINY, TrainConfig(epochs=1), device="cpu")
    train(config, tmp_path / "run")
    table = str(data_root / "ogbg_molfreesolv" / "mapping" / "mol.csv.gz")
    by_name = predict(tmp_path / "run", "ogbg-molfreesolv", device="cpu")
    by_smiles = predict(tmp_path / "run", table, device="cpu")
    torch.testing.assert_close(torch.tensor(by_smiles["predicted expt"]), torch.tensor(by_name["expt"]))
    assert set(by_smiles["note"]) == {None}
    scores = evaluate(tmp_path / "run", dataset=table, device="cpu")
    assert scores["rmse"] == pytest.approx(evaluate(tmp_path / "run", part="all", device="cpu")["rmse"])


@pytest.mark.real_data
def test_the_scaffold_split_of_a_table_is_the_official_one(data_root):
    folder = data_root / "ogbg_molfreesolv"
    dataset = load_dataset(folder / "mapping" / "mol.csv.gz")
    ours = make_split(SplitConfig("scaffold"), dataset)
    theirs = make_split(SplitConfig("files", folder=str(folder / "split" / "scaffold")), dataset)
    assert ours.to_dict() == theirs.to_dict()


def test_chains_have_one_scaffold_and_cannot_be_split_by_it(chains):
    with pytest.raises(InputError, match="part is empty"):
        make_split(SplitConfig("scaffold"), load_dataset(chains, targets=["length"]))
