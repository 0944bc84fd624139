"""Tables of reactions with atom maps: condensed graphs of reactions, from the file to the page."""

import csv
import gzip
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from mnagt import InputError, evaluate, load_model, predict, read_molecules, read_smiles, screen
from mnagt.cli import main
from mnagt.data.readers.smiles import find_duplicates, find_scaffolds
from mnagt.experiments.compare import default_models
from mnagt.graphs.molecules import MOLECULES, REACTIONS, are_molecules, find_molecule_format
from mnagt.models.registry import build_model
from mnagt.runs.config import SplitConfig
from mnagt.runs.defaults import default_model
from mnagt.runs.split import choose_split

pytest.importorskip("rdkit")

SUBSTITUTION = "[CH3:1][Br:2].[OH-:3]>>[CH3:1][OH:3].[Br-:2]"
BROKEN = {"Cl": 339.0, "Br": 285.0, "I": 218.0}
"""Energies of bonds from carbon to a leaving group, kJ/mol (Atkins, Physical Chemistry)."""
FORMED = {"[OH-:90]": ("[OH:90]", 358.0), "[SH-:90]": ("[SH:90]", 272.0), "[NH2-:90]": ("[NH2:90]", 305.0)}
"""Nucleophiles: what they become, and the energy of the bond to carbon."""
TINY = ["--model", "gin", "--depth", "3", "--device", "cpu"]


def list_substitutions() -> list[tuple[str, str]]:
    """Substitutions of one of the two halogens of an alkane, and the energies of broken less formed bonds.

    The reactants do not tell which of the halogens leaves.
    """
    rows = []
    for (leaving, other), length, (nucleophile, (bound, gained)) in product(
        [(a, b) for a in BROKEN for b in BROKEN if a != b], range(2, 7), FORMED.items()
    ):
        chain = "".join(f"[CH2:{i}]" for i in range(1, length + 1))
        before = f"[{leaving}:80]{chain}[{other}:81].{nucleophile}"
        rows.append((f"{before}>>{bound}{chain}[{other}:81].[{leaving}-:80]", f"{BROKEN[leaving] - gained:.0f}"))
    return rows


def write(path: Path, rows: list[tuple[str, ...]], head: str = "rxn,energy") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *rows])
    return path


def read_columns(reaction: str) -> tuple[torch.Tensor, dict[tuple[int, int], list[int]]]:
    """The columns of the atoms, and of each bond once."""
    graph = read_smiles([reaction]).graphs.batch(torch.tensor([0]))
    assert graph.node_labels is not None
    assert graph.edge_labels is not None
    rows = zip(graph.edge_index.T.tolist(), graph.edge_labels.tolist(), strict=True)
    return graph.node_labels, {(i, j): row for (i, j), row in rows if i < j}


@pytest.fixture(scope="module")
def substitutions(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("reactions") / "substitutions.csv", list_substitutions())


@pytest.fixture(scope="module")
def run_folder(substitutions, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    words = ["--reaction", "rxn", "--target", "energy", "--split", "random", "--epochs", "1", "--dim", "8"]
    assert main(["train", str(substitutions), *words, "--out", str(out), *TINY]) == 0
    return out


def test_a_reaction_is_one_graph_of_both_sides():
    atoms, bonds = read_columns(SUBSTITUTION)
    carbon, methyl = read_smiles(["CBr", "CO"]).graphs.node_labels[[0, 2]]  # type: ignore[index]
    assert atoms[0].tolist() == [*carbon.tolist(), *methyl[1:].tolist(), 1]
    assert atoms[:, 0].tolist() == [5, 34, 7]
    assert bonds == {(0, 1): [0, 0, 0, -1, -1, -1, 1], (0, 2): [-1, -1, -1, 0, 0, 0, 2]}


def test_bonds_are_kept_broken_formed_or_changed():
    diels_alder = "[CH2:1]=[CH:2][CH:3]=[CH2:4].[CH2:5]=[CH2:6]>>[CH2:1]1[CH:2]=[CH:3][CH2:4][CH2:5][CH2:6]1"
    _, bonds = read_columns(diels_alder)
    changes = {pair: row[-1] for pair, row in bonds.items()}
    assert changes == {(0, 1): 3, (1, 2): 3, (2, 3): 3, (4, 5): 3, (3, 4): 2, (0, 5): 2}


def test_atoms_without_a_map_are_on_their_side_only_and_agents_on_both():
    atoms, bonds = read_columns("[CH3:1]OC(C)=O>O>[CH3:1][OH:2]")
    assert atoms[1:5, 9:17].eq(-1).all()  # acetate leaves
    assert atoms[5, 1:9].eq(-1).all()  # the oxygen that comes
    assert atoms[6].tolist() == [*read_smiles(["O"]).graphs.node_labels[0].tolist(), *atoms[6, 1:9].tolist(), 0]  # type: ignore[index]
    assert bonds[0, 1][-1] == 1
    assert bonds[1, 2][-1] == -1
    assert atoms[:, -1].tolist() == [1, 1, 0, 0, 0, 1, 0]


def test_hydrogens_with_a_map_are_atoms():
    shift = "[H:1][CH2:2][CH:3]=[O:4]>>[CH2:2]=[CH:3][O:4][H:1]"
    atoms, bonds = read_columns(shift)
    assert sorted(atoms[:, 0].tolist()) == [0, 5, 5, 7]
    assert sorted(row[-1] for row in bonds.values()) == [1, 2, 3, 3]


def test_inversion_is_not_retention():
    """A substitution at a chiral carbon: the bonds are the same, the side that the oxygen comes from is not."""
    reactant = "[CH3:1][C@H:2]([CH2:5][CH3:6])[Br:3].[OH-:4]"
    sides = [read_columns(f"{reactant}>>[CH3:1][{tag}:2]([CH2:5][CH3:6])[OH:4].[Br-:3]")[0] for tag in ("C@H", "C@@H")]
    assert (sides[0][1] != sides[1][1]).nonzero().tolist() == [[9]]
    turned = read_columns(f"{reactant}>>[OH:4][C@@H:2]([CH2:5][CH3:6])[CH3:1].[Br-:3]")[
        0
    ]  # as the first, written otherwise
    torch.testing.assert_close(turned, sides[0])


@pytest.mark.parametrize(
    ("reaction", "reason"),
    [
        ("CBr.O>>CO.Br", r"no atom of the reactants has the map number of one of the products; map the atoms"),
        ("[CH3:1]Br>>[NH3:1]", "atom 1 is C in the reactants and N in the products"),
        ("[CH3:1][CH3:1]>>[CH3:1]", "atom map number 1 is there twice in the reactants"),
        ("[CH3:1]C(>>[CH3:1]", "reactants: not a SMILES"),
        ("[CH3:1]C>>", "no products"),
        (">>[CH3:1]C", "no reactants"),
        ("[CH3:1]C", "not a reaction: expected reactants>>products"),
        ("", "no SMILES"),
    ],
)
def test_what_is_wrong_with_a_reaction_is_named(reaction, reason):
    (refused,) = read_smiles([SUBSTITUTION, SUBSTITUTION, reaction]).refused
    assert refused.row == 2
    assert reason in refused.reason


def test_a_component_is_no_reaction():
    (refused,) = read_smiles([("CCO", "O"), (SUBSTITUTION, "O")]).refused
    assert refused.explain(["rxn", "solvent"]) == "column 'rxn': a reaction where a molecule belongs"


def test_a_table_without_maps_is_refused_with_the_remedy(tmp_path):
    table = write(tmp_path / "plain.csv", [("CBr.O>>CO.Br", "1"), ("CCl.O>>CO.Cl", "2")])
    with pytest.raises(
        InputError, match=r"plain\.csv: 2 of 2 rows left out: line 2 \(no atom .* RXNMapper.*nothing is left"
    ):
        read_molecules(table)


def test_a_dative_bond_is_no_arrow():
    found = read_smiles(["N->[Fe]", "CCO"]).graphs
    assert found.features == MOLECULES


def test_duplicates_and_scaffolds_do_not_see_maps():
    other = SUBSTITUTION.replace(":1]", ":7]")
    assert find_duplicates([SUBSTITUTION, other, SUBSTITUTION.replace("Br", "Cl")]).tolist() == [0, 0, 2]
    ring = (
        "[CH3:1][c:2]1[cH:3][cH:4][cH:5][cH:6][cH:7]1.[Br:8][Br:9]>>[Br:8][CH2:1][c:2]1[cH:3][cH:4][cH:5][cH:6][cH:7]1"
    )
    assert find_scaffolds([ring]) == ["c1ccccc1"]


def test_reactions_are_no_molecules(substitutions):
    dataset = read_molecules(substitutions, smiles="rxn", targets=["energy"]).dataset
    assert dataset.features == REACTIONS
    found = find_molecule_format(REACTIONS)
    assert found is not None
    assert found.is_reaction
    assert not are_molecules(REACTIONS)
    assert default_models(dataset) == ("mnagt", "gin", "wl-linear")
    with pytest.raises(InputError, match="morgan-forest reads molecules"):
        build_model("morgan-forest", {}, dataset.features, 1)
    with pytest.raises(InputError, match="leave out --descriptors"):
        build_model("gin", {"descriptors": ("rdkit2d",)}, dataset.features, 1)
    rings = replace(dataset, same_as=None)
    assert choose_split(SplitConfig("random"), rings).name == "random"


def test_the_default_model_of_reactions_is_a_network_alone(substitutions, tmp_path):
    zipped = tmp_path / "substitutions.csv.gz"
    zipped.write_bytes(gzip.compress(substitutions.read_bytes()))
    assert [default_model(str(path)) for path in (substitutions, zipped)] == ["mnagt", "mnagt"]
    assert default_model(str(write(tmp_path / "mine.csv", [("N->[Fe]", "1")]))) == "mnagt-ensemble"


def test_only_the_smiles_tell_that_a_table_holds_reactions(substitutions, tmp_path):
    noted = tmp_path / "noted.csv"
    noted.write_text("smiles,note,y\nCCO,<b>x</b>,1\nCCN,CC>>O,0\n")
    assert default_model(str(noted)) == "mnagt-ensemble"
    assert default_model(str(noted), smiles="note") == "mnagt"
    assert default_model(str(substitutions), smiles="rxn") == "mnagt"


def test_reactions_are_learned_that_their_reactants_do_not_tell(substitutions, tmp_path):
    """The halogen that leaves decides the energy; the reactants are the same whichever does."""
    words = ["--reaction", "rxn", "--target", "energy", "--split", "random", "--epochs", "60", "--dim", "16"]
    assert main(["train", str(substitutions), *words, "--out", str(tmp_path / "run"), *TINY]) == 0
    scores = evaluate(tmp_path / "run", device="cpu")
    assert scores["r2"] > 0.9


def test_the_folder_remembers_that_it_reads_reactions(run_folder, tmp_path):
    rows = list_substitutions()
    new = write(tmp_path / "new.csv", [(text,) for text, _ in rows[:3]] + [("CBr>>CO",), ("CCO",)], "rxn")
    found = predict(run_folder, str(new), device="cpu")
    assert found["energy"][3:] == [None, None]
    assert "RXNMapper" in found["note"][3]
    assert found["note"][4].startswith("not a reaction")
    assert load_model(run_folder).predict([text for text, _ in rows[:3]])["energy"] == pytest.approx(
        found["energy"][:3]
    )
    assert predict(run_folder, rows[1][0], device="cpu")["energy"] == pytest.approx(found["energy"][1:2])
    with pytest.raises(InputError, match="'CCO' cannot be read as a reaction"):
        predict(run_folder, "CCO", device="cpu")


def test_a_reaction_is_drawn_with_what_it_breaks_and_forms(run_folder, substitutions, tmp_path):
    page = tmp_path / "page.html"
    words = ["explain", str(run_folder), str(substitutions), "--graphs", "0", "--out", str(page), "--device", "cpu"]
    assert main(words) == 0
    text = page.read_text()
    assert "bonds that it breaks are dotted" in text
    assert "stroke-dasharray" in text


def test_the_service_takes_reactions(run_folder):
    from mnagt.serve.config import ServeConfig
    from mnagt.serve.schemas import PredictRequest, read_request

    trained, rows = load_model(run_folder), [text for text, _ in list_substitutions()[:2]]
    read = read_request(PredictRequest(smiles=[*rows, "CBr>>CO"]), trained, ServeConfig())
    assert trained.predict(read.graphs)["energy"] == pytest.approx(trained.predict(rows)["energy"])
    assert "map the atoms" in read.errors[2]


def test_reactions_are_screened(run_folder, tmp_path):
    rows = [(text,) for text, _ in list_substitutions()[:5]]
    table = write(tmp_path / "many.csv", [*rows, ("CBr>>CO",)], "rxn")
    done = screen(run_folder, [table], tmp_path / "out", jobs=1)
    assert (done.rows, done.refused) == (6, 1)
    with next((tmp_path / "out").glob("part-*.csv")).open(newline="") as file:
        found = [row["energy"] for row in csv.DictReader(file)]
    expected = predict(run_folder, str(table), device="cpu")["energy"]
    assert [float(energy) for energy in found[:5]] == pytest.approx(expected[:5], abs=1e-5)
