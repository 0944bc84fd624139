"""Molecules from SMILES: graphs with the columns of OGB's featuriser, and the split by scaffold. Needs RDKit.

A salt is one graph of several components. Hydrogens are counted on their atoms and are no nodes, unless the SMILES has
``[H]`` where RDKit keeps it.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers import rdkit_worker
from mnagt.data.readers.ogb import Links, pack_molecules
from mnagt.data.splits import Split, ordered_group_split
from mnagt.errors import InputError
from mnagt.graphs.molecules import MOLECULES

VERSION = "smiles-1"
"""Changes whenever the same SMILES would give another graph."""

FEATURES = MOLECULES
"""The columns of these graphs. A model that reads these columns can predict from SMILES."""

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


@dataclass(frozen=True, eq=False)
class Molecules:
    """SMILES as graphs."""

    graphs: PackedDataset
    """The molecules that could be read, without targets."""
    kept: Int[Tensor, "graphs"]
    """The row of each graph, counted from 0."""
    refused: tuple[RefusedRow, ...]


def read_smiles(smiles: Sequence[str], *, name: str = "these molecules", workers: int | None = None) -> Molecules:
    """Convert SMILES to graphs with OGB's atom and bond columns.

    Args:
        smiles: The molecules.
        name: The name of the data set.
        workers: Processes that read many molecules; one a core by default.

    Returns:
        The graphs, and those SMILES that RDKit cannot read or that have over ``rdkit_worker.MAX_SMILES_LENGTH``
        characters.

    >>> from mnagt import read_smiles
    >>> read_smiles(["CCO", "c1ccccc1"]).graphs.sizes.tolist()
    [3, 6]
    """
    smiles = [" ".join(text.split()) for text in smiles]
    parts, done, spoken = [], 0, time.monotonic()
    for part in run_rdkit("graph_rows", smiles, workers):
        parts.append(part)
        done += len(part["sizes"])
        if time.monotonic() - spoken > _SECONDS_BETWEEN_REPORTS:
            spoken = time.monotonic()
            _log.info("%s: %s of %s molecules read", name, f"{done:,}", f"{len(smiles):,}")
    return pack_parts(name, smiles, parts)


def pack_parts(name: str, smiles: Sequence[str], parts: Sequence[Mapping[str, Any]]) -> Molecules:
    """The molecules that ``rdkit_worker.graph_rows`` read from ``smiles``, a part after the other."""
    starts = np.cumsum([0, *(len(part["sizes"]) for part in parts)])
    reasons: dict[int, str] = {
        int(at) + row: why for at, part in zip(starts, parts, strict=False) for row, why in part["reasons"]
    }
    sizes, bond_counts, bonds = (_concatenate(parts, field) for field in ("sizes", "bond_counts", "bonds"))
    kept = np.flatnonzero(sizes)
    links = Links(_concatenate(parts, "ends"), bond_counts[kept], forward=bonds, backward=bonds)
    graphs = pack_molecules(name, sizes[kept], _concatenate(parts, "atoms"), links)
    texts = np.frombuffer("\n".join(smiles[row] for row in kept.tolist()).encode(), np.uint8).copy()
    return Molecules(
        replace(graphs, texts=torch.from_numpy(texts)),
        torch.from_numpy(kept),
        tuple(RefusedRow(row, smiles[row], why) for row, why in reasons.items()),
    )


def _concatenate(parts: Sequence[Mapping[str, Any]], field: str) -> np.ndarray:
    return np.concatenate([part[field] for part in parts])


def get_smiles(dataset: PackedDataset) -> list[str]:
    """The SMILES that the graphs were made from."""
    if dataset.texts is None:
        raise InputError(f"{dataset.name}: its graphs were not made from SMILES; choose a table of molecules")
    return dataset.texts.cpu().numpy().tobytes().decode().split("\n") if len(dataset) else []


def find_scaffolds(smiles: Sequence[str], *, workers: int | None = None) -> list[str]:
    """The Bemis-Murcko scaffold of each molecule, as SMILES.

    >>> find_scaffolds(["Cc1ccccc1", "CCO"])
    ['c1ccccc1', '']
    """
    return [each for part in run_rdkit("scaffolds", smiles, workers) for each in part["scaffolds"]]


def scaffold_split(
    smiles: Sequence[str], shares: tuple[float, float, float] = (0.8, 0.1, 0.1), *, workers: int | None = None
) -> Split:
    """Molecules with the same Bemis-Murcko scaffold stay together: the official split of OGB's molecules."""
    return ordered_group_split(find_scaffolds(smiles, workers=workers), shares)


def find_duplicates(smiles: Sequence[str], *, workers: int | None = None) -> Int[Tensor, "molecules"]:
    """The index of the first molecule that is the same as each: with the same canonical SMILES after salts.

    >>> find_duplicates(["CCO", "CC(=O)O", "OCC", "CC(=O)[O-].[Na+]"]).tolist()
    [0, 1, 0, 1]
    """
    first: dict[str, int] = {}
    keys = [key for part in run_rdkit("canonical_smiles", smiles, workers) for key in part["keys"]]
    return torch.tensor([first.setdefault(key, index) for index, key in enumerate(keys)], dtype=torch.long)


def rdkit_version() -> str:
    """The version of RDKit, or an error that says how to get it."""
    try:
        from rdkit import __version__
    except ImportError:
        raise InputError("molecules need RDKit, which is not installed: pip install 'mnagt[molecules]'") from None
    return __version__


def run_rdkit(name: str, smiles: Sequence[str], workers: int | None = None) -> Iterator[dict[str, Any]]:
    """The results of a function of ``rdkit_worker``, a chunk of molecules at a time and in order."""
    rdkit_version()
    chunks = [smiles[at : at + _CHUNK] for at in range(0, len(smiles), _CHUNK)] or [smiles]
    if workers is None:
        workers = (os.cpu_count() or 1) if len(smiles) > _ONE_PROCESS else 1
    workers = min(workers, len(chunks))
    if workers < 2:
        yield from map(rdkit_worker.FUNCTIONS[name], chunks)
        return
    with ExitStack() as started:
        idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for _ in range(workers):
            idle.put(started.enter_context(start_worker()))

        def run(chunk: Sequence[str]) -> dict[str, Any]:
            worker = idle.get()
            assert worker.stdin is not None
            assert worker.stdout is not None
            try:
                rdkit_worker.send(worker.stdin, {"function": name, "smiles": chunk})
                return rdkit_worker.receive(worker.stdout)
            except (EOFError, OSError, ValueError):
                raise InputError(
                    f"RDKit's process ended with status {worker.wait()} on a molecule between {chunk[0][:60]!r} and "
                    f"{chunk[-1][:60]!r}; leave it out"
                ) from None
            finally:
                idle.put(worker)

        pool = started.enter_context(ThreadPoolExecutor(workers))
        yield from pool.map(run, chunks)


def start_worker() -> subprocess.Popen[bytes]:
    """A plain process: one of ``multiprocessing`` would run the user's script once more, or fork PyTorch.

    A Ctrl-C is not for it; it ends when its pipe is closed.
    """
    command = [sys.executable, "-P", rdkit_worker.__file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
