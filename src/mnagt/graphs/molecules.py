"""Molecules as graphs: the columns of OGB's featuriser, and Morgan fingerprints of molecules rebuilt from them."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features

if TYPE_CHECKING:
    from rdkit.Chem import Mol

ATOMS = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Categories of element, chirality, degree, charge, hydrogens, radical electrons, hybrid, aromatic, in a ring."""
BONDS = (5, 6, 2)
"""Categories of bond type, stereo, conjugated."""
MOLECULES = Features(Columns(ATOMS), Columns(BONDS))
"""The columns of molecules. A model that reads these columns can predict from SMILES."""

COMPUTED_DESCRIPTORS = ("rdkit2d", "morgan")
"""Names of descriptors that RDKit computes of a molecule's graph; others are columns of a table."""
TABLE_DESCRIPTORS = "table-descriptors"
"""The encoding that holds columns of a table: the row of its molecule for each atom."""

MAX_DESCRIPTOR = 1e9
"""Descriptors are cut to this size: some grow with the exponential of a charge."""

_BOND_TYPES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "UNSPECIFIED")


def morgan_identifiers(graph: GraphBatch, radius: int) -> Int[Tensor, "atoms radii"]:
    """The identifiers of the Morgan fingerprint (ECFP) around each atom, for radius 0 to ``radius``: RDKit's 32 bits.

    -1 where an environment has the same bonds as another, which RDKit counts once. The fingerprint of b bits has those
    that are identifiers modulo b. ``graph`` has the columns ``MOLECULES``.

    >>> from mnagt import read_smiles
    >>> morgan_identifiers(read_smiles(["CO"]).graphs.batch(torch.tensor([0])), 1)
    tensor([[2246728737,         -1],
            [ 864662311, 1533899907]])
    """
    try:
        from rdkit.Chem.rdFingerprintGenerator import AdditionalOutput, GetMorganGenerator
        from rdkit.rdBase import BlockLogs
    except ImportError:
        raise InputError(
            "Morgan fingerprints need RDKit, which is not installed: pip install 'mnagt[molecules]'"
        ) from None
    generator, collected = GetMorganGenerator(radius=radius), AdditionalOutput()
    collected.AllocateBitInfoMap()
    identifiers = torch.full((graph.num_nodes, radius + 1), -1)
    with BlockLogs():
        for start, molecule in zip(graph.node_ptr.tolist(), rebuild_molecules(graph), strict=False):
            generator.GetSparseFingerprint(molecule, additionalOutput=collected)
            found = [(start + atom, r, bit) for bit, at in collected.GetBitInfoMap().items() for atom, r in at]
            atom, r, bit = torch.tensor(found, dtype=torch.long).view(-1, 3).unbind(1)
            identifiers[atom, r] = bit
    return identifiers.to(graph.device)


def rdkit_descriptors(graph: GraphBatch, count: int) -> Float[Tensor, "atoms descriptors"]:
    """RDKit's first ``count`` descriptors of each molecule, the same row for all its atoms; NaN where one has no value.

    ``graph`` has the columns ``MOLECULES``.

    >>> from mnagt import read_smiles
    >>> rdkit_descriptors(read_smiles(["CO"]).graphs.batch(torch.tensor([0])), 217).shape
    torch.Size([2, 217])
    """
    try:
        from rdkit.Chem import Descriptors, GetSymmSSSR
        from rdkit.rdBase import BlockLogs
    except ImportError:
        raise InputError("descriptors need RDKit, which is not installed: pip install 'mnagt[molecules]'") from None
    compute, rows = [each for _, each in Descriptors.descList[:count]], []
    with BlockLogs():
        for molecule in rebuild_molecules(graph):
            GetSymmSSSR(molecule)
            rows.append([_compute_or_nan(each, molecule) for each in compute])
    found = torch.full((graph.num_graphs, count), torch.nan)
    values = torch.tensor(rows, dtype=torch.float64).view(graph.num_graphs, -1)
    found[:, : values.shape[1]] = values.clamp(-MAX_DESCRIPTOR, MAX_DESCRIPTOR).float()
    return found[graph.graph_of_node.cpu().long()].to(graph.device)


def _compute_or_nan(descriptor: "Callable[[Mol], float]", molecule: "Mol") -> float:
    """The value, or NaN where RDKit cannot compute it: rebuilt molecules may break rules of chemistry."""
    try:
        value = float(descriptor(molecule))
    except (ValueError, RuntimeError, ArithmeticError, LookupError, TypeError):
        return math.nan
    return value if math.isfinite(value) else math.nan


def rebuild_molecules(graph: GraphBatch) -> "Iterator[Mol]":
    """RDKit's molecules from the columns ``MOLECULES``: elements, charges, hydrogens, radicals, aromaticity and bonds.

    Isotopes and chirality are not restored. Nothing is refused: valences are not checked, and what a column calls
    'other' becomes an atom or a bond of no kind.
    """
    if graph.node_labels is None or graph.edge_labels is None:
        raise InputError("a molecule has columns of atoms and of bonds, and these graphs lack some")
    atoms = graph.node_labels.tolist()
    ends = zip(*graph.edge_index.tolist(), graph.edge_labels[:, 0].tolist(), strict=True)
    bonds: list[dict[tuple[int, int], int]] = [{} for _ in range(graph.num_graphs)]
    graph_of, starts = graph.graph_of_node.tolist(), graph.node_ptr.tolist()
    for i, j, kind in ends:
        if i != j:
            start, of_graph = starts[graph_of[i]], bonds[graph_of[i]]
            pair = min(i, j) - start, max(i, j) - start
            of_graph[pair] = max(kind, of_graph.get(pair, kind))
    for g, of_graph in enumerate(bonds):
        yield _rebuild_molecule(atoms[starts[g] : starts[g + 1]], of_graph)


def _rebuild_molecule(atoms: Sequence[Sequence[int]], bonds: dict[tuple[int, int], int]) -> "Mol":
    from rdkit.Chem import Atom, BondType, FastFindRings, RWMol

    kinds: list[Any] = [getattr(BondType, name) for name in _BOND_TYPES]
    molecule = RWMol()
    for number, _, _, charge, hydrogens, radicals, _, is_aromatic, _ in atoms:
        atom = Atom(number + 1 if 0 <= number < ATOMS[0] - 1 else 0)
        atom.SetFormalCharge(charge - 5)
        atom.SetNumExplicitHs(max(0, hydrogens))
        atom.SetNoImplicit(True)
        atom.SetNumRadicalElectrons(max(0, radicals))
        atom.SetIsAromatic(is_aromatic == 1)
        molecule.AddAtom(atom)
    for (i, j), kind in bonds.items():
        molecule.AddBond(i, j, kinds[kind])
    molecule.UpdatePropertyCache(strict=False)
    FastFindRings(molecule)
    return molecule
