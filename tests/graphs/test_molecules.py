"""Fingerprints of molecules that are rebuilt from their columns are those of their SMILES."""

import sys

import pytest
import torch
from fitted import graphs_like

from mnagt.data.readers.smiles import read_smiles
from mnagt.errors import InputError
from mnagt.graphs.molecules import MOLECULES, morgan_identifiers

pytest.importorskip("rdkit")
SMILES = [
    "CCO",
    "c1ccc2[nH]ccc2c1",
    "CC(=O)Oc1ccccc1C(=O)O",
    "[Na+].[O-]C(=O)c1ccncc1",
    "C[N+](C)(C)CC#N",
    "C[C@H](N)C(=O)NC1CC1",
    "F/C=C/Cl",
    "[CH3]",
    "[H][H]",
    "*CC",
    "O=S(=O)(N)c1cc2c(s1)C(C)N(CC)CC2",
]


@pytest.mark.parametrize("radius", [0, 1, 2, 3])
def test_fingerprints_are_those_of_smiles(radius):
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    batch = read_smiles(SMILES).graphs.batch(torch.arange(len(SMILES)))
    identifiers = morgan_identifiers(batch, radius)
    assert identifiers.shape == (batch.num_nodes, radius + 1)
    for g, smiles in enumerate(SMILES):
        own = identifiers[batch.graph_of_node == g]
        bits = set((own[own >= 0] % 2048).tolist())
        generator = GetMorganGenerator(radius=radius, fpSize=2048)
        assert bits == set(generator.GetFingerprint(MolFromSmiles(smiles)).GetOnBits()), smiles


@pytest.mark.real_data
def test_fingerprints_of_ogbs_molecules_are_those_of_their_smiles(data_root):
    import gzip

    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    from mnagt.data.registry import load_dataset

    dataset, generator = load_dataset("ogbg-molbace", root=data_root), GetMorganGenerator(radius=2, fpSize=2048)
    with gzip.open(data_root / "ogbg_molbace" / "mapping" / "mol.csv.gz", "rt") as file:
        column = file.readline().strip().split(",").index("smiles")
        smiles = [line.strip().split(",")[column] for line in file]
    chosen = torch.arange(0, len(dataset), 10)
    batch = dataset.batch(chosen)
    identifiers = morgan_identifiers(batch, 2)
    for place, g in enumerate(chosen.tolist()):
        own = identifiers[batch.graph_of_node == place]
        expected = generator.GetFingerprint(MolFromSmiles(smiles[g])).GetOnBits()
        assert set((own[own >= 0] % 2048).tolist()) == set(expected), smiles[g]


def test_whatever_the_columns_hold_has_a_fingerprint():
    batch = graphs_like(MOLECULES, [1, 7, 12, 3], seed=0)
    assert (morgan_identifiers(batch, 2)[:, 0] >= 0).all()


def test_without_rdkit_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit.Chem.rdFingerprintGenerator", None)
    with pytest.raises(InputError, match=r"rdkit, which is not installed: pip install .*\[molecules\]"):
        morgan_identifiers(graphs_like(MOLECULES, [3], seed=0), 2)
