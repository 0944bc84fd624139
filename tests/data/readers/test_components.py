"""Tables with several molecules a row: one graph a row, from the file to the service."""

import csv
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnagt import InputError, evaluate, from_graphs, load_model, predict, read_molecules, read_smiles, train
from mnagt.cli import main
from mnagt.data.readers.smiles import find_duplicates, find_scaffolds, get_smiles
from mnagt.experiments.compare import default_models
from mnagt.graphs.molecules import (
    MOLECULES,
    MoleculeFormat,
    find_molecule_format,
    morgan_identifiers,
    rdkit_descriptors,
)
from mnagt.models.registry import build_model
from mnagt.nn.molecule_descriptors import Descriptors, MorganBits
from mnagt.runs.config import SplitConfig
from mnagt.runs.split import choose_split

pytest.importorskip("rdkit")

SOLUTES = (
    "CC(=O)Oc1ccccc1C(=O)O", "CC(=O)Nc1ccc(O)cc1", "Cn1c(=O)c2c(ncn2C)n(C)c1=O", "c1ccc2ccccc2c1", "OC(=O)c1ccccc1",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "Oc1ccccc1", "Nc1ccccc1", "c1ccncc1", "OCC(O)CO", "CCCCCCCC", "O=C1CCCCC1",
)  # fmt: skip
SOLVENTS = ("O", "CCO", "CCCCCC", "CC(C)=O")
TINY = ["--model", "gin", "--dim", "8", "--depth", "1", "--epochs", "2", "--device", "cpu"]
COLUMNS = ["--smiles", "solute,solvent", "--target", "y"]


def write(path: Path, rows: list[tuple[str, ...]], head: str = "solute,solvent,y") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *rows])
    return path


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, ...]]:
    return [
        (solute, solvent, f"{(i - 3) * (k - 1) / 5:.2f}")
        for i, solute in enumerate(SOLUTES)
        for k, solvent in enumerate(SOLVENTS)
    ]


@pytest.fixture(scope="module")
def solubility(rows, tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("components") / "solubility.csv", rows)


@pytest.fixture(scope="module")
def run_folder(solubility, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    assert main(["train", str(solubility), *COLUMNS, "--out", str(out), *TINY]) == 0
    return out


def test_a_row_is_one_graph_with_the_component_of_each_atom():
    found = read_smiles([("CCO", "O"), ("C", "CC(=O)[O-].[Na+]")]).graphs
    assert found.features == MoleculeFormat(components=2).features
    batch = found.batch(torch.tensor([0, 1]))
    assert batch.node_labels is not None
    assert batch.node_labels[:, -1].tolist() == [0, 0, 0, 1, 0, 1, 1, 1, 1, 1]
    for g, row in enumerate([("CCO", "O"), ("C", "CC(=O)[O-].[Na+]")]):
        joined, alone = found.batch(torch.tensor([g])), read_smiles([".".join(row)]).graphs.batch(torch.tensor([0]))
        assert joined.node_labels is not None
        torch.testing.assert_close(joined.node_labels[:, :9], alone.node_labels)
        torch.testing.assert_close(joined.edge_index, alone.edge_index)
        torch.testing.assert_close(joined.edge_labels, alone.edge_labels)
    assert get_smiles(found) == ["CCO\tO", "C\tCC(=O)[O-].[Na+]"]


def test_rows_are_the_same_if_all_components_are_and_scaffolds_are_those_of_the_first():
    texts = ["CCO\tO", "O\tCCO", "OCC\t[OH2]", "CCO\tC"]
    assert find_duplicates(texts).tolist() == [0, 1, 0, 3]
    assert find_scaffolds(["Cc1ccccc1\tO", "C\tc1ccncc1"]) == ["c1ccccc1", ""]


def test_rows_that_cannot_be_read_are_named_with_line_and_column(rows, tmp_path, caplog):
    bad = [("C((", "O", "1"), ("CCO", "c1cc", "1"), ("CCO", "", "1"), ("", "", ""), ("CCO", "O", "")]
    table = write(tmp_path / "messy.csv", [*rows[:4], *bad])
    found = read_molecules(table, smiles="solute,solvent", targets=["y"])
    assert found.smiles == "solute,solvent"
    assert found.kept.tolist() == [0, 1, 2, 3]
    assert [row.row for row in found.refused] == [4, 5, 6, 7, 8]
    assert "line 6 (column 'solute': not a SMILES); line 7 (column 'solvent': " in caplog.text
    assert "line 8 (column 'solvent': no SMILES); line 9 (empty row); line 10 (no value of y)" in caplog.text
    (read,) = read_smiles([("CCO", "O"), ("CCO",)]).refused
    assert (read.row, read.reason) == (1, "1 SMILES where 2 belong")


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ("solute,medium", "no column 'medium' \\(--smiles\\)"),
        ("solute,solute", "names a column twice"),
    ],
)
def test_columns_that_are_not_there_are_refused(solubility, names, error):
    with pytest.raises(InputError, match=error):
        read_molecules(solubility, smiles=names)


def test_a_column_may_have_a_comma_in_its_name(tmp_path):
    table = write(tmp_path / "comma.csv", [("CCO", "1"), ("CC", "2")], "a,b;y")
    table.write_text('"smiles, canonical",y\nCCO,1\nCC,2\n')
    assert read_molecules(table, smiles="smiles, canonical", targets=["y"]).smiles == "smiles, canonical"


def test_duplicates_are_reported_with_their_lines(rows, tmp_path, caplog):
    table = write(tmp_path / "twice.csv", [*rows, ("OC(=O)c1ccccc1", "OCC", "7")])
    averaged = read_molecules(table, smiles="solute,solvent", targets=["y"])
    assert averaged.dataset.same_as is not None
    assert averaged.dataset.same_as[-1] == 17
    assert "lines 19 and 50 (OC(=O)c1ccccc1, CCO)" in caplog.text


def test_the_split_says_that_it_goes_by_the_first_component(solubility):
    dataset = read_molecules(solubility, smiles="solute,solvent", targets=["y"]).dataset
    named = choose_split(SplitConfig(), dataset)
    assert named.name == "scaffold of the first component (the default for molecules)"
    part = named.split.to_parts(len(dataset)).view(len(SOLUTES), len(SOLVENTS))
    assert (part == part[:, :1]).all()
    assert choose_split(SplitConfig("butina"), dataset).name == "butina of the first component"
    assert choose_split(SplitConfig("random"), dataset).name == "random"


def test_fingerprints_and_descriptors_of_components_stand_side_by_side():
    pairs = [("Cc1ccccc1O", "CCO"), ("CCO", "Cc1ccccc1O"), ("C[N+](C)(C)C.[Cl-]", "O")]
    batch = read_smiles(pairs).graphs.batch(torch.arange(3))
    sides = [read_smiles(list(side)).graphs.batch(torch.arange(3)) for side in zip(*pairs, strict=True)]
    nothing = torch.zeros(batch.num_nodes, 0)
    bits = MorganBits(2, 256, components=2)(nothing, batch)
    alone = [MorganBits(2, 256)(nothing, side)[:, :-1] for side in sides]
    torch.testing.assert_close(bits[:, :-1], torch.cat(alone, dim=1))
    numbers = Descriptors(components=2)(nothing, batch)
    torch.testing.assert_close(
        numbers, torch.cat([Descriptors()(nothing, side) for side in sides], dim=1), equal_nan=True
    )
    assert morgan_identifiers(batch, 2).shape == (batch.num_nodes, 3)
    assert rdkit_descriptors(batch, 3).shape == (batch.num_nodes, 3)


def test_a_component_that_a_graph_lacks_has_no_descriptors():
    graph = read_smiles([("CCO", "O")]).graphs.batch(torch.tensor([0]))
    assert graph.node_labels is not None
    first = graph.node_labels.clone()
    first[:, -1] = 0
    numbers = Descriptors(components=2)(torch.zeros(4, 0), replace(graph, node_labels=first))
    assert numbers[0, :217].isfinite().any()
    assert numbers[0, 217:].isnan().all()


def test_formats_are_known_by_their_columns():
    assert [find_molecule_format(MoleculeFormat(n).features) for n in (1, 2, 3)] == [*map(MoleculeFormat, (1, 2, 3))]
    assert find_molecule_format(replace(MOLECULES, edges=replace(MOLECULES.edges, labels=(4,)))) is None


def test_the_folder_remembers_the_columns(run_folder, solubility, rows, tmp_path):
    new = write(tmp_path / "new.csv", [(a, b) for a, b, _ in rows[:3]] + [("CCO", "C(")], "solute,solvent")
    found = predict(run_folder, str(new), device="cpu")
    assert found["y"][-1] is None
    assert found["note"][-1] == "column 'solvent': not a SMILES"
    model = load_model(run_folder)
    assert found["y"][:3] == pytest.approx(model.predict([(a, b) for a, b, _ in rows[:3]])["y"])
    alone = predict(run_folder, "CC(=O)Oc1ccccc1C(=O)O,CCO", device="cpu")
    assert alone["y"] == pytest.approx(found["y"][1:2])
    renamed = write(tmp_path / "renamed.csv", [(b, a) for a, b, _ in rows[:3]], "medium,mol")
    assert predict(run_folder, str(renamed), smiles="mol,medium", device="cpu")["y"] == pytest.approx(found["y"][:3])
    scores = evaluate(run_folder, dataset=str(solubility), device="cpu")
    assert scores["rmse"] == pytest.approx(evaluate(run_folder, part="all", device="cpu")["rmse"])
    assert scores["graphs"] == len(rows)


def test_other_numbers_of_components_are_refused(run_folder, solubility, tmp_path):
    one = write(tmp_path / "one.csv", [("CCO", "1")], "smiles,y")
    with pytest.raises(InputError, match=r"one\.csv: no column 'solute'"):
        predict(run_folder, str(one), device="cpu")
    with pytest.raises(
        InputError, match=r"one\.csv: smiles for a model that reads 2 components, as in CCO,O; name as many columns"
    ):
        predict(run_folder, str(one), smiles="smiles", device="cpu")
    with pytest.raises(InputError, match=r"'CCO' cannot be read as 2 components, as in CCO,O \(1 SMILES"):
        predict(run_folder, "CCO", device="cpu")
    with pytest.raises(InputError, match="the model reads 10 categorical"):
        load_model(run_folder).predict(["CCO"])
    with pytest.raises(InputError, match=r"component 2: not a SMILES; fix it"):
        from_graphs([("CCO", "C(")])


def test_descriptors_of_a_table_are_found_by_all_components(rows, tmp_path, caplog):
    table, out = write(tmp_path / "my.csv", rows), tmp_path / "run"
    warm = write(
        tmp_path / "warm.csv", [(a, b, str(20 + 7 * i % 11)) for i, (a, b, _) in enumerate(rows)], "solute,solvent,T"
    )
    with caplog.at_level(logging.INFO):
        words = ["--descriptors", f"rdkit2d,{warm}", "--out", str(out)]
        assert main(["train", str(table), *COLUMNS, *words, *TINY]) == 0
    assert "warm.csv: descriptors are T" in caplog.text
    assert predict(out, str(table), descriptors=str(warm), device="cpu")["predicted y"][0] is not None
    with pytest.raises(InputError, match=r"warm\.csv: no row for 'CCO', 'O'"):
        predict(out, str(write(tmp_path / "x.csv", [("CCO", "O", "")])), descriptors=str(warm), device="cpu")


@pytest.mark.parametrize("name", ["mnagt", "morgan-forest", "descriptor-boosting", "wl-linear"])
def test_models_for_molecules_are_models_for_components(name, solubility):
    dataset = read_molecules(solubility, smiles="solute,solvent", targets=["y"]).dataset
    assert "morgan-forest" in default_models(dataset)
    settings = {"dim": 8, "depth": 1, "heads": 1} if name == "mnagt" else {}
    model = build_model(name, settings, dataset.features, 1).eval()
    assert model(dataset.batch(torch.arange(3))).shape == (3, 1)


def test_a_forest_learns_what_the_second_component_decides(rows, tmp_path):
    table = write(tmp_path / "by-solvent.csv", [(a, b, str(5 * SOLVENTS.index(b))) for a, b, _ in rows])
    found = train(table, model="morgan-forest", smiles="solute,solvent", target="y", split="random", device="cpu")
    assert found.result.test["r2"] > 0.9


def test_all_components_are_drawn(run_folder, solubility, tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ["explain", str(run_folder), str(solubility), "--graphs", "0,1", "--out", str(page), "--device", "cpu"]
    assert main(words) == 0
    atoms = read_smiles([(SOLUTES[0], solvent) for solvent in SOLVENTS[:2]]).graphs.node_ptr[-1]
    assert page.read_text().count("<ellipse") >= atoms


def test_the_service_takes_a_list_of_smiles_for_each_row(run_folder):
    from mnagt.serve.config import ServeConfig
    from mnagt.serve.open_inference import InferRequest, read_tensors
    from mnagt.serve.schemas import PredictRequest, read_request

    trained, limits = load_model(run_folder), ServeConfig()
    request = PredictRequest.model_validate({"smiles": [["CCO", "O"], ["c1ccccc1", "CCO"]]})
    graphs = read_request(request, trained, limits).graphs
    expected = trained.predict([("CCO", "O"), ("c1ccccc1", "CCO")])
    assert trained.predict(graphs)["y"] == pytest.approx(expected["y"])
    tensor = {"name": "smiles", "shape": [2, 2], "datatype": "BYTES", "data": ["CCO", "O", "c1ccccc1", "CCO"]}
    assert read_tensors(InferRequest.model_validate({"inputs": [tensor]})).smiles == request.smiles
    for row, error in (
        ("CCO", r"smiles\[0\]: the model reads a list of 2 SMILES, got 1"),
        (["CCO", "C("], r"smiles\[0\]: component 2: not a SMILES"),
        (["C" * 8001, "O"], r"smiles\[0\]: 8,002 characters"),
    ):
        wrong = PredictRequest.model_validate({"smiles": [row]})
        with pytest.raises(InputError, match=error):
            read_request(wrong, trained, replace(limits, max_text=8000))
    assert json.loads(request.model_dump_json())["smiles"][0] == ["CCO", "O"]
