"""OGB's featuriser with RDKit: nine columns of atoms and three of bonds.

Neither torch nor the rest of the package is imported here: run as a script, this file is a worker that reads
requests from its standard input and writes results to its standard output, and it starts at once.
"""

import io
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations, count
from typing import IO, Any

import numpy as np

MAX_SMILES_LENGTH = 10_000
"""Characters of a SMILES. RDKit takes minutes, and then days, over longer ones that nest deeply."""

_MAX_SCAFFOLD_ATOMS = 1000
"""RDKit takes a second over these; the time grows with the cube of their number, and memory with the square."""
_HYBRIDS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
_BOND_TYPES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_ARROW = re.compile("(?<!-)>")
"""Between reactants, agents and products; ``->`` is a dative bond."""
Kinds = defaultdict[tuple, int]
Append = Callable[[Any, bool, list[int], list[int], list[int]], None]
_PLAIN = re.compile(r"(?:[A-Za-z0-9()=#%.-]++|\[(?:[BCNOPSFIbcnops]|Cl|Br|Si|Se|se)(?:H[0-9]?)?(?:[+-][0-9]?){0,2}\])+")
"""SMILES without stereo, metals and unusual bonds: no chirality, no stereo and single to triple or aromatic bonds."""
_STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")


def graph_rows(smiles: Sequence[str]) -> dict[str, Any]:
    """The molecules as flat tables, and why some are refused.

    ``sizes`` and ``bond_counts`` have a number a molecule, 0 atoms where it is refused; ``atoms``, ``bonds`` and
    ``ends`` (the first and last atom of each bond) have the rows of all, end to end. ``reasons`` are pairs of a row
    and why it is refused.
    """
    from rdkit.Chem import MolFromSmiles
    from rdkit.rdBase import BlockLogs

    # RDKit is asked for one atom at a time, so this is where the time goes: each kind of atom or bond gets a
    # number when it first occurs, and only kinds are translated into columns.
    atom_kinds, bond_kinds = (defaultdict[tuple, int](count().__next__) for _ in range(2))
    append, parse_plain = _make_append(atom_kinds, bond_kinds), _make_plain_parser()
    atoms, bonds, ends, reasons = [], [], [], []
    sizes, bond_counts = [0] * len(smiles), [0] * len(smiles)
    with BlockLogs():
        for row, text in enumerate(smiles):
            reason = _refusal(text)
            is_plain = _PLAIN.fullmatch(text) is not None
            molecule = None if reason else parse_plain(text) if is_plain else MolFromSmiles(text)
            if molecule is None or not molecule.GetNumAtoms():
                reasons.append((row, reason or _problem(text)))
                continue
            sizes[row], bond_counts[row] = molecule.GetNumAtoms(), molecule.GetNumBonds()
            append(molecule, is_plain, atoms, bonds, ends)
    kinds = np.array([*map(_atom_row, atom_kinds)], np.int8).reshape(-1, 9)[atoms]
    sizes, bond_counts, ends = np.array(sizes, int), np.array(bond_counts, int), np.array(ends, np.int32).reshape(-1, 2)
    first = np.repeat(np.cumsum(sizes) - sizes, bond_counts)
    neighbours = np.bincount((ends + first[:, None]).ravel(), minlength=len(atoms))
    hydrogens = np.array([kind[3] for kind in atom_kinds], int)[atoms]
    kinds[:, 2] = np.minimum(neighbours + hydrogens, 11)
    return {
        "sizes": sizes,
        "bond_counts": bond_counts,
        "atoms": kinds,
        "bonds": np.array([*map(_bond_row, bond_kinds)], np.int8).reshape(-1, 3)[bonds],
        "ends": ends,
        "reasons": reasons,
    }


def _make_plain_parser() -> Callable[[str], Any]:
    """``MolFromSmiles`` for ``_PLAIN`` SMILES, which have no hydrogens to remove and no stereo to assign."""
    from rdkit.Chem import MolFromSmiles, SanitizeMol, SmilesParserParams

    parser = SmilesParserParams()
    parser.sanitize = parser.removeHs = False

    def parse(text: str) -> Any:
        molecule = MolFromSmiles(text, parser)
        return molecule if molecule and not SanitizeMol(molecule, catchErrors=True) else None

    return parse


def _make_append(atom_kinds: Kinds, bond_kinds: Kinds) -> Append:
    """Appends a molecule's atoms and bonds, as numbers of their kinds, and the atoms that each bond joins.

    Getters that give an enum take three times as long as others: of ``_PLAIN`` SMILES, one is needed.
    """
    from rdkit.Chem import Atom, Bond, BondStereo, BondType, ChiralType

    number, chirality, charge = Atom.GetAtomicNum, Atom.GetChiralTag, Atom.GetFormalCharge
    hydrogens, radicals, hybrid = Atom.GetTotalNumHs, Atom.GetNumRadicalElectrons, Atom.GetHybridization
    is_aromatic, in_ring = Atom.GetIsAromatic, Atom.IsInRing
    kind, stereo, is_conjugated = Bond.GetBondType, Bond.GetStereo, Bond.GetIsConjugated
    order, first, last = Bond.GetBondTypeAsDouble, Bond.GetBeginAtomIdx, Bond.GetEndAtomIdx
    types = {1.0: BondType.SINGLE, 1.5: BondType.AROMATIC, 2.0: BondType.DOUBLE, 3.0: BondType.TRIPLE}
    achiral, no_stereo = ChiralType.CHI_UNSPECIFIED, BondStereo.STEREONONE

    def append(molecule: Any, is_plain: bool, atoms: list[int], bonds: list[int], ends: list[int]) -> None:
        for a in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())):
            tag = achiral if is_plain else chirality(a)
            key = number(a), tag, charge(a), hydrogens(a), radicals(a), hybrid(a), is_aromatic(a), in_ring(a)
            atoms.append(atom_kinds[key])
        for b in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
            bond_type, bond_stereo = (types[order(b)], no_stereo) if is_plain else (kind(b), stereo(b))
            bonds.append(bond_kinds[bond_type, bond_stereo, is_conjugated(b)])
            ends += first(b), last(b)

    return append


def reaction_rows(reactions: Sequence[str]) -> dict[str, Any]:
    """The condensed graphs of reactions as flat tables, as ``graph_rows`` has them, and why some are refused."""
    from rdkit.rdBase import BlockLogs

    atoms, bonds, ends = [], [], []
    sizes, bond_counts, reasons = np.zeros(len(reactions), np.int64), np.zeros(len(reactions), np.int64), []
    with BlockLogs():
        for row, text in enumerate(reactions):
            try:
                its_atoms, its_bonds = _condense(*_read_sides(text))
            except ValueError as error:
                reasons.append((row, str(error)))
                continue
            sizes[row], bond_counts[row] = len(its_atoms), len(its_bonds)
            atoms += its_atoms
            bonds += its_bonds.values()
            ends += its_bonds
    return {
        "sizes": sizes,
        "bond_counts": bond_counts,
        "atoms": np.array(atoms, np.int8).reshape(-1, 18),
        "bonds": np.array(bonds, np.int8).reshape(-1, 7),
        "ends": np.array(ends, np.int32).reshape(-1, 2),
        "reasons": reasons,
    }


def split_reaction(text: str) -> list[str]:
    """Reactants, agents and products; one part, where it is no reaction.

    >>> split_reaction("CBr.[OH-]>>CO.[Br-] |f:0.1|")
    ['CBr.[OH-]', '', 'CO.[Br-]']
    """
    parts = _ARROW.split(text.split(maxsplit=1)[0]) if text.strip() else []
    return parts if len(parts) == 3 else [text]


def _read_sides(text: str) -> tuple[Any, Any, Any]:
    """RDKit's molecules of reactants, agents and products. Hydrogens with map numbers are atoms.

    ValueError says what is wrong.
    """
    from rdkit.Chem import Mol, MolFromSmiles, RemoveHs, RemoveHsParameters, SmilesParserParams

    if reason := _refusal(text):
        raise ValueError(reason)
    parts = split_reaction(text)
    if len(parts) != 3:
        raise ValueError("not a reaction: expected reactants>>products")
    parser, remover = SmilesParserParams(), RemoveHsParameters()
    parser.removeHs, remover.removeMapped = False, False
    sides = []
    for name, part in zip(("reactants", "agents", "products"), parts, strict=True):
        if not part and name != "agents":
            raise ValueError(f"no {name}")
        molecule = MolFromSmiles(part, parser) if part else Mol()
        if molecule is None:
            raise ValueError(f"{name}: {_problem(part)}")
        sides.append(RemoveHs(molecule, remover))
    return sides[0], sides[1], sides[2]


def _condense(reactants: Any, agents: Any, products: Any) -> tuple[list[tuple[int, ...]], dict[Any, tuple[int, ...]]]:
    """The rows of the atoms and of the bonds, by their ends, of the condensed graph of a reaction.

    Atoms of both sides are the same if their map numbers are. Agents are on both sides.
    """
    maps, product_maps = _find_maps(reactants, "reactants"), _find_maps(products, "products")
    if not maps.keys() & product_maps.keys():
        raise ValueError(
            "no atom of the reactants has the map number of one of the products; map the atoms ([CH3:1]Br>>[CH3:1]O), "
            "for example with RXNMapper"
        )
    node_of = {product_maps[number]: maps[number] for number in product_maps.keys() & maps.keys()}
    for atom, node in node_of.items():
        old, now = reactants.GetAtomWithIdx(node), products.GetAtomWithIdx(atom)
        if (before := old.GetSymbol()) != (after := now.GetSymbol()):
            raise ValueError(f"atom {now.GetAtomMapNum()} is {before} in the reactants and {after} in the products")
    new = count(reactants.GetNumAtoms())
    product_nodes = [node_of[atom] if atom in node_of else next(new) for atom in range(products.GetNumAtoms())]
    unchanged = [next(new) for _ in range(agents.GetNumAtoms())]
    reactant_nodes = range(reactants.GetNumAtoms())
    atoms_before, bonds_before = _list_side([(reactants, reactant_nodes), (agents, unchanged)])
    atoms_after, bonds_after = _list_side([(products, product_nodes), (agents, unchanged)])
    bonds, reacting = {}, set()
    for ends in bonds_before | bonds_after:
        rows = bonds_before.get(ends), bonds_after.get(ends)
        change = _find_change(*rows, is_kept=any(end in atoms_before and end in atoms_after for end in ends))
        bonds[ends] = (*(rows[0] or (-1,) * 3), *(rows[1] or (-1,) * 3), change)
        reacting.update(ends if change > 0 else ())
    none, atoms = (-1,) * 9, []
    for node in range(next(new)):
        old, now = atoms_before.get(node, none), atoms_after.get(node, none)
        is_on_both = none not in (old, now)
        takes_part = node in reacting or (is_on_both and old[2:6] != now[2:6])  # degree, charge, hydrogens, radicals
        atoms.append((max(old[0], now[0]), *old[1:], *now[1:], int(takes_part)))
    return atoms, bonds


def _find_maps(side: Any, name: str) -> dict[int, int]:
    """The atom of each map number; ValueError where two have the same."""
    atoms: dict[int, int] = {}
    for atom in side.GetAtoms():
        if number := atom.GetAtomMapNum():
            if number in atoms:
                raise ValueError(f"atom map number {number} is there twice in the {name}")
            atoms[number] = atom.GetIdx()
    return atoms


def _list_side(molecules: Sequence[tuple[Any, Sequence[int]]]) -> tuple[dict[int, Any], dict[tuple[int, int], Any]]:
    """The columns of the atoms by node, and of the bonds by their nodes, of molecules with a node for each atom."""
    atoms, bonds = {}, {}
    for molecule, nodes in molecules:
        for atom in molecule.GetAtoms():
            kind = (
                atom.GetAtomicNum(), _relative_chirality(atom, nodes), atom.GetFormalCharge(), atom.GetTotalNumHs(),
                atom.GetNumRadicalElectrons(), atom.GetHybridization(), atom.GetIsAromatic(), atom.IsInRing(),
            )  # fmt: skip
            row = _atom_row(kind)
            atoms[nodes[atom.GetIdx()]] = (*row[:2], min(atom.GetTotalDegree(), 11), *row[3:])
        for bond in molecule.GetBonds():
            i, j = sorted((nodes[bond.GetBeginAtomIdx()], nodes[bond.GetEndAtomIdx()]))
            bonds[i, j] = _bond_row((bond.GetBondType(), bond.GetStereo(), bond.GetIsConjugated()))
    return atoms, bonds


def _relative_chirality(atom: Any, nodes: Sequence[int]) -> int:
    """The chirality by the order of the neighbours' nodes, which both sides share, in place of that of the bonds."""
    tag = int(atom.GetChiralTag())
    order = [nodes[bond.GetOtherAtomIdx(atom.GetIdx())] for bond in atom.GetBonds()]
    return 3 - tag if tag in (1, 2) and sum(a > b for a, b in combinations(order, 2)) % 2 else tag


def _find_change(old: tuple[int, ...] | None, now: tuple[int, ...] | None, *, is_kept: bool) -> int:
    """Whether a bond is kept, broken, formed or changed; -1 where neither of its atoms ``is_kept`` on both sides."""
    if old and now:
        return 0 if old[0] == now[0] else 3
    return -1 if not is_kept else 1 if old else 2


def _atom_row(kind: tuple[Any, ...]) -> tuple[int, ...]:
    """The last category of a column is whatever its others are not. The degree is left at 0."""
    number, chirality, charge, hydrogens, radicals, hybrid, is_aromatic, is_in_ring = kind
    return (
        number - 1 if 1 <= number <= 118 else 118,
        min(int(chirality), 4),
        0,
        charge + 5 if -5 <= charge <= 5 else 11,
        min(hydrogens, 9),
        min(radicals, 5),
        _index(_HYBRIDS, hybrid.name, 5),
        is_aromatic,
        is_in_ring,
    )


def _bond_row(kind: tuple[Any, ...]) -> tuple[int, ...]:
    bond_type, stereo, is_conjugated = kind
    return _index(_BOND_TYPES, bond_type.name, 4), _index(_STEREO, stereo.name, 5), is_conjugated


def _index(names: tuple[str, ...], name: str, otherwise: int) -> int:
    return names.index(name) if name in names else otherwise


def _refusal(text: str) -> str | None:
    """Why RDKit is not even asked."""
    if not text.strip():
        return "no SMILES"
    if len(text) > MAX_SMILES_LENGTH:
        return f"{len(text):,} characters; SMILES of up to {MAX_SMILES_LENGTH:,} are read"
    if not text.isascii():
        return f"not a SMILES: {next(c for c in text if not c.isascii())!r} is in it"
    rest = text.split(maxsplit=1)[1:]
    if rest and not rest[0].startswith("|"):
        return "more than a SMILES: there is something after a space"
    return None


def _problem(text: str) -> str:
    """What RDKit finds wrong."""
    from rdkit.Chem import DetectChemistryProblems, MolFromSmiles

    unchecked, problems = MolFromSmiles(text, sanitize=False), []
    if unchecked is None:
        return "an InChI, not a SMILES" if text.startswith("InChI=") else "not a SMILES"
    with suppress(RuntimeError):  # RDKit trips over some of what it is to explain
        problems = [" ".join(problem.Message().split()) for problem in DetectChemistryProblems(unchecked)]
    return problems[0] if problems else "no molecule"


def scaffolds(smiles: Sequence[str]) -> dict[str, Any]:
    """``scaffolds``: the Bemis-Murcko scaffold of each molecule, as SMILES: its rings and what joins them.

    A very large molecule with rings is its own."""
    from rdkit.Chem import MolFromSmiles, MolToSmiles
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles
    from rdkit.rdBase import BlockLogs

    def find_scaffold(molecule: Any) -> str:
        if molecule.GetNumAtoms() <= _MAX_SCAFFOLD_ATOMS:
            return MurckoScaffoldSmiles(mol=molecule, includeChirality=True)
        return MolToSmiles(molecule) if molecule.GetRingInfo().NumRings() else ""

    with BlockLogs():
        return {"scaffolds": [find_scaffold(MolFromSmiles(text)) for text in smiles]}


def canonical_smiles(smiles: Sequence[str]) -> dict[str, Any]:
    """``keys``: the canonical SMILES of each molecule without salts, by which duplicates are found.

    Salts and counter-ions of RDKit's list are removed and what is left, or a charged molecule by itself, is
    neutralised, unless it has no carbon. Reactions stay as they are.
    """
    from rdkit.Chem import MolFromSmiles, MolToSmiles
    from rdkit.Chem.MolStandardize.rdMolStandardize import Uncharger
    from rdkit.Chem.SaltRemover import SaltRemover
    from rdkit.rdBase import BlockLogs

    remover, uncharger, keys = SaltRemover(), Uncharger(), []
    with BlockLogs():
        for text in smiles:
            if len(sides := split_reaction(text)) > 1:
                keys.append(">".join(MolToSmiles(MolFromSmiles(side)) for side in sides))
                continue
            molecule = MolFromSmiles(text)
            if "." in text or "+" in text or "-" in text:
                stripped = remover.StripMol(molecule, dontRemoveEverything=True) if "." in text else molecule
                if any(atom.GetAtomicNum() == 6 for atom in stripped.GetAtoms()):
                    molecule = uncharger.uncharge(stripped)
            keys.append(MolToSmiles(molecule))
    return {"keys": keys}


def fingerprints(smiles: Sequence[str]) -> dict[str, Any]:
    """``bits``: the Morgan fingerprint of each molecule (radius 2, 1024 bits), eight bits a byte."""
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
    from rdkit.rdBase import BlockLogs

    generator = GetMorganGenerator(radius=2, fpSize=1024)
    with BlockLogs():
        bits = [generator.GetFingerprintAsNumPy(MolFromSmiles(text)) for text in smiles]
    return {"bits": np.packbits(np.array(bits, np.uint8).reshape(-1, 1024), axis=1)}


FUNCTIONS: dict[str, Callable[[Sequence[str]], dict[str, Any]]] = {
    function.__name__: function for function in (graph_rows, reaction_rows, scaffolds, canonical_smiles, fingerprints)
}


def send(pipe: IO[bytes], message: dict[str, Any]) -> None:
    """A line of JSON, and after it what is an array, as NumPy's own format."""
    arrays = {name: value for name, value in message.items() if isinstance(value, np.ndarray)}
    block = io.BytesIO()
    np.savez(block, allow_pickle=False, **arrays)
    plain = {name: value for name, value in message.items() if name not in arrays}
    pipe.write(json.dumps([len(block.getbuffer()), plain]).encode() + b"\n")
    pipe.write(block.getbuffer())
    pipe.flush()


def receive(pipe: IO[bytes]) -> dict[str, Any]:
    """What ``send`` sent; EOFError where nothing more, or only a part, comes."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    size, plain = json.loads(line)
    block = pipe.read(size)
    if len(block) < size:
        raise EOFError
    with np.load(io.BytesIO(block), allow_pickle=False) as arrays:
        return {**plain, **arrays}


if __name__ == "__main__":
    with suppress(EOFError):  # the pipe was closed
        while True:
            request = receive(sys.stdin.buffer)
            send(sys.stdout.buffer, FUNCTIONS[request["function"]](request["smiles"]))
