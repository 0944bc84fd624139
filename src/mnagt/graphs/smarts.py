"""Which SMARTS patterns a molecule may have, judged by its elements: searching for the others would find nothing."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdkit.Chem import Mol

AROMATIC = 1000
"""What RDKit adds to the atomic number of an aromatic atom in its type."""


class Patterns:
    """SMARTS patterns, of which ``select`` returns those that a molecule of some types of atoms may have.

    >>> from rdkit.Chem import MolFromSmarts
    >>> patterns = Patterns([MolFromSmarts(each) for each in ("[Cl,Br]C", "nO", "[!#6]")])
    >>> sorted(patterns.patterns.index(each) for each in patterns.select(frozenset({6, 17})))
    [0, 2]
    """

    def __init__(self, patterns: "Iterable[Mol]") -> None:
        self.patterns = list(patterns)
        self._needs = [_list_needs(pattern) for pattern in self.patterns]
        self.select = lru_cache(4096)(self._select)

    def _select(self, atom_types: frozenset[int]) -> "frozenset[Mol]":
        both = zip(self.patterns, self._needs, strict=True)
        return frozenset(pattern for pattern, needs in both if not any(need.isdisjoint(atom_types) for need in needs))


def list_atom_types(molecule: "Mol") -> frozenset[int]:
    """The atomic numbers in a molecule, plus ``AROMATIC`` for aromatic atoms."""
    atoms = map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms()))  # GetAtoms() is slower
    return frozenset(atom.GetAtomicNum() + AROMATIC * atom.GetIsAromatic() for atom in atoms)


def _list_needs(pattern: "Mol") -> frozenset[frozenset[int]]:
    """For each atom of a pattern the types that it may have, where the pattern says so."""
    types_of_atoms = (_list_types(atom.DescribeQuery().splitlines())[0] for atom in pattern.GetAtoms())
    return frozenset(types for types in types_of_atoms if types is not None)


def _list_types(lines: Sequence[str]) -> tuple[frozenset[int] | None, int]:
    """The types that a query allows, None for any, and how many lines describe it: operands are indented."""
    text, indent = lines[0].strip(), _indent(lines[0])
    operands, at = [], 1
    while at < len(lines) and _indent(lines[at]) > indent:
        types, read = _list_types(lines[at:])
        operands.append(types)
        at += read
    limits = [types for types in operands if types is not None]
    if text == "AtomAnd" and limits:
        return frozenset.intersection(*limits), at
    if text == "AtomOr" and limits and len(limits) == len(operands):
        return frozenset.union(*limits), at
    if match := re.fullmatch(r"Atom(Type|AtomicNum) (\d+) = val", text):
        number = int(match[2])
        return frozenset({number} if match[1] == "Type" else {number, number + AROMATIC}), at
    return None, at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
