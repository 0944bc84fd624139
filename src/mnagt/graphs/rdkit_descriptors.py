"""RDKit's descriptors of a molecule, with what several of them need computed once. Values are RDKit's, bit for bit.

RDKit computes each descriptor by itself: the electrotopological states four times, the characteristic polynomial twice,
and it searches every molecule for some 200 patterns. ``compute_descriptors`` computes states and polynomial once, reads
atoms once, and searches for a pattern only where the molecule has the elements.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mnagt.graphs.smarts import AROMATIC, Patterns, list_atom_types

if TYPE_CHECKING:
    from rdkit.Chem import Atom, Mol

Compute = Callable[["SharedValues"], float]

_SURFACES = re.compile(r"(SMR|SlogP|PEOE)_VSA(\d+)")


def compute_descriptors(molecules: "Iterable[Mol]", count: int) -> Float[np.ndarray, "molecules count"]:
    """RDKit's first ``count`` descriptors of each molecule, in the order of its list; NaN where one has no value.

    Each descriptor is computed for all molecules before the next: the processor then has its code and patterns at hand.

    >>> from rdkit.Chem import MolFromSmiles
    >>> compute_descriptors([MolFromSmiles("CO")], 4).tolist()
    [[7.0, 7.0, 1.0, 1.0]]
    """
    shared = [SharedValues(molecule) for molecule in molecules]
    columns = [[_compute_or_nan(compute, each) for each in shared] for compute in _list_functions()[:count]]
    return np.array(columns, dtype=np.float64).reshape(len(columns), len(shared)).T


def _compute_or_nan(compute: Compute, shared: "SharedValues") -> float:
    """The value, or NaN where RDKit cannot compute it: rebuilt molecules may break rules of chemistry."""
    try:
        value = float(compute(shared))
    except (ValueError, RuntimeError, ArithmeticError, LookupError, TypeError):
        return math.nan
    return value if math.isfinite(value) else math.nan


class AtomValues(NamedTuple):
    """What descriptors read of an atom."""

    atom: "Atom"
    number: int
    is_aromatic: bool
    degree: int
    hydrogens: int


class SharedValues:
    """What several descriptors of ``molecule`` need, each computed when it is first asked for."""

    def __init__(self, molecule: "Mol") -> None:
        self.molecule = molecule

    @cached_property
    def atoms(self) -> list[AtomValues]:
        atoms = map(self.molecule.GetAtomWithIdx, range(self.molecule.GetNumAtoms()))  # GetAtoms() is slower
        return [
            AtomValues(atom, atom.GetAtomicNum(), atom.GetIsAromatic(), atom.GetDegree(), atom.GetTotalNumHs())
            for atom in atoms
        ]

    @cached_property
    def fragments(self) -> "frozenset[Mol]":
        """The patterns of RDKit's counts of fragments (``fr_...``) that the molecule may have."""
        return _fragments().select(frozenset(atom.number + AROMATIC * atom.is_aromatic for atom in self.atoms))

    @cached_property
    def states(self) -> Float[np.ndarray, "atoms"]:
        """The electrotopological states. RDKit's functions then read them from the molecule."""
        self.molecule._eStateIndices = states = electrotopological_states(self)
        return states

    @cached_property
    def polynomial(self) -> Float[np.ndarray, "coefficients"]:
        """The coefficients of the characteristic polynomial of the adjacency matrix, without their signs."""
        from rdkit.Chem import GetDistanceMatrix
        from rdkit.Chem.Graphs import CharacteristicPolynomial

        adjacency = np.equal(GetDistanceMatrix(self.molecule, False), 1).astype(float)
        return abs(CharacteristicPolynomial(self.molecule, adjacency))

    @cached_property
    def surfaces(self) -> dict[str, Sequence[float]]:
        """The surface areas of atoms in bins of polarisability, logP and charge."""
        from rdkit.Chem import MolSurf

        return {name: getattr(MolSurf, f"{name}_VSA_")(self.molecule, force=False) for name in ("SMR", "SlogP", "PEOE")}


@cache
def _list_functions() -> list[Compute]:
    """A function for each of RDKit's descriptors."""
    from rdkit.Chem import Descriptors

    return [_choose_function(name, function) for name, function in Descriptors.descList]


def _choose_function(name: str, function: "Callable[[Mol], float]") -> Compute:
    """One of this file if RDKit has the version whose values it computes, and otherwise RDKit's."""
    if name in FUNCTIONS and getattr(function, "version", None) == FUNCTIONS[name][0]:
        return FUNCTIONS[name][1]
    if match := _SURFACES.fullmatch(name):
        family, index = match[1], int(match[2]) - 1
        return lambda shared: shared.surfaces[family][index]
    if name.startswith("fr_") and (pattern := _pattern_of(function)) is not None:
        return lambda shared: function(shared.molecule) if pattern in shared.fragments else 0
    return lambda shared: function(shared.molecule)


def _pattern_of(function: Any) -> "Mol | None":
    """The pattern that a count of fragments searches for: a default of RDKit's function."""
    return (function.__defaults__ or (None,))[-1]


@cache
def _fragments() -> Patterns:
    from rdkit.Chem import Fragments

    patterns = [_pattern_of(function) for _, function in Fragments.fns]
    return Patterns(pattern for pattern in patterns if pattern is not None)


@cache
def _acceptors_and_alerts() -> tuple[Patterns, Patterns]:
    from rdkit.Chem import QED

    return Patterns(QED.Acceptors), Patterns(QED.StructuralAlerts)


@cache
def _outer_electrons(number: int) -> int:
    from rdkit.Chem import GetPeriodicTable

    return GetPeriodicTable().GetNOuterElecs(number)


def electrotopological_states(shared: SharedValues) -> Float[np.ndarray, "atoms"]:
    """The E-state indices of Hall, Mohney and Kier, with sums in the order of RDKit's ``EStateIndices``."""
    from rdkit.Chem import GetDistanceMatrix
    from rdkit.Chem.EState.EState import GetPrincipleQuantumNumber

    intrinsic = np.zeros(len(shared.atoms))
    for i, (_, number, _, degree, hydrogens) in enumerate(shared.atoms):
        if degree:
            shell = GetPrincipleQuantumNumber(number)
            intrinsic[i] = (4.0 / (shell * shell) * (_outer_electrons(number) - hydrogens) + 1) / degree
    distance = GetDistanceMatrix(shared.molecule, useBO=False, useAtomWts=False) + 1
    terms = np.where(distance < 1e6, (intrinsic[:, None] - intrinsic) / (distance * distance), 0.0)
    return terms.cumsum(axis=1)[:, -1] + intrinsic  # cumsum adds one after the other, as RDKit does


def _average_information(shared: SharedValues) -> float:
    from rdkit.ML.InfoTheory.rdInfoTheory import InfoEntropy

    return InfoEntropy(shared.polynomial)


def _information(shared: SharedValues) -> float:
    return sum(shared.polynomial) * _average_information(shared)


def _extreme_state(name: str) -> Compute:
    """One of RDKit's four functions of the states."""

    def compute(shared: SharedValues) -> float:
        from rdkit.Chem.EState import EState

        return getattr(EState, name)(shared.molecule, force=not len(shared.states))

    return compute


def _valence_electrons(shared: SharedValues) -> float:
    return sum(_outer_electrons(each.number) - each.atom.GetFormalCharge() + each.hydrogens for each in shared.atoms)


def _radical_electrons(shared: SharedValues) -> float:
    return sum(each.atom.GetNumRadicalElectrons() for each in shared.atoms)


def _chi_of_atoms(shared: SharedValues) -> float:
    degrees = np.array([each.degree for each in shared.atoms if each.degree], float)
    return sum(np.sqrt(1.0 / degrees))


def _chi_of_bonds(shared: SharedValues) -> float:
    degrees = [each.degree for each in shared.atoms]
    bonds = map(shared.molecule.GetBondWithIdx, range(shared.molecule.GetNumBonds()))
    products = [degrees[bond.GetBeginAtomIdx()] * degrees[bond.GetEndAtomIdx()] for bond in bonds]
    return sum(np.sqrt(1.0 / np.array(products, float)))


def _drug_likeness(shared: SharedValues) -> float:
    """QED, with the properties that RDKit's ``QED.properties`` has."""
    from rdkit import Chem
    from rdkit.Chem import QED, rdMolDescriptors

    molecule = Chem.RemoveHs(shared.molecule)
    atom_types, (acceptors, alerts) = list_atom_types(molecule), _acceptors_and_alerts()
    strict = rdMolDescriptors.NumRotatableBondsOptions.Strict
    aromatic = Chem.DeleteSubstructs(Chem.Mol(molecule), QED.AliphaticRings)
    properties = QED.QEDproperties(
        MW=rdMolDescriptors._CalcMolWt(molecule),
        ALOGP=rdMolDescriptors.CalcCrippenDescriptors(molecule)[0],
        HBA=sum(len(molecule.GetSubstructMatches(each)) for each in acceptors.select(atom_types)),
        HBD=rdMolDescriptors.CalcNumHBD(molecule),
        PSA=rdMolDescriptors.CalcTPSA(molecule),
        ROTB=rdMolDescriptors.CalcNumRotatableBonds(molecule, strict),
        AROM=len(Chem.GetSSSR(aromatic)),
        ALERTS=sum(molecule.HasSubstructMatch(each) for each in alerts.select(atom_types)),
    )
    return QED.qed(shared.molecule, qedProperties=properties)


_EXTREME_STATES = ("MaxEStateIndex", "MinEStateIndex", "MaxAbsEStateIndex", "MinAbsEStateIndex")
FUNCTIONS: dict[str, tuple[str, Compute]] = {
    **{name: ("1.0.0", _extreme_state(name)) for name in _EXTREME_STATES},
    "AvgIpc": ("1.0.0", _average_information),
    "Chi0": ("1.0.0", _chi_of_atoms),
    "Chi1": ("1.0.0", _chi_of_bonds),
    "Ipc": ("1.0.0", _information),
    "NumRadicalElectrons": ("1.1.0", _radical_electrons),
    "NumValenceElectrons": ("1.1.0", _valence_electrons),
    "qed": ("1.1.0", _drug_likeness),
}
"""Descriptors that are computed here, each with the version of RDKit's that has the same values."""
