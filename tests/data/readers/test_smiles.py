"""Molecules have the rows that OGB gives them, whoever reads them, and none is lost without a word."""

import csv
import gzip
import io
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnagt.data.cache import load_packed, save_packed
from mnagt.data.readers import rdkit_worker
from mnagt.data.readers.ogb import read_ogb
from mnagt.data.readers.rdkit_worker import MAX_SMILES_LENGTH, graph_rows
from mnagt.data.readers.smiles import FEATURES, get_smiles, read_smiles, scaffold_split
from mnagt.data.splits import PARTS, official_split, ordered_group_split
from mnagt.errors import InputError

rdkit = pytest.importorskip("rdkit")

OFFICIAL = ["bace", "bbbp", "esol", "freesolv"]
COLUMNS = ["node_ptr", "edge_ptr", "source", "in_degree", "node_labels", "edge_labels"]
GOOD = ["CCO", "c1ccccc1", "[Na+].[Cl-]", "C", "F/C=C/F", "C[C@H](N)O", "CC(=O)[O-]", "[H][H]", "*C"]
BAD = {
    "": "no SMILES",
    "   ": "no SMILES",
    "C(": "not a SMILES",
    "ethanol": "not a SMILES",
    "C>>C": "a reaction where a molecule belongs",
    "C–C": "not a SMILES: '–' is in it",
    "C\udcff": r"not a SMILES: '\udcff' is in it",
    "InChI=1S/CH4/h1H4": "not a SMILES",
    "CN(C)(C)C": "Explicit valence for atom # 1 N, 4, is greater than permitted",
    "c1cccc1": "Can't kekulize mol",
    "CCO CCN": "something after a space",
    "C" * 100_000: "100,000 characters",
    "C(" * 100_000: "200,000 characters",
}


def official(data_root: Path, name: str) -> tuple[list[str], Path]:
    """The SMILES of a set of OGB, and its folder."""
    folder = data_root / f"ogbg_mol{name}"
    text = gzip.decompress((folder / "mapping" / "mol.csv.gz").read_bytes()).decode()
    return [row["smiles"] for row in csv.DictReader(io.StringIO(text, newline=""))], folder


@pytest.mark.real_data
@pytest.mark.parametrize("name", OFFICIAL)
def test_all_molecules_have_the_official_rows_and_the_official_split(data_root, name):
    smiles, folder = official(data_root, name)
    found, known = read_smiles(smiles), read_ogb(folder)
    assert found.refused == ()
    assert found.kept.tolist() == list(range(len(known)))
    for column in COLUMNS:
        assert torch.equal(getattr(found.graphs, column), getattr(known, column)), column
    assert found.graphs.features == known.features == FEATURES
    assert known.official is not None
    ours, theirs = scaffold_split(get_smiles(found.graphs)), official_split(known.official)
    for part in PARTS:
        assert torch.equal(getattr(ours, part), getattr(theirs, part)), part


PLAIN = [
    "CC=CC1CC1", "CN(=O)=O", "CN=N#N", "c1ccn(=O)cc1", "[CH3]", "[O]O", "[O-][N+](=O)c1ccccc1",
    "C[N+](C)(C)C.[Cl-]", "OCl(=O)(=O)=O", "c1cc[nH]c1", "c1cc[se]c1", "C1CC2CCC1CC2",
    "CS(=O)(=O)c1ccc2c(c1)OCO2", "C12C3C4C1C5C2C3C45", "B(O)O", "[SiH4]", "CP(=O)(O)O", "N#CC=C=C", "c1cccc1",
    "CN(C)(C)C", "C1CC", "C=(C", "CC%12CC%12", "[H]", "n1cccc1", "F", "C(C)(C)(C)(C)C", "c1ccccc1c", "[CH5]",
    "O=C=O.[Cl+3]",
]  # fmt: skip


def test_plain_smiles_give_the_rows_that_all_others_give(monkeypatch):
    smiles = [*PLAIN, *GOOD, *BAD]
    assert sum(rdkit_worker._PLAIN.fullmatch(text) is not None for text in smiles) > 30
    fast = graph_rows(smiles)
    monkeypatch.setattr(rdkit_worker, "_PLAIN", re.compile("(?!)"))
    for name, column in graph_rows(smiles).items():
        assert (fast[name] == column) if name == "reasons" else (fast[name].tolist() == column.tolist()), name
    assert len(fast["reasons"]) > len(BAD)


ALLOWED = {
    "GetAtomicNum": [*range(1, 119), "misc"],
    "GetChiralTag": ["CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", "misc"],
    "GetTotalDegree": [*range(11), "misc"],
    "GetFormalCharge": [*range(-5, 6), "misc"],
    "GetTotalNumHs": [*range(9), "misc"],
    "GetNumRadicalElectrons": [*range(5), "misc"],
    "GetHybridization": ["SP", "SP2", "SP3", "SP3D", "SP3D2", "misc"],
    "GetIsAromatic": [False, True],
    "IsInRing": [False, True],
}
ALLOWED_BONDS = {
    "GetBondType": ["SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "misc"],
    "GetStereo": ["STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY"],
    "GetIsConjugated": [False, True],
}
ODD = [
    *GOOD, "[C+6]", "[U]", "[238U+5]", "[CH3]", "[C]", "[Fe+2]", "S(F)(F)(F)(F)(F)F", "P(Cl)(Cl)(Cl)(Cl)Cl", "[BH4-]",
    "[NH3]->[Pt](Cl)(Cl)<-[NH3]", "C[Si@@](F)(Cl)Br", "F[Pt@SP1](Cl)(Br)I", "C/C=C\\C", "O=[N+]([O-])c1ccccc1", "C#N",
    "[Cr]$[Cr]", "c1ccc2c(c1)[nH]cc2", "CN(=O)=O", "[SiH4]", "[O-][Cl+3]([O-])([O-])[O-]", "[CH2]=C=[CH2]",
    "OCl(=O)(=O)=O", "CN=N#N", "CP(=O)(O)O", "C1=CSC=C1", "O=c1ccocc1", "C%10CC%10C#C", "B", "N->B", "C~C",
    "c:1:c:c:c:c:c:1",
]  # fmt: skip


def slowly(smiles: str) -> tuple[list[list[int]], list[list[int]]]:
    """OGB's featuriser as it is written: the place of each value in its list, or else the last."""
    from rdkit import Chem

    def row(thing, allowed: dict[str, list]) -> list[int]:
        places = []
        for getter, values in allowed.items():
            value = getattr(thing, getter)()
            value = str(value) if isinstance(values[0], str) else value
            places.append(values.index(value) if value in values else len(values) - 1)
        return places

    molecule = Chem.MolFromSmiles(smiles)
    return [row(a, ALLOWED) for a in molecule.GetAtoms()], [row(b, ALLOWED_BONDS) for b in molecule.GetBonds()]


@pytest.mark.parametrize("smiles", ODD)
def test_rows_are_those_of_the_slow_reading(smiles):
    rows = graph_rows([smiles])
    assert (rows["atoms"].tolist(), rows["bonds"].tolist()) == slowly(smiles)


def test_the_lists_of_the_slow_reading_are_as_long_as_the_columns():
    assert FEATURES.nodes.labels == tuple(map(len, ALLOWED.values()))
    assert FEATURES.edges.labels == tuple(map(len, ALLOWED_BONDS.values()))


def test_the_order_in_which_a_molecule_is_written_does_not_matter():
    from rdkit import Chem

    for smiles in ("CC(=O)Oc1ccccc1C(=O)O", "CN1CCC[C]1c1cccnc1", "[Na+].OC(=O)CC(O)C(=O)[O-]"):
        written = Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(smiles), 5, randomSeed=7)
        atoms = [sorted(graph_rows([text])["atoms"].tolist()) for text in (smiles, *written)]
        assert all(rows == atoms[0] for rows in atoms)


def test_a_salt_is_one_graph_and_an_atom_alone_has_no_edges():
    found = read_smiles(["[Na+].[Cl-]", "CC(=O)[O-].[K+]", "C"])
    assert found.graphs.sizes.tolist() == [2, 5, 1]
    assert found.graphs.edge_ptr.tolist() == [0, 0, 6, 6]


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:20])
def test_what_cannot_be_read_is_refused_with_its_row_and_the_reason(text, capfd):
    began = time.monotonic()
    found = read_smiles(["CCO", text, "CCN"])
    (refused,) = found.refused
    assert (refused.row, refused.smiles) == (1, " ".join(text.split()))
    assert BAD[text] in refused.reason
    assert found.kept.tolist() == [0, 2]
    assert get_smiles(found.graphs) == ["CCO", "CCN"]
    assert time.monotonic() - began < 5
    assert capfd.readouterr().err == ""  # RDKit would talk


@given(st.text(max_size=30) | st.text("CNOSPcnoFlBr123456%()[]=#$@+-/\\.:*H>|~ ", max_size=40))
def test_any_text_is_read_or_refused(text):
    rows = graph_rows([text])
    assert (rows["sizes"][0] == 0) == len(rows["reasons"])
    if not rows["reasons"]:
        assert (rows["atoms"].tolist(), rows["bonds"].tolist()) == slowly(text)


def test_a_long_chain_is_read():
    assert read_smiles(["C" * MAX_SMILES_LENGTH]).graphs.sizes.tolist() == [MAX_SMILES_LENGTH]


def test_nothing_readable_gives_no_graphs():
    for texts in ([], ["C("]):
        found = read_smiles(texts)
        assert len(found.graphs) == 0
        assert get_smiles(found.graphs) == []


def test_several_processes_read_the_same_in_the_same_order():
    texts = [*GOOD, *list(BAD)[:11]] * 150
    one, two = (read_smiles(texts, workers=workers) for workers in (1, 2))
    assert one.refused == two.refused
    assert len(one.refused) == 11 * 150
    for column in (*COLUMNS, "texts"):
        assert torch.equal(getattr(one.graphs, column), getattr(two.graphs, column)), column
    rings = [f"C1{'C' * size}1" for size in range(2, 42)] * 30
    assert scaffold_split(rings, workers=2).to_dict() == scaffold_split(rings, workers=1).to_dict()


def test_without_rdkit_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(InputError, match=r"pip install .*\[molecules\]"):
        read_smiles(["CCO"])


def test_a_kept_data_set_knows_its_smiles(tmp_path):
    graphs = read_smiles(GOOD).graphs
    save_packed(graphs, tmp_path / "kept.safetensors")
    assert get_smiles(load_packed(tmp_path / "kept.safetensors")) == GOOD


def test_graphs_from_elsewhere_have_no_smiles():
    from mnagt import load_dataset

    with pytest.raises(InputError, match="MUTAG: its graphs were not made from SMILES"):
        get_smiles(load_dataset("MUTAG"))


@given(st.lists(st.integers(0, 30), min_size=60, max_size=90).filter(lambda groups: len(set(groups)) > 25))
def test_groups_stay_whole_and_train_gets_no_more_than_its_share(groups):
    split = ordered_group_split(groups)
    graphs = [graph for name in PARTS for graph in getattr(split, name).tolist()]
    assert sorted(graphs) == list(range(len(groups)))
    assert len({groups[graph] for graph in graphs}) == sum(
        len({groups[graph] for graph in getattr(split, name).tolist()}) for name in PARTS
    )
    assert len(split.train) <= 0.8 * len(groups)


def test_the_largest_groups_train():
    split = ordered_group_split(["a"] * 16 + ["b", "c", "b", "d"])
    assert [getattr(split, name).tolist() for name in PARTS] == [list(range(16)), [16, 18], [17, 19]]
