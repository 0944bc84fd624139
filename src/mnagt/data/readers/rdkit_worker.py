"""OGB's featuriser with RDKit: nine columns of atoms and three of bonds.

Neither torch nor the rest of the package is imported here: run as a script, this file is a worker that reads
requests from its standard input and writes results to its standard output, and it starts at once.
"""

import io
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import IO, Any

import numpy as np

MAX_SMILES_LENGTH = 10_000
"""Characters of a SMILES. RDKit takes minutes, and then days, over longer ones that nest deeply."""

_HYBRIDS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
_BOND_TYPES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")


def graph_rows(smiles: Sequence[str]) -> dict[str, Any]:
    """The molecules as flat tables, and why some are refused.

    ``sizes`` and ``bond_counts`` have a number a molecule, 0 atoms where it is refused; ``atoms``, ``bonds`` and
    ``ends`` (the first and last atom of each bond) have the rows of all, end to end. ``reasons`` are pairs of a row
    and why it is refused.
    """
    from rdkit.Chem import Atom, Bond, MolFromSmiles
    from rdkit.rdBase import BlockLogs

    # RDKit is asked for one atom at a time, so this is where the time goes: each kind of atom or bond gets a
    # number when it first occurs, and only kinds are translated into columns.
    atom_kinds, bond_kinds = (defaultdict[tuple, int](count().__next__) for _ in range(2))
    number, chirality, degree = Atom.GetAtomicNum, Atom.GetChiralTag, Atom.GetTotalDegree
    charge, hydrogens, radicals = Atom.GetFormalCharge, Atom.GetTotalNumHs, Atom.GetNumRadicalElectrons
    hybrid, is_aromatic, is_in_ring = Atom.GetHybridization, Atom.GetIsAromatic, Atom.IsInRing
    kind, stereo, is_conjugated = Bond.GetBondType, Bond.GetStereo, Bond.GetIsConjugated
    first, last = Bond.GetBeginAtomIdx, Bond.GetEndAtomIdx

    atoms, bonds, ends = [], [], []
    sizes, bond_counts, reasons = np.zeros(len(smiles), np.int64), np.zeros(len(smiles), np.int64), []
    with BlockLogs():
        for row, text in enumerate(smiles):
            reason = _refusal(text)
            molecule = None if reason else MolFromSmiles(text)
            if molecule is None or not molecule.GetNumAtoms():
                reasons.append((row, reason or _problem(text)))
                continue
            sizes[row], bond_counts[row] = molecule.GetNumAtoms(), molecule.GetNumBonds()
            atoms += [
                atom_kinds[
                    number(a), chirality(a), degree(a), charge(a), hydrogens(a),
                    radicals(a), hybrid(a), is_aromatic(a), is_in_ring(a),
                ]
                for a in map(molecule.GetAtomWithIdx, range(sizes[row]))
            ]  # fmt: skip
            for b in map(molecule.GetBondWithIdx, range(bond_counts[row])):
                bonds.append(bond_kinds[kind(b), stereo(b), is_conjugated(b)])
                ends += first(b), last(b)
    return {
        "sizes": sizes,
        "bond_counts": bond_counts,
        "atoms": np.array([*map(_atom_row, atom_kinds)], np.int8).reshape(-1, 9)[atoms],
        "bonds": np.array([*map(_bond_row, bond_kinds)], np.int8).reshape(-1, 3)[bonds],
        "ends": np.array(ends, np.int32).reshape(-1, 2),
        "reasons": reasons,
    }


def _atom_row(kind: tuple[Any, ...]) -> tuple[int, ...]:
    """The last category of a column is whatever its others are not."""
    number, chirality, degree, charge, hydrogens, radicals, hybrid, is_aromatic, is_in_ring = kind
    return (
        number - 1 if 1 <= number <= 118 else 118,
        min(int(chirality), 4),
        min(degree, 11),
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

    unchecked = MolFromSmiles(text, sanitize=False)
    if unchecked is None:
        return "not a SMILES"
    try:
        problems = [" ".join(problem.Message().split()) for problem in DetectChemistryProblems(unchecked)]
    except RuntimeError:  # RDKit trips over some of what it is to explain
        problems = []
    return problems[0] if problems else "no molecule"


def scaffolds(smiles: Sequence[str]) -> dict[str, Any]:
    """``scaffolds``: the Bemis-Murcko scaffold of each molecule, as SMILES: its rings and what joins them."""
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        found = [MurckoScaffoldSmiles(mol=MolFromSmiles(text), includeChirality=True) for text in smiles]
    return {"scaffolds": found}


def canonical_smiles(smiles: Sequence[str]) -> dict[str, Any]:
    """``keys``: the canonical SMILES of each molecule without salts, by which duplicates are found.

    Salts and counter-ions of RDKit's list are removed and what is left is neutralised, unless no carbon is left.
    """
    from rdkit.Chem import MolFromSmiles, MolToSmiles
    from rdkit.Chem.MolStandardize.rdMolStandardize import Uncharger
    from rdkit.Chem.SaltRemover import SaltRemover
    from rdkit.rdBase import BlockLogs

    remover, uncharger, keys = SaltRemover(), Uncharger(), []
    with BlockLogs():
        for text in smiles:
            molecule = MolFromSmiles(text)
            if "." in text:
                stripped = remover.StripMol(molecule, dontRemoveEverything=True)
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
    function.__name__: function for function in (graph_rows, scaffolds, canonical_smiles, fingerprints)
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
