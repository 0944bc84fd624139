"""Molecules as graphs: the columns of OGB's featuriser, and Morgan fingerprints of molecules rebuilt from them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError, explain_missing
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.rdkit_descriptors import compute_descriptors

if TYPE_CHECKING:
    from rdkit.Chem import Mol

ATOMS = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Categories of element, chirality, degree, charge, hydrogens, radical electrons, hybrid, aromatic, in a ring."""
BONDS = (5, 6, 2)
"""Categories of bond type, stereo, conjugated."""
MOLECULES = Features(Columns(ATOMS), Columns(BONDS))
"""The columns of molecules. A model that reads these columns can predict from SMILES."""

CHANGES = ("kept", "broken", "formed", "changed")
"""What a reaction does to a bond. That of atoms that only one side has is none of them, -1."""
REACTIONS = Features(Columns((*ATOMS, *ATOMS[1:], 2)), Columns((*BONDS, *BONDS, len(CHANGES))))
"""The columns of condensed graphs of reactions: element; the other columns of an atom in the reactants, then in the
products; whether it takes part. Bonds likewise: in the reactants, in the products, and their change."""


@dataclass(frozen=True)
class MoleculeFormat:
    """What a row of molecules holds: one molecule, several components, whose graphs are one, or a reaction.

    >>> MoleculeFormat(components=2).features.nodes.labels[-1]
    2
    """

    components: int = 1
    """Molecules of a row. If there are several, the last column of an atom says which it belongs to."""
    is_reaction: bool = False
    """Whether a row is a reaction, whose graph is the condensed graph of reaction, with the columns ``REACTIONS``."""

    def describe(self) -> str:
        """What a row holds, in words.

        >>> MoleculeFormat(components=3).describe()
        '3 components, as in CCO,O,O'
        """
        if self.is_reaction:
            return "a reaction"
        if self.components == 1:
            return "a molecule"
        return f"{self.components} components, as in CCO{',O' * (self.components - 1)}"

    @property
    def features(self) -> Features:
        """The columns of the graphs."""
        if self.is_reaction:
            return REACTIONS
        component = (self.components,) if self.components > 1 else ()
        return Features(Columns((*ATOMS, *component)), MOLECULES.edges)


def find_molecule_format(features: Features) -> MoleculeFormat | None:
    """The format of the rows whose graphs have these columns; None for graphs that are no molecules.

    >>> find_molecule_format(MOLECULES)
    MoleculeFormat(components=1, is_reaction=False)
    """
    if features == REACTIONS:
        return MoleculeFormat(is_reaction=True)
    others = features.nodes.labels[len(ATOMS) :]
    row_format = MoleculeFormat(components=others[0]) if len(others) == 1 else MoleculeFormat()
    return row_format if row_format.features == features else None


def are_molecules(features: Features) -> bool:
    """Whether graphs with these columns are of molecules, one or several, and of no reaction."""
    row_format = find_molecule_format(features)
    return row_format is not None and not row_format.is_reaction


def choose_row_format(features: Features) -> MoleculeFormat:
    """As ``find_molecule_format``; for graphs that are no molecules, a molecule a row."""
    return find_molecule_format(features) or MoleculeFormat()


def count_components(features: Features) -> int:
    """The components of graphs with these columns; 1 where they are no molecules."""
    return choose_row_format(features).components


def component_of_node(graph: GraphBatch) -> Int[Tensor, "nodes"]:
    """The component that each atom belongs to; 0 in a graph of one molecule."""
    assert graph.node_labels is not None
    if graph.node_labels.shape[1] == len(ATOMS):
        return torch.zeros_like(graph.node_labels[:, 0], dtype=torch.long)
    return graph.node_labels[:, len(ATOMS)].long().clamp(min=0)


COMPUTED_DESCRIPTORS = ("rdkit2d", "morgan")
"""Names of descriptors that RDKit computes of a molecule's graph; others are columns of a table."""
TABLE_DESCRIPTORS = "table-descriptors"
"""The encoding that holds columns of a table: the row of its molecule for each atom."""

MAX_DESCRIPTOR = 1e9
"""Descriptors are cut to this size: some grow with the exponential of a charge."""

_MOLECULES_AT_ONCE = 256
_BOND_TYPES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "UNSPECIFIED")


def morgan_identifiers(graph: GraphBatch, radius: int) -> Int[Tensor, "atoms radii"]:
    """The identifiers of the Morgan fingerprint (ECFP) around each atom, for radius 0 to ``radius``: RDKit's 32 bits.

    -1 where an environment has the same bonds as another, which RDKit counts once. The fingerprint of b bits has those
    that are identifiers modulo b. ``graph`` has the columns of a ``MoleculeFormat``.

    >>> from mnagt import read_smiles
    >>> morgan_identifiers(read_smiles(["CO"]).graphs.batch(torch.tensor([0])), 1)
    tensor([[2246728737,         -1],
            [ 864662311, 1533899907]])
    """
    with explain_missing("a Morgan fingerprint", "molecules"):
        from rdkit.Chem.rdFingerprintGenerator import AdditionalOutput, GetMorganGenerator
        from rdkit.rdBase import BlockLogs
    generator, collected = GetMorganGenerator(radius=radius), AdditionalOutput()
    collected.AllocateBitInfoMap()
    identifiers = torch.full((graph.num_nodes, radius + 1), -1)
    with BlockLogs():
        for nodes, molecule in rebuild_molecules(graph):
            generator.GetSparseFingerprint(molecule, additionalOutput=collected)
            rows = [(nodes[atom], r, bit) for bit, at in collected.GetBitInfoMap().items() for atom, r in at]
            atom, r, bit = torch.tensor(rows, dtype=torch.long).view(-1, 3).unbind(1)
            identifiers[atom, r] = bit
    return identifiers.to(graph.device)


def rdkit_descriptors(graph: GraphBatch, count: int) -> Float[Tensor, "atoms descriptors"]:
    """RDKit's first ``count`` descriptors of each molecule, the same row for all its atoms; NaN where one has no value.

    ``graph`` has the columns of a ``MoleculeFormat``; each component is a molecule.

    >>> from mnagt import read_smiles
    >>> rdkit_descriptors(read_smiles(["CO"]).graphs.batch(torch.tensor([0])), 217).shape
    torch.Size([2, 217])
    """
    with explain_missing("a descriptor", "molecules"):
        from rdkit.Chem import GetSymmSSSR
        from rdkit.rdBase import BlockLogs
    descriptors = torch.full((graph.num_nodes, count), torch.nan)
    rebuilt = rebuild_molecules(graph)
    with BlockLogs():
        while chunk := list(islice(rebuilt, _MOLECULES_AT_ONCE)):
            for _, molecule in chunk:
                GetSymmSSSR(molecule)
            values = torch.from_numpy(compute_descriptors([molecule for _, molecule in chunk], count))
            rows = values.clamp(-MAX_DESCRIPTOR, MAX_DESCRIPTOR).float()
            for (nodes, _), row in zip(chunk, rows, strict=True):
                descriptors[nodes, : len(row)] = row
    return descriptors.to(graph.device)


def rebuild_molecules(graph: GraphBatch) -> "Iterator[tuple[list[int], Mol]]":
    """RDKit's molecules, one for each component of a graph, and the nodes that are their atoms.

    They have the elements, charges, hydrogens, radicals, aromaticity and bonds that the columns of atoms and bonds say.
    Isotopes and chirality are not restored. Nothing is refused: valences are not checked, and what a column calls
    'other' becomes an atom or a bond of no kind.
    """
    if graph.node_labels is None or graph.edge_labels is None:
        raise InputError("a molecule has columns of atoms and of bonds, and these graphs lack some")
    component = component_of_node(graph)
    key = graph.graph_of_node.long() * (int(component.max()) + 1 if len(component) else 1) + component
    molecule_of = key.unique(return_inverse=True)[1].tolist()
    atoms = graph.node_labels[:, : len(ATOMS)].tolist()
    nodes: list[list[int]] = [[] for _ in range(max(molecule_of, default=-1) + 1)]
    atom_of = []
    for node, number in enumerate(molecule_of):
        atom_of.append(len(nodes[number]))
        nodes[number].append(node)
    bonds: list[dict[tuple[int, int], int]] = [{} for _ in nodes]
    for i, j, kind in zip(*graph.edge_index.tolist(), graph.edge_labels[:, 0].tolist(), strict=True):
        if i != j and molecule_of[i] == molecule_of[j]:
            of_molecule, (a, b) = bonds[molecule_of[i]], sorted((atom_of[i], atom_of[j]))
            of_molecule[a, b] = max(kind, of_molecule.get((a, b), kind))
    for of_molecule, its_bonds in zip(nodes, bonds, strict=True):
        yield of_molecule, _rebuild_molecule([atoms[node] for node in of_molecule], its_bonds)


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
