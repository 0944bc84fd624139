"""What real tables have: spellings, decimal commas, outliers, bounds, no header, SDF, few rows."""

import csv
import gzip
import logging
import re
from pathlib import Path

import pytest

from mnagt import load_dataset, load_model
from mnagt.cli import main
from mnagt.data.readers.molecule_table import read_molecule_file
from mnagt.data.readers.smiles import find_duplicates, find_scaffolds, get_smiles
from mnagt.data.readers.split_columns import SplitColumn
from mnagt.errors import InputError
from mnagt.tasks import CensoredRegression, Regression, SingleLabel

MolFromSmiles = pytest.importorskip("rdkit.Chem").MolFromSmiles

TINY = ["--model", "gin", "--dim", "8", "--depth", "1", "--epochs", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def esol(data_root) -> list[tuple[str, str, str]]:
    """SMILES, solubility and name of the first 60 molecules of ogbg-molesol."""
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        return [(smiles, value, name) for value, smiles, name in list(csv.reader(file))[1:61]]


@pytest.fixture
def write(tmp_path):
    """Writes rows below a header."""

    def write_rows(rows, header=("smiles", "y"), name="my.csv", delimiter=",") -> Path:
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file, delimiter=delimiter).writerows([*([header] if header else []), *rows])
        return tmp_path / name

    return write_rows


@pytest.mark.real_data
def test_spellings_of_a_class_are_one(esol, write, caplog):
    names = ["active", "Active", " ACTIVE ", "active", "not  active", "Not active"]
    path = write([(row[0], names[i % 6]) for i, row in enumerate(esol)])
    dataset = load_dataset(path)
    assert dataset.task == SingleLabel(("Not active", "active"))
    assert "active, ACTIVE, Active in column y are one class, active" in caplog.text
    assert dataset.targets.bincount().tolist() == [20, 40]
    upper = write([(row[0], "ACTIVE") for row in esol[:3]], name="other.csv")
    assert load_dataset(upper, task=SingleLabel(("active", "inactive")), targets=["y"]).targets.tolist() == [0, 0, 0]
    kept_apart = SingleLabel(("CO", "Co"))
    assert load_dataset(write([("C", "Co"), ("N", "CO")]), task=kept_apart, targets=["y"]).targets.tolist() == [1, 0]


@pytest.mark.real_data
def test_decimal_commas_are_read_or_named(esol, write, caplog):
    rows = [(smiles, value.replace(".", ",")) for smiles, value, _ in esol]
    dataset = load_dataset(write(rows, delimiter=";"))
    assert dataset.targets[:, 0].tolist() == pytest.approx([float(row[1]) for row in esol])
    assert "line 2, column 'y': '-0,77' has a decimal comma" in caplog.text
    with pytest.raises(InputError, match=r"'-0,77' has a decimal comma, and '2\.5' .*line 62.* a decimal point"):
        load_dataset(write([*rows, ("CCO", "2.5")]))
    with pytest.raises(InputError, match="'1,234' may have a decimal comma or a comma between thousands"):
        load_dataset(write([("C", "1,234"), ("CC", "2,345"), ("CCC", "7")]))


@pytest.mark.real_data
def test_outliers_are_named_with_their_lines(esol, write, caplog):
    rows = [(smiles, "1200" if i == 7 else value) for i, (smiles, value, _) in enumerate(esol)]
    load_dataset(write(rows))
    assert "1 values of y lie more than 10 robust deviations from the median" in caplog.text
    assert "line 9, column 'y': 1200" in caplog.text
    caplog.clear()
    load_dataset(write([row[:2] for row in esol]))
    assert "robust" not in caplog.text


@pytest.mark.real_data
def test_bounds_are_refused_with_the_remedy_and_read_when_asked(esol, write, tmp_path, capsys, caplog):
    rows = [(smiles, ("<" if i % 9 == 0 else "") + value) for i, (smiles, value, _) in enumerate(esol)]
    path = write(rows)
    assert main(["train", str(path), *TINY]) == 2
    assert "line 2, column 'y': '<-0.77' is a bound (a censored value)" in (error := capsys.readouterr().err)
    assert "--censored" in error
    with caplog.at_level(logging.INFO):
        assert main(["train", str(path), "--censored", "--out", str(tmp_path / "run"), *TINY]) == 0
    assert ", 4 bounds" in caplog.text
    assert main(["evaluate", str(tmp_path / "run"), "--dataset", str(path), "--device", "cpu"]) == 0
    dataset = load_dataset(path, task="censored-regression")
    assert dataset.task == CensoredRegression(("y",))
    assert dataset.targets[:2].flatten().tolist() == pytest.approx([-0.77, -1, -3.3, 0])


@pytest.mark.real_data
def test_a_table_without_header_is_recognised(esol, write, caplog):
    path = write([(name, smiles, value) for smiles, value, name in esol], header=None)
    table = read_molecule_file(path)
    assert list(table.columns) == ["column 1", "smiles", "column 3"]
    assert (len(table), table.lines[0], table.columns["smiles"][0]) == (60, 1, esol[0][0])
    assert "the first line is no header" in caplog.text
    assert load_dataset(path, targets=["column 3"]).task == Regression(("column 3",))
    named = read_molecule_file(write([("CCO", "0"), ("CC", "1")], header=("structure of it", "CNS")))
    assert list(named.columns) == ["structure of it", "CNS"]


@pytest.mark.real_data
def test_an_sdf_is_a_table_of_its_properties(esol, tmp_path, caplog):
    from rdkit import Chem

    path = tmp_path / "esol.sdf"
    with Chem.SDWriter(str(path)) as writer:
        for smiles, value, name in esol[:20]:
            molecule = Chem.MolFromSmiles(smiles)
            for key, text in {"_Name": name, "logS": value, "name": "b"}.items():
                molecule.SetProp(key, text)
            writer.write(molecule)
    records = path.read_text().split("$$$$\n")
    records[3] = records[3].replace(" C ", " Q9", 1)
    path.write_text("$$$$\n".join(records))
    table = read_molecule_file(path)
    assert list(table.columns) == ["smiles", "name", "logS", "name (property)"]
    assert table.columns["name"][:2] == ["Amigdalin", "Fenfuram"]
    assert f"line {table.lines[3]}" in caplog.text
    dataset = load_dataset(path, targets=["logS"])
    assert len(dataset) == 19
    by_smiles = load_dataset_of(esol[:3], tmp_path)
    assert dataset.sizes[:3].tolist() == by_smiles.sizes.tolist()
    (tmp_path / "empty.sdf").write_text("\n\n")
    with pytest.raises(InputError, match="no molecule in it"):
        read_molecule_file(tmp_path / "empty.sdf")


def load_dataset_of(rows, folder: Path):
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "y"), *(row[:2] for row in rows)])
    return load_dataset(path)


@pytest.mark.real_data
def test_targets_by_pattern_and_all(data_root, tmp_path, caplog):
    with gzip.open(data_root / "ogbg_moltox21" / "mapping" / "mol.csv.gz", "rt") as file:
        head, *rows = [row for row, _ in zip(csv.reader(file), range(121), strict=False)]
    path = tmp_path / "tox.csv"
    with path.open("w", newline="") as file:
        marked = [[*row, str(i), "x", "train" if i % 3 else "test"] for i, row in enumerate(rows)]
        csv.writer(file).writerows([[*head, "number", "comment", "split"], *marked])
    receptors = [name for name in head if name.startswith("NR-")]
    assert load_dataset(path, targets=["NR-*"]).task.target_names == tuple(receptors)
    with caplog.at_level(logging.INFO):
        every = load_dataset(path, targets=["all"]).task
    assert every.target_names == tuple(name for name in head if name not in ("mol_id", "smiles"))
    assert "left out: mol_id (an id), number (counts the rows), comment (not numbers)" in caplog.text
    with pytest.raises(InputError, match=r"no column is like 'XX-\*' \(--target\); there are: "):
        load_dataset(path, targets=["XX-*"])
    run = tmp_path / "run"
    assert main(["train", str(path), "--targets", "NR-A*", "--out", str(run), *TINY]) == 0
    assert main(["evaluate", str(run), "--dataset", str(path), "--device", "cpu"]) == 0


@pytest.mark.real_data
def test_few_rows_are_reported_with_what_a_figure_is_worth(esol, write, tmp_path, caplog):
    assert main(["train", str(write([row[:2] for row in esol[:40]])), "--out", str(tmp_path / "run"), *TINY]) == 0
    assert "my: 40 graphs are few. The test part has 4: an RMSE measured on it has a 95 % interval of about ±69 %" in (
        caplog.text
    )


@pytest.mark.real_data
def test_a_run_says_which_split_it_used_by_default_with_sizes_balance_and_duplicates(data_root, tmp_path, caplog):
    with gzip.open(data_root / "ogbg_molbbbp" / "mapping" / "mol.csv.gz", "rt") as file:
        (tmp_path / "bbbp.csv").write_text("".join(line for line, _ in zip(file, range(601), strict=False)))
    with caplog.at_level(logging.INFO):
        assert main(["train", str(tmp_path / "bbbp.csv"), "--out", str(tmp_path / "run"), *TINY]) == 0
    told = caplog.text.partition("bbbp: split scaffold (the default for molecules)")[2].split("\n")[1:5]
    assert told[0].startswith("  train  480  0: ")
    assert [line.split()[:2] for line in told[1:3]] == [["valid", "60"], ["test", "60"]]
    assert re.fullmatch(r"  duplicates: \d+ molecules in \d+ rows, \d+ with different targets", told[3])


@pytest.mark.real_data
@pytest.mark.parametrize("transform", ["log", "rank"])
def test_one_outlier_of_a_real_column_spoils_the_scale_only_if_it_is_not_transformed(transform, esol, write, tmp_path):
    rows = [(smiles, str(1e6 if i == 7 else float(value) + 12)) for i, (smiles, value, _) in enumerate(esol)]
    path, spread = write(rows), {}
    for name in ("standardise", transform):
        out = tmp_path / name
        words = ["--target-transform", name, "--out", str(out), "--split", "random", "--epochs", "2", *TINY[:6]]
        assert main(["train", str(path), *words, "--device", "cpu"]) == 0
        task = load_model(out).task
        assert isinstance(task, Regression)
        standard = task.standardise(load_dataset(path).targets)
        spread[name] = standard[8:].std().item()
    assert spread["standardise"] < 0.01
    assert spread[transform] > 0.05


@pytest.mark.real_data
def test_a_molecule_and_its_ion_are_duplicates(data_root, write):
    with gzip.open(data_root / "ogbg_moltox21" / "mapping" / "mol.csv.gz", "rt") as file:
        dataset = load_dataset(write([(row["smiles"], i) for i, row in enumerate(csv.DictReader(file)) if i < 2500]))
    assert dataset.same_as is not None
    smiles, first = get_smiles(dataset), dataset.same_as.tolist()
    copies = [smiles[row] + smiles[i] for row, i in enumerate(first) if row != i]
    assert sum("-]" in pair and "." not in pair for pair in copies) >= 5  # an acid and its anion
    alone = find_duplicates(["CC(=O)O", "CC(=O)[O-]", "C[N+](C)(C)C", "C[N+](=O)[O-]", "CN(=O)=O", "[NH3+]CC(=O)[O-]"])
    assert alone.tolist() == [0, 0, 2, 3, 3, 5]
    assert find_duplicates(["NCC(=O)O", "[NH3+]CC(=O)[O-]", "[Na+]", "[Cl-]"]).tolist() == [0, 0, 2, 3]


@pytest.mark.real_data
def test_what_graphs_do_not_tell_apart_is_named(esol, write, caplog):
    rows = [(smiles, value) for smiles, value, _ in esol]
    load_dataset(write(rows))
    assert "isotopes" not in caplog.text
    load_dataset(write([*rows, ("[13CH4]", 1), ("[2H]OC", 2), ("*CCO", 3), ("[R1]CC", 4)]))
    assert "2 molecules have isotopes, which are read as the common ones: '[13CH4]'" in caplog.text
    assert "1 molecule has wildcards (*), which are read as an unknown element: '*CCO'" in caplog.text


@pytest.mark.real_data
def test_typographic_minus_signs_are_read(esol, write):
    plain = load_dataset(write([(smiles, value) for smiles, value, _ in esol])).targets
    assert (plain < 0).sum() > 30
    typeset = load_dataset(write([(smiles, value.replace("-", "\N{MINUS SIGN}")) for smiles, value, _ in esol])).targets
    assert typeset.equal(plain)


@pytest.mark.real_data
def test_numbers_that_32_bits_cannot_tell_apart_are_named(esol, write, caplog):
    load_dataset(write([(smiles, value) for smiles, value, _ in esol]))
    assert "32 bits" not in caplog.text
    load_dataset(write([(smiles, 1e8 + float(value)) for smiles, value, _ in esol]))
    assert re.search(r"numbers of 32 bits round y by up to [\d.]+, and its values have a deviation of 2", caplog.text)


@pytest.mark.real_data
def test_spaces_around_the_names_of_columns_do_not_count(esol, write):
    path = write(
        [(smiles, value, "ab"[i % 2]) for i, (smiles, value, _) in enumerate(esol)], [" smiles", " y ", "lab "]
    )
    dataset = load_dataset(path, smiles="smiles", targets=["y"], group=SplitColumn("lab"))
    assert dataset.groups is not None
    assert (len(dataset), dataset.groups.tolist()[:3]) == (60, [0, 1, 0])


def test_a_column_that_is_nearly_a_split_is_named(write, caplog):
    parts = ["Train", "TEST", "val", "holdout"]
    load_dataset(write([("C" * (i + 1), i, parts[i % 4]) for i in range(40)], ["smiles", "y", "set"]), targets=["y"])
    assert "column 'set' looks like the parts of a split and is not used, since 'holdout' (" in caplog.text
    assert "line 5) is none of them" in caplog.text
    caplog.clear()
    load_dataset(write([("C" * (i + 1), i, f"test {i}") for i in range(40)], ["smiles", "y", "note"]), targets=["y"])
    assert "split" not in caplog.text


def test_very_large_molecules_do_not_hold_up_the_split():
    chain, polymer = "C" * 5000, "C(c1ccccc1)C" * 400  # RDKit's scaffold of the chain takes minutes
    *scaffolds, own = find_scaffolds([chain, "CCc1ccccc1", polymer])
    assert scaffolds == ["", "c1ccccc1"]
    assert MolFromSmiles(own).GetNumAtoms() == MolFromSmiles(polymer).GetNumAtoms() > 1000
