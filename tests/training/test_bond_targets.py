"""Targets of bonds from a table to predictions: lists in cells, in the order of RDKit's bonds."""

import csv
import gzip
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit.Chem import MolFromSmiles, MolToSmiles

from mnagt import Ensemble, evaluate, from_graphs, load_dataset, load_model, predict, read_smiles, screen, train
from mnagt.cli import main
from mnagt.data.readers.list_targets import with_bond_numbers
from mnagt.errors import InputError

SMILES = ["C" * n + end for n in range(1, 7) for end in ("O", "C#N", "C1CC1C", "C(=O)O", "c1ccncc1", "C(F)(F)F")]
SMALL: dict[str, Any] = {"model": "mnagt", "dim": 8, "depth": 1, "head_dim": 4, "batch_size": 16, "device": "cpu"}
RINGS = "C1CC2CC1CC2.[H]OC([2H])c1ccc2[nH]ccc2c1"
"""Bonds that close rings, which RDKit lists last, hydrogens that it drops or keeps, and two fragments."""


def list_orders(smiles: str) -> list[float]:
    """The order of each bond, by RDKit."""
    return [bond.GetBondTypeAsDouble() for bond in MolFromSmiles(smiles).GetBonds()]


def list_ends(molecule: Any) -> list[set[int]]:
    """The atoms that each bond joins."""
    return [{bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()} for bond in molecule.GetBonds()]


def write_table(path: Path, rows: dict[str, str] | None = None) -> Path:
    """A table of bond orders; with ``rows``, of these cells."""
    cells = {smiles: json.dumps(list_orders(smiles)) for smiles in SMILES} if rows is None else rows
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "order"), *cells.items()])
    return path


def load(path: Path, **options):
    return load_dataset(path, targets=["order"], task="edge-regression", **options)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "orders.csv")


@pytest.fixture(scope="module")
def run(table, tmp_path_factory) -> Path:
    """By the command line, with the default model."""
    folder = tmp_path_factory.mktemp("runs") / "orders"
    words = "--target order --bond-targets --split random --dim 8 --depth 1 --head-dim 4 --epochs 20 --lr 0.01"
    assert main(["train", str(table), *words.split(), "--device", "cpu", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("smiles", [RINGS, "C", "c1ccc2c(c1)C3CC2C3", "N->[Cu]", "C%10CC%10C1CC1"])
def test_numbers_of_bonds_are_those_of_rdkit(smiles):
    dataset = with_bond_numbers(read_smiles([smiles, RINGS]).graphs)
    for graph, text in enumerate((smiles, RINGS)):
        batch = dataset.batch(torch.tensor([graph]))
        assert batch.edge_numbers is not None
        numbers = batch.edge_numbers.tolist()
        ends = {number: {*pair} for *pair, number in zip(*batch.edge_index.tolist(), numbers, strict=True)}
        assert [ends[number] for number in sorted(ends)] == list_ends(MolFromSmiles(text))
        assert len(numbers) == 2 * len(ends)


def test_bonds_of_components_stand_one_component_after_the_other():
    dataset = with_bond_numbers(read_smiles([("C1CC1", "O"), ("O", "CCN")]).graphs)
    assert dataset.edge_numbers is not None
    assert dataset.edge_numbers.tolist() == [0, 2, 0, 1, 2, 1, 0, 0, 1, 1]


@pytest.mark.real_data
def test_bond_orders_of_molesol_are_learned(data_root, tmp_path):
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    table = write_table(tmp_path / "orders.csv", {each: json.dumps(list_orders(each)) for each in smiles})
    result = train(table, target="order", task="edge-regression", epochs=3, device="cpu").result
    target = load(table).targets
    assert result.test["rmse"] < 0.2 * target[target.isfinite()].std().item()
    assert result.test["r2"] > 0.95


def test_predictions_are_lists_in_the_order_of_the_bonds(run, table, tmp_path):
    out = tmp_path / "out.csv"
    assert main(["predict", str(run), str(table), "--out", str(out)]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [len(json.loads(row["predicted order"])) for row in rows] == [len(list_orders(smiles)) for smiles in SMILES]
    write_table(tmp_path / "again.csv", {row["smiles"]: row["predicted order"] for row in rows})
    assert evaluate(run, dataset=str(tmp_path / "again.csv"))["rmse"] == pytest.approx(0, abs=1e-5)
    scores = evaluate(run, part="all")
    target = torch.tensor([*chain(*map(list_orders, SMILES))])
    predicted = torch.tensor([*chain(*load_model(run).predict(SMILES)["order"])])
    assert scores["rmse"] == pytest.approx((predicted - target).square().mean().sqrt().item(), rel=1e-4)
    assert scores["rmse"] < 0.8 * target.std()


def test_another_order_of_atoms_gives_the_same_numbers_in_that_order(run):
    one = "C1CC2C(O)C1CC2C(=O)N"
    other = MolToSmiles(MolFromSmiles(one), doRandom=True, canonical=False)
    molecules: list[Any] = [MolFromSmiles(each) for each in (one, other)]
    match = molecules[1].GetSubstructMatch(molecules[0])  # the atom of the other for each of one's
    of_one, of_other = (predict(run, each)["order"][0] for each in (one, other))
    ends = list_ends(molecules[1])
    of_same = [of_other[ends.index({match[atom] for atom in pair})] for pair in list_ends(molecules[0])]
    assert of_one == pytest.approx(of_same, abs=1e-4)
    assert max(of_one) - min(of_one) > 0.1


def test_molecules_without_bonds_have_empty_lists(run, tmp_path):
    assert load_model(run).predict(["C", "CO", "O"])["order"][::2] == [[], []]
    assert load_model(run).predict(["C"])["order"] == [[]]
    rows = {"C": "[]", "CC": "[1]", "CCO": "", "CO": "[null]", "C=C": "2"}
    dataset = load(write_table(tmp_path / "t.csv", rows))
    nan = float("nan")
    torch.testing.assert_close(dataset.targets, torch.tensor([[nan], [1], [nan], [2]]), equal_nan=True)


def test_cells_must_have_a_number_for_each_bond(tmp_path):
    with pytest.raises(InputError, match=r"t\.csv, line 3, column 'order': 3 values for 2 bonds \(without hydrogens"):
        load(write_table(tmp_path / "t.csv", {"CC": "[1]", "CCO": "[1, 1, 1]"}))
    with pytest.raises(InputError, match=r"line 2, column 'order': 0 values for 1 bonds"):
        load(write_table(tmp_path / "t.csv", {"CC": "[]"}))
    with pytest.raises(InputError, match="such targets are of molecules"):
        load(write_table(tmp_path / "t.csv", {"[CH3:1]Br>>[CH3:1]O": "[0.1]"}))
    with pytest.raises(InputError, match=r"for each atom, give --atom-targets, and for each bond --bond-targets"):
        load_dataset(write_table(tmp_path / "t.csv", {"CC": "[1]", "CCO": "[1, 1]"}), targets=["order"])


def test_graphs_in_memory_are_of_smiles(table):
    orders = [list_orders(smiles) for smiles in SMILES]
    dataset = from_graphs(SMILES, orders, task="edge-regression")
    torch.testing.assert_close(dataset.targets, load(table).targets, equal_nan=True)
    networkx = pytest.importorskip("networkx")
    with pytest.raises(InputError, match="not made from SMILES"):
        from_graphs([networkx.path_graph(2)], [[1.0]], task="edge-regression")


def test_members_agree_on_each_bond_and_a_screening_writes_texts(run, table, tmp_path):
    one = load_model(run)
    columns = Ensemble.of([one, one]).predict([SMILES[0], RINGS])
    assert [len(each) for each in columns["order"]] == [len(list_orders(each)) for each in (SMILES[0], RINGS)]
    assert columns["order"] == one.predict([SMILES[0], RINGS])["order"]
    screen(run, [table], tmp_path / "csv", jobs=1)
    with next((tmp_path / "csv").glob("part-*.csv")).open(newline="") as file:
        written = [json.loads(row["predicted order"]) for row in csv.DictReader(file)]
    assert written == [pytest.approx(each, abs=1e-5) for each in one.predict(SMILES)["order"]]


def test_a_network_of_whole_molecules_lends_its_weights(table, tmp_path):
    whole = tmp_path / "whole.csv"
    whole.write_text("smiles,size\n" + "".join(f"{smiles},{len(smiles)}\n" for smiles in SMILES))
    train(whole, tmp_path / "run", epochs=1, **SMALL)
    options = {**SMALL, "epochs": 1, "lr": 0.0, "init_from": str(tmp_path / "run")}
    lent = train(table, target="order", task="edge-regression", **options).trained.model.state_dict()
    given = load_model(tmp_path / "run").model
    names = [name for name, _ in given.named_parameters() if name.startswith("layers.")]
    assert names
    assert all(torch.equal(lent[name], given.state_dict()[name]) for name in names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "RUN", "CCO"], "with one for each edge"),
        (["export", "RUN"], "cannot be exported: it predicts for edges"),
        (
            ["train", "TABLE", "--target", "order", "--bond-targets", "--model", "morgan-forest"],
            "targets of edges need",
        ),
    ],
)
def test_what_needs_one_value_for_each_graph_is_refused(words, message, run, table, tmp_path, capsys):
    paths = {"RUN": run, "TABLE": table}
    out = ["--out", str(tmp_path / "run")] if words[0] == "train" else []
    assert main([*(str(paths.get(word, word)) for word in words), *out]) == 2
    assert message in capsys.readouterr().err
