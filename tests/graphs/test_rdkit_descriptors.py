"""RDKit's descriptors, computed together, have the bits of RDKit's own functions."""

import csv
import gzip
import math
import struct

import pytest
import torch

from mnagt.data.readers.smiles import read_smiles
from mnagt.graphs.molecules import rdkit_descriptors, rebuild_molecules

pytest.importorskip("rdkit")

ODD = [
    "[Na+].[Cl-]", "[He]", "*", "[H][H]", "C*", "[2H]C([2H])[2H]", "c1ccccc1.[Fe]", "C1CC1", "F.F.F.F", "N#N", "O", "P",
    "C[Si](C)(C)O", "[U]", "[Cu+2].[O-]S(=O)(=O)[O-]", "[O-][n+]1ccccc1", "c1cc[se]c1", "[O][O]", "[H+]", "[CH3]",
    "C=C=C", "C/C=C/C", "CC(=O)Oc1ccccc1C(=O)O", "CC#C.I", "N[C@@H](C)C(=O)O", "C" * 120, "C1CC2CCC1CC2", "S=C=NC",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "O=C1C=CC(=O)C=C1", "ClC(Cl)(Cl)Cl", "CP(=O)(O)O", "CN=[N+]=[N-]",
]  # fmt: skip


def check_bits(smiles: list[str]) -> None:
    """Compare all descriptors of molecules, rebuilt and as RDKit reads them, with RDKit's functions one by one."""
    from rdkit.Chem import Descriptors, GetSymmSSSR, Mol, MolFromSmiles
    from rdkit.rdBase import BlockLogs

    from mnagt.graphs.rdkit_descriptors import compute_descriptors

    graphs = read_smiles(smiles, workers=1).graphs
    molecules = [molecule for _, molecule in rebuild_molecules(graphs.batch(torch.arange(len(graphs))))]
    with BlockLogs():
        for molecule in molecules:
            GetSymmSSSR(molecule)
        molecules += [molecule for text in smiles[::5] if (molecule := MolFromSmiles(text)) is not None]
        all_found = compute_descriptors(map(Mol, molecules), len(Descriptors.descList)).tolist()
        for molecule, found in zip(molecules, all_found, strict=True):
            for (name, compute), value in zip(Descriptors.descList, found, strict=True):
                try:
                    expected = float(compute(molecule))
                except (ValueError, RuntimeError, ArithmeticError, LookupError, TypeError):
                    expected = math.nan
                expected = expected if math.isfinite(expected) else math.nan
                assert struct.pack("d", value) == struct.pack("d", expected), (name, value, expected)


def test_odd_molecules_have_rdkits_values():
    check_bits(ODD)


@pytest.mark.real_data
def test_real_molecules_have_rdkits_values(data_root):
    with gzip.open(data_root / "ogbg_molhiv" / "mapping" / "mol.csv.gz", "rt") as file:
        check_bits([row["smiles"] for row in csv.DictReader(file)][::103])


def test_patterns_that_are_left_out_are_in_no_molecule():
    """Judged by elements, no pattern of RDKit is left out that a molecule has."""
    from rdkit.Chem import QED, Fragments, MolFromSmiles

    from mnagt.graphs.smarts import Patterns, list_atom_types

    all_patterns = [*QED.Acceptors, *QED.StructuralAlerts, *(each.__defaults__[-1] for _, each in Fragments.fns)]
    patterns, left_out = Patterns(all_patterns), 0
    for molecule in filter(None, map(MolFromSmiles, ODD)):
        chosen = patterns.select(list_atom_types(molecule))
        assert all(each in chosen for each in all_patterns if molecule.HasSubstructMatch(each))
        left_out += len(all_patterns) - len(chosen)
    assert left_out > len(ODD) * len(all_patterns) // 4


def test_another_version_of_a_descriptor_is_left_to_rdkit(monkeypatch):
    from rdkit.Chem import Descriptors, MolFromSmiles

    from mnagt.graphs import rdkit_descriptors as module

    class Newer:
        version = "9.0.0"

        def __call__(self, molecule):
            return 42.0

    changed = [(name, Newer() if name == "qed" else compute) for name, compute in Descriptors.descList]
    monkeypatch.setattr(Descriptors, "descList", changed)
    module._list_functions.cache_clear()
    try:
        found = module.compute_descriptors([MolFromSmiles("CCO")], len(changed))[0]
    finally:
        module._list_functions.cache_clear()
    assert found[[name for name, _ in changed].index("qed")] == 42


def test_atoms_have_the_descriptors_of_their_molecule():
    graphs = read_smiles(["CCO", "N"], workers=1).graphs
    found = rdkit_descriptors(graphs.batch(torch.arange(2)), 217)
    assert torch.equal(found[0].nan_to_num(), found[2].nan_to_num())
    assert not torch.equal(found[0].nan_to_num(), found[3].nan_to_num())
