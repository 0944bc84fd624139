"""Targets of atoms from a table to predictions: lists in cells, in the order of the SMILES."""

import csv
import gzip
import json
import logging
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit.Chem import MolFromSmiles, MolToSmiles
from rdkit.Chem.rdPartialCharges import ComputeGasteigerCharges

from mnagt import Ensemble, evaluate, from_graphs, load_dataset, load_model, predict, resume, screen, train
from mnagt.cli import main
from mnagt.data.table_config import TableConfig
from mnagt.errors import InputError
from mnagt.inference.weights import load_tensors
from mnagt.screening.config import ScreenConfig
from mnagt.tasks import NodeRegression
from mnagt.training.progress import Reporter

SMILES = ["C" * n + end for n in range(1, 8) for end in ("O", "N", "C(=O)O", "Cl", "C(F)(F)F", "c1ccccc1", "C#N")]
SMALL: dict[str, Any] = {
    "model": "mnagt",
    "dim": 8,
    "depth": 1,
    "head_dim": 4,
    "epochs": 2,
    "batch_size": 16,
    "device": "cpu",
}
LONG = "OC(=O)" + "CC(O)" * 9 + "Cl"
"""Larger than any molecule of the tables."""


def compute_charges(smiles: str) -> list[float]:
    """Gasteiger's partial charges by RDKit, in the order of the SMILES."""
    molecule = MolFromSmiles(smiles)
    ComputeGasteigerCharges(molecule)
    return [round(atom.GetDoubleProp("_GasteigerCharge"), 4) for atom in molecule.GetAtoms()]


def write_table(path: Path, rows: dict[str, str] | None = None) -> Path:
    """A table of charges; with ``rows``, of these cells."""
    cells = {smiles: json.dumps(compute_charges(smiles)) for smiles in SMILES} if rows is None else rows
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "charge"), *cells.items()])
    return path


def load(path: Path, **options):
    return load_dataset(path, targets=["charge"], task="node-regression", **options)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "charges.csv")


@pytest.fixture(scope="module")
def run(table, tmp_path_factory) -> Path:
    """By the command line, with the default model."""
    folder = tmp_path_factory.mktemp("runs") / "charges"
    words = "--target charge --atom-targets --split random --dim 8 --depth 1 --head-dim 4 --epochs 2 --device cpu"
    assert main(["train", str(table), *words.split(), "--out", str(folder)]) == 0
    return folder


@pytest.mark.real_data
def test_gasteiger_charges_of_molesol_are_learned(data_root, tmp_path):
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    table = write_table(tmp_path / "charges.csv", {each: json.dumps(compute_charges(each)) for each in smiles})
    result = train(table, target="charge", task="node-regression", epochs=8, device="cpu").result
    test = load(table).targets
    std = test[test.isfinite()].std().item()
    assert result.test["rmse"] < 0.4 * std
    assert result.test["r2"] > 0.85
    assert result.test["spearman"] > 0.85


def test_the_network_alone_is_the_default_with_a_notice(run, table, caplog):
    trained = load_model(run)
    assert (trained.name, trained.task.kind, trained.model.readout.__class__.__name__) == (
        "mnagt",
        "node-regression",
        "Mean",
    )
    with caplog.at_level(logging.INFO):
        assert (
            train(
                table,
                target="charge",
                task="node-regression",
                **{name: SMALL[name] for name in SMALL if name != "model"},
            ).trained.name
            == "mnagt"
        )
    assert "a number is learned for each node: readouts" in caplog.text


def test_predictions_are_lists_in_the_order_of_the_smiles(run, table, tmp_path):
    out = tmp_path / "out.csv"
    assert main(["predict", str(run), str(table), "--out", str(out)]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [len(json.loads(row["predicted charge"])) for row in rows] == [
        MolFromSmiles(smiles).GetNumAtoms() for smiles in SMILES
    ]
    assert rows[3]["charge"] == json.dumps(compute_charges(SMILES[3]))
    again = load(write_table(tmp_path / "again.csv", {row["smiles"]: row["predicted charge"] for row in rows}))
    assert evaluate(run, dataset=str(tmp_path / "again.csv"))["rmse"] == pytest.approx(0, abs=1e-5)
    assert again.task.kind == "node-regression"


def test_another_order_of_atoms_gives_the_same_numbers_in_that_order(run):
    molecule = MolFromSmiles(LONG)
    other = MolToSmiles(molecule, doRandom=True, canonical=False)
    (of_other,) = predict(run, other)["charge"]
    (of_one,) = predict(run, LONG)["charge"]
    assert len(of_one) == molecule.GetNumAtoms() > 20
    match = MolFromSmiles(other).GetSubstructMatch(molecule)
    assert [of_other[atom] for atom in match] == pytest.approx(of_one, abs=1e-4)
    trained = load_model(run)
    together = trained.predict([SMILES[0], LONG, SMILES[-1]])["charge"]
    assert together[1] == pytest.approx(of_one, abs=1e-4)
    assert trained.predict([SMILES[0]])["charge"][0] == pytest.approx(together[0], abs=1e-4)


def test_scores_are_over_all_atoms(run, table):
    scores, dataset = evaluate(run, part="all"), load(table)
    trained = load_model(run)
    predicted = torch.tensor([*chain(*trained.predict(dataset)["charge"])])
    target = torch.tensor([*chain(*map(compute_charges, SMILES))])
    assert scores["rmse"] == pytest.approx((predicted - target).square().mean().sqrt().item(), rel=1e-4)
    assert list(scores) == ["graphs", "rmse", "mae", "r2", "spearman", "intervals"]
    assert scores["intervals"]["rmse"][0] < scores["rmse"] < scores["intervals"]["rmse"][1]


def test_members_and_samples_of_dropout_agree_on_each_atom(run, table):
    other = train(table, target="charge", task="node-regression", seed=1, **SMALL).trained
    one = load_model(run)
    columns = Ensemble.of([one, other]).predict(["CCO", LONG])
    means = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in zip(
        one.predict(["CCO", LONG])["charge"], other.predict(["CCO", LONG])["charge"], strict=True
    )]  # fmt: skip
    for ours, theirs, spread in zip(columns["charge"], means, columns["spread charge"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
        assert len(spread) == len(ours)
        assert min(spread) > 0
    assert len(predict(run, "CCO", dropout_samples=3)["spread charge"][0]) == 3


class Stop(Reporter):
    """Interrupts after the first epoch."""

    def epoch(self, record, best) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_to_the_same_weights(table, tmp_path):
    options: dict[str, Any] = {"target": "charge", "task": "node-regression", "checkpoint_seconds": 0, **SMALL}
    train(table, tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        train(table, tmp_path / "stopped", reporter=Stop(), **options)
    resume(tmp_path / "stopped")
    one, other = (load_tensors(tmp_path / name / "model.safetensors")[0] for name in ("whole", "stopped"))
    assert all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "RUN", "CCO"], "explanations are for one value of each graph"),
        (["calibrate", "RUN"], "calibration and intervals are for one value of each graph"),
        (["predict", "RUN", "CCO", "--level", "0.9"], "the model is not calibrated"),
        (["export", "RUN"], "cannot be exported: it predicts for nodes"),
        (["compare", "TABLE", "--target", "charge", "--atom-targets", "--out", "OUT"], "are of nodes; train them one"),
        (["train", "TABLE", "--target", "charge", "--atom-targets", "--model", "morgan-forest"], "no vectors of nodes"),
        (["train", "TABLE", "--target", "charge", "--atom-targets", "--model", "mnagt-ensemble"], "no vectors of node"),
        (
            ["train", "TABLE", "--target", "charge", "--atom-targets", "--forest-trees", "3"],
            "random forests are for one",
        ),
        (
            ["train", "TABLE", "--target", "charge", "--atom-targets", "--uncertainty", "quantile"],
            "for numbers without",
        ),
        (
            ["train", "TABLE", "--target", "charge", "--atom-targets", "--class-weights", "true"],
            "class weights need classes",
        ),
        (["train", "TABLE", "--target", "charge", "--atom-targets", "--duplicates", "average"], "in different orders"),
        (["train", "TABLE", "--target", "charge"], "holds lists; if they have a number for each atom, give --atom-tar"),
        (["train", "MUTAG", "--atom-targets"], "columns and task can only be chosen of a table"),
        (
            ["screen", "RUN", "TABLE", "--by", "predicted charge", "--top-k", "3", "--out", "OUT"],
            "no column 'predicted charge' of",
        ),
    ],
)
def test_what_needs_one_value_for_each_graph_is_refused(words, message, run, tmp_path, capsys):
    twice = {smiles: json.dumps(compute_charges(smiles)) for smiles in [*SMILES, "OCC", "NCC"]}
    paths = {"RUN": run, "TABLE": write_table(tmp_path / "twice.csv", twice), "OUT": tmp_path / "out"}
    words = [str(paths.get(word, word)) for word in words]
    out = ["--out", str(tmp_path / "run")] if words[0] == "train" else []
    assert main([*words, *out]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_cells_must_have_a_number_for_each_atom_that_rdkit_keeps(tmp_path):
    rows = {"[H]OC": "0.1,0.2", "C1CC": "[1]", "CCO": "[0.5, null, NaN]", "O": "-0.4", "CC": ""}
    dataset = load(write_table(tmp_path / "t.csv", rows))
    nan = float("nan")
    expected = torch.tensor([[0.1, 0.2, nan], [0.5, nan, nan], [-0.4, nan, nan]])
    torch.testing.assert_close(dataset.targets, expected, equal_nan=True)  # a bad SMILES and no value: left out
    rows |= {"[H]OC": "[0.3, 0.1, 0.2]"}
    with pytest.raises(InputError, match=r"t\.csv, line 2, column 'charge': 3 values for 2 atoms \(without hydrogens"):
        load(write_table(tmp_path / "t.csv", rows))
    with pytest.raises(InputError, match=r"t\.csv, line 3, column 'charge': '\[0.1, C\]' is neither a list"):
        load(write_table(tmp_path / "t.csv", {"C": "[1]", "CO": "[0.1, C]"}))
    with pytest.raises(InputError, match="such targets are of molecules"):
        load(write_table(tmp_path / "t.csv", {"[CH3:1]Br>>[CH3:1]O": "[0.1]"}))


def test_copies_of_a_molecule_with_another_order_of_atoms_agree(tmp_path, caplog):
    rows = {"CCO": "[1, 2, 3]", "OCC": "[3, 2, 1]", "CN": "[1, 2]", "NC": "[2, 5]"}
    path = write_table(tmp_path / "t.csv", rows)
    assert len(load(path)) == 4
    assert "targets differ for 1" in caplog.text
    kept = load(path, options=TableConfig(duplicates="drop"))
    assert kept.targets.tolist() == [[1, 2, 3]]
    with pytest.raises(InputError, match="different orders"):
        load(path, options=TableConfig(duplicates="average"))


def test_several_columns_are_learned_together(tmp_path):
    path = tmp_path / "two.csv"
    lines = [f'{smiles},"{[1.0] * n}","{list(range(n))}"' for smiles, n in (("C" * n, n) for n in range(1, 25))]
    path.write_text("\n".join(["smiles,one,place", *lines]))
    columns = train(path, target=["one", "place"], task="node-regression", **SMALL).trained.predict(["CCC"])
    assert [len(columns[name][0]) for name in ("one", "place")] == [3, 3]
    assert columns["one"][0] == pytest.approx([1] * 3, abs=0.2)
    assert max(columns["place"][0]) > 2


def test_graphs_in_memory_have_lists_or_one_tensor_for_all_nodes(table):
    charges = [compute_charges(smiles) for smiles in SMILES]
    dataset = from_graphs(SMILES, charges, task="node-regression")
    torch.testing.assert_close(dataset.targets, load(table).targets, equal_nan=True)
    assert dataset.task == NodeRegression(("y",))
    torch.testing.assert_close(
        from_graphs(SMILES, torch.tensor([*chain(*charges)]), task="node-regression").targets,
        dataset.targets,
        equal_nan=True,
    )
    with pytest.raises(InputError, match=r"targets\[1\].* 1 values for 2 atoms"):
        from_graphs(["C", "CO"], [[1.0], [2.0]], task="node-regression")
    trained = train(dataset, **SMALL).trained
    assert [len(each) for each in trained.predict(SMILES)["y"]] == list(map(len, charges))


def test_graphs_of_other_libraries_have_targets_of_nodes():
    networkx, geometric = pytest.importorskip("networkx"), pytest.importorskip("torch_geometric.data")
    graphs = [networkx.path_graph(n) for n in (2, 3)]
    dataset = from_graphs(graphs, [[1.0, 2.0], [3.0, None, 5.0]], task="node-regression")
    expected = torch.tensor([[1.0, 2.0, torch.nan], [3.0, torch.nan, 5.0]])
    torch.testing.assert_close(dataset.targets, expected, equal_nan=True)
    edges = torch.tensor([[0, 1], [1, 0]])
    data = [geometric.Data(x=torch.ones(n, 1), edge_index=edges, y=torch.arange(float(n))) for n in (2, 3)]
    ours = from_graphs(data, task="node-regression")
    torch.testing.assert_close(ours.targets, torch.tensor([[0, 1, torch.nan], [0, 1, 2]]), equal_nan=True)
    data[1].y = torch.ones(2)
    with pytest.raises(InputError, match="graph 1: y has 2 rows for 3 nodes"):
        from_graphs(data, task="node-regression")


def test_other_files_with_targets_of_nodes_are_refused(tmp_path):
    (tmp_path / "my.jsonl").write_text('{"nodes": 2, "edges": [[0, 1]], "y": [1, 2]}\n')
    with pytest.raises(InputError, match="targets of nodes are read from tables of molecules"):
        load_dataset(tmp_path / "my.jsonl", task="node-regression")


def test_a_network_of_whole_molecules_lends_its_weights(table, tmp_path):
    whole = tmp_path / "whole.csv"
    whole.write_text("smiles,size\n" + "".join(f"{smiles},{len(smiles)}\n" for smiles in SMILES))
    train(whole, tmp_path / "run", **SMALL)
    options = {**SMALL, "epochs": 1, "lr": 0.0, "init_from": str(tmp_path / "run")}
    lent = train(table, target="charge", task="node-regression", **options).trained.model.state_dict()
    given = load_model(tmp_path / "run").model.state_dict()
    names = [name for name, _ in load_model(tmp_path / "run").model.named_parameters() if name.startswith("layers.")]
    assert names
    assert all(torch.equal(lent[name], given[name]) for name in names)


def test_a_screening_writes_lists_as_texts(run, table, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    expected = [str(each) for each in predict(run, str(table))["predicted charge"]]
    screen(run, [table], tmp_path / "csv", jobs=1)
    with next((tmp_path / "csv").glob("part-*.csv")).open(newline="") as file:
        written = [json.loads(row["predicted charge"]) for row in csv.DictReader(file)]
    assert written == [pytest.approx(json.loads(each), abs=1e-5) for each in expected]
    screen(run, [table], tmp_path / "parquet", ScreenConfig(format="parquet"), jobs=1)
    column = parquet.read_table(next((tmp_path / "parquet").glob("part-*.parquet"))).column("predicted charge")
    assert [json.loads(each) for each in column.to_pylist()] == written
