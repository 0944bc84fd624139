"""Molecules from SMILES: graphs with the columns of OGB's featuriser, and the split by scaffold. Needs RDKit.

A salt is one graph of several fragments, and a row of several components is one graph, too. Hydrogens are counted on
their atoms and are no nodes, unless the SMILES has ``[H]`` where RDKit keeps it.
"""

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers import rdkit_worker
from mnagt.data.readers.molecule_reader import MoleculeReader, rdkit_version
from mnagt.data.readers.ogb import Links, pack_molecules
from mnagt.data.readers.rdkit_worker import split_reaction
from mnagt.data.splits import Split, ordered_group_split
from mnagt.errors import InputError, count, quote
from mnagt.graphs.molecules import MOLECULES, MoleculeFormat

VERSION = "smiles-1"
"""Changes whenever the same SMILES would give another graph."""

FEATURES = MOLECULES
"""The columns of molecules. A model that reads these columns, and no component, can predict from SMILES."""

SEPARATOR = "\t"
"""Between the SMILES of a row of several components."""

_UNREAD = {
    "isotopes, which are read as the common ones": re.compile(r"\[\d+[A-Za-z]"),
    "wildcards (*), which are read as an unknown element": re.compile(r"\*"),
}
_CHUNK = 1000
_ONE_PROCESS = 4000
"""Molecules up to which processes take longer to start than they save."""
_SECONDS_BETWEEN_REPORTS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RefusedRow:
    """A row that gives no graph."""

    row: int
    """Counted from 0."""
    smiles: str
    reason: str
    component: int | None = None
    """Which of several components cannot be read, counted from 0."""

    def explain(self, columns: Sequence[str] = ()) -> str:
        """The reason, and in which of several components or ``columns`` it lies.

        >>> RefusedRow(0, "CCO", "not a SMILES", component=1).explain(["solute", "solvent"])
        "column 'solvent': not a SMILES"
        """
        if self.component is None:
            return self.reason
        where = f"column {quote(columns[self.component])}" if columns else f"component {self.component + 1}"
        return f"{where}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Molecules:
    """SMILES as graphs."""

    graphs: PackedDataset
    """The molecules that could be read, without targets."""
    kept: Int[Tensor, "graphs"]
    """The row of each graph, counted from 0."""
    refused: tuple[RefusedRow, ...]


def read_smiles(
    smiles: Sequence[str | Sequence[str]],
    *,
    name: str = "these molecules",
    workers: int | None = None,
    row_format: MoleculeFormat | None = None,
    parts: Iterable[Mapping[str, Any]] | None = None,
) -> Molecules:
    """Convert SMILES to graphs with OGB's atom and bond columns.

    Args:
        smiles: The molecules. A tuple or list of SMILES is a row of several components.
        name: The name of the data set.
        workers: Processes that read many molecules; one a core by default.
        row_format: What each row has to hold; by default as many SMILES as the first, or a reaction if most are.
        parts: What RDKit has read of all SMILES, by the function that ``get_function`` names; by default they are read
            now.

    Returns:
        The graphs, and those SMILES that RDKit cannot read or that have over ``rdkit_worker.MAX_SMILES_LENGTH``
        characters. A row of several components is one graph, whose last node column is the component. A reaction
        (``reactants>>products``) is its condensed graph, with the columns ``REACTIONS``.

    >>> from mnagt import read_smiles
    >>> read_smiles(["CCO", "c1ccccc1"]).graphs.sizes.tolist()
    [3, 6]
    >>> read_smiles([("CCO", "O")]).graphs.node_labels[:, -1].tolist()
    [0, 0, 0, 1]
    """
    cells = [[" ".join(text.split()) for text in ([row] if isinstance(row, str) else row)] for row in smiles]
    row_format = row_format or guess_format(cells)
    count = row_format.components
    wrong = {row: f"{len(each)} SMILES where {count} belong" for row, each in enumerate(cells) if len(each) != count}
    texts = [text for row, each in enumerate(cells) for text in ([""] * count if row in wrong else each)]
    if parts is None:
        parts = _report(run_rdkit(get_function(row_format), texts, workers), name, len(texts))
    flat, reasons = _join_parts(parts)
    if not row_format.is_reaction:
        reasons |= {text: "a reaction where a molecule belongs" for text in reasons if is_reaction(texts[text])}
    flat, kept = _join_components(flat, count)
    refused = []
    for row in sorted({text // count for text in reasons}):
        text = next(text for text in range(row * count, (row + 1) * count) if text in reasons)
        component = text % count if count > 1 and row not in wrong else None
        refused.append(RefusedRow(row, SEPARATOR.join(cells[row]), wrong.get(row, reasons[text]), component))
    links = Links(flat.ends, flat.bond_counts, forward=flat.bonds, backward=flat.bonds)
    graphs = pack_molecules(name, flat.sizes, flat.atoms, links, row_format.features)
    lines = "\n".join(SEPARATOR.join(cells[row]) for row in kept.tolist()).encode()
    texts_of_rows = torch.from_numpy(np.frombuffer(lines, np.uint8).copy())
    return Molecules(replace(graphs, texts=texts_of_rows), torch.from_numpy(kept), tuple(refused))


class FlatMolecules(NamedTuple):
    """The tables of ``rdkit_worker.graph_rows``."""

    sizes: NDArray[np.integer]
    bond_counts: NDArray[np.integer]
    atoms: NDArray[np.integer]
    bonds: NDArray[np.integer]
    ends: NDArray[np.integer]


def guess_format(rows: Sequence[Sequence[str]]) -> MoleculeFormat:
    """The format of rows of SMILES: as many components as the first has, or reactions if most rows are.

    >>> guess_format([["[CH3:1]Br>>[CH3:1]O"]]).is_reaction
    True
    """
    components = len(rows[0]) if rows else 1
    reactions = sum(is_reaction(row[0]) for row in rows if len(row) == 1)
    return MoleculeFormat(components, is_reaction=components == 1 and 2 * reactions > len(rows))


def get_function(row_format: MoleculeFormat) -> str:
    """The function of ``rdkit_worker`` that reads rows of this format."""
    return "reaction_rows" if row_format.is_reaction else "graph_rows"


def _report(parts: Iterable[dict[str, Any]], name: str, total: int) -> Iterator[dict[str, Any]]:
    """The parts as they come. What takes long says how far it is."""
    done, last_report = 0, time.monotonic()
    for part in parts:
        yield part
        done += len(part["sizes"])
        if time.monotonic() - last_report > _SECONDS_BETWEEN_REPORTS:
            last_report = time.monotonic()
            _log.info("%s: %s of %s molecules read", name, f"{done:,}", f"{total:,}")


def join_molecules(parts: Iterable[Mapping[str, Any]], components: int) -> FlatMolecules:
    """The tables of all rows, each of so many molecules, which RDKit could read."""
    return _join_components(_join_parts(parts)[0], components)[0]


def _join_parts(parts: Iterable[Mapping[str, Any]]) -> tuple[FlatMolecules, dict[int, str]]:
    """The atoms and bonds of all SMILES, and why some are refused."""
    all_parts, reasons, done = [], {}, 0
    for part in parts:
        all_parts.append(part)
        reasons |= {done + row: why for row, why in part["reasons"]}
        done += len(part["sizes"])
    return FlatMolecules(
        *(np.concatenate([part[field] for part in all_parts]) for field in FlatMolecules._fields)
    ), reasons


def _join_components(parts: FlatMolecules, count: int) -> tuple[FlatMolecules, NDArray[np.integer]]:
    """The molecules, ``count`` of which are a row, as a graph for each row whose molecules could all be read.

    Also the rows that could. Atoms get a last column, the component, where there are several.
    """
    is_read = (parts.sizes > 0).reshape(-1, count).all(axis=1)
    kept = np.flatnonzero(is_read)
    sizes, bond_counts = (each.reshape(-1, count)[kept] for each in (parts.sizes, parts.bond_counts))
    if count == 1:
        return parts._replace(sizes=sizes[:, 0], bond_counts=bond_counts[:, 0]), kept
    is_kept = np.repeat(is_read, count)
    has_atom, has_bond = np.repeat(is_kept, parts.sizes), np.repeat(is_kept, parts.bond_counts)
    component = np.repeat(np.tile(np.arange(count), len(kept)), sizes.ravel())
    component = component.astype(np.min_scalar_type(-count))
    first = np.repeat((sizes.cumsum(axis=1) - sizes).ravel(), bond_counts.ravel())
    joined = FlatMolecules(
        sizes.sum(axis=1),
        bond_counts.sum(axis=1),
        np.column_stack([parts.atoms[has_atom], component]),
        parts.bonds[has_bond],
        parts.ends[has_bond] + first[:, None].astype(parts.ends.dtype),
    )
    return joined, kept


def describe_unread(smiles: Sequence[str]) -> list[str]:
    """A line for each thing in SMILES of molecules that the graphs do not tell apart.

    >>> describe_unread(["CCO", "[13CH4]", "*CC", "CC*"])[1]
    "2 molecules have wildcards (*), which are read as an unknown element: '*CC'"
    """
    lines = []
    for what, pattern in _UNREAD.items():
        if found := [text for text in smiles if pattern.search(text)]:
            has = "has" if len(found) == 1 else "have"
            lines.append(f"{count(len(found), 'molecule')} {has} {what}: {quote(found[0])}")
    return lines


def get_smiles(dataset: PackedDataset) -> list[str]:
    """The SMILES that the graphs were made from, with ``SEPARATOR`` between those of a row."""
    if dataset.texts is None:
        raise InputError(f"{dataset.name}: its graphs were not made from SMILES; choose a table of molecules")
    return dataset.texts.cpu().numpy().tobytes().decode().split("\n") if len(dataset) else []


def find_scaffolds(smiles: Sequence[str], *, workers: int | None = None) -> list[str]:
    """The Bemis-Murcko scaffold of each molecule, as SMILES: of the first component, or of the reactants.

    >>> find_scaffolds(["Cc1ccccc1", "CCO"])
    ['c1ccccc1', '']
    """
    return [each for part in run_rdkit("scaffolds", first_components(smiles), workers) for each in part["scaffolds"]]


def first_components(smiles: Sequence[str]) -> list[str]:
    """The molecules by which rows are split: the first component of each, and the reactants of a reaction."""
    first = [text.split(SEPARATOR)[0] for text in smiles]
    return [_remove_maps(split_reaction(text)[0]) if is_reaction(text) else text for text in first]


def _remove_maps(smiles: str) -> str:
    """The SMILES without map numbers."""
    return re.sub(r":\d+\]", "]", smiles)


def is_reaction(text: str) -> bool:
    """Whether a text is of the form ``reactants>agents>products``."""
    return ">" in text and len(split_reaction(text)) > 1


def scaffold_split(
    smiles: Sequence[str], shares: tuple[float, float, float] = (0.8, 0.1, 0.1), *, workers: int | None = None
) -> Split:
    """Molecules with the same Bemis-Murcko scaffold stay together: the official split of OGB's molecules."""
    return ordered_group_split(find_scaffolds(smiles, workers=workers), shares)


def find_duplicates(smiles: Sequence[str], *, workers: int | None = None) -> Int[Tensor, "molecules"]:
    """The index of the first molecule that is the same as each: with the same canonical SMILES after salts.

    Rows of several components are the same if all components are.

    >>> find_duplicates(["CCO", "CC(=O)O", "OCC", "CC(=O)[O-].[Na+]"]).tolist()
    [0, 1, 0, 1]
    """
    first: dict[tuple[str, ...], int] = {}
    rows = [text.split(SEPARATOR) for text in smiles]
    texts = [_remove_maps(text) if is_reaction(text) else text for row in rows for text in row]
    keys = (key for part in run_rdkit("canonical_smiles", texts, workers) for key in part["keys"])
    firsts = [first.setdefault(tuple(islice(keys, len(row))), index) for index, row in enumerate(rows)]
    return torch.tensor(firsts, dtype=torch.long)


def run_rdkit(name: str, smiles: Sequence[str], workers: int | None = None) -> Iterator[dict[str, Any]]:
    """The results of a function of ``rdkit_worker``, some molecules at a time and in order.

    A molecule that ends its process is refused, if there are several processes.
    """
    rdkit_version()
    chunks = [smiles[at : at + _CHUNK] for at in range(0, len(smiles), _CHUNK)] or [smiles]
    if workers is None:
        workers = (os.cpu_count() or 1) if len(smiles) > _ONE_PROCESS else 1
    workers = min(workers, len(chunks))
    if workers < 2:
        yield from map(rdkit_worker.FUNCTIONS[name], chunks)
        return
    with ExitStack() as started:
        idle: SimpleQueue[MoleculeReader] = SimpleQueue()
        for _ in range(workers):
            idle.put(started.enter_context(MoleculeReader()))

        def run(chunk: Sequence[str]) -> list[dict[str, Any]]:
            reader = idle.get()
            try:
                reader.send(chunk, name)
                return reader.receive()
            finally:
                idle.put(reader)

        pool = started.enter_context(ThreadPoolExecutor(workers))
        for parts in pool.map(run, chunks):
            yield from parts
