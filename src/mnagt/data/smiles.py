"""Molecules from SMILES: graphs with the columns of OGB's featuriser, and the split by scaffold. Needs RDKit.

A salt is one graph of several pieces. Hydrogens are counted on their atoms and are no nodes, unless the SMILES says
``[H]`` where RDKit keeps it.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data import atoms
from mnagt.data.ogb import ATOMS, BONDS, Links, packed
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split, grouped_split
from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.tasks import Unasked

VERSION = "smiles-1"
"""Changes whenever the same SMILES would give another graph."""

FEATURES = Features(Columns(ATOMS), Columns(BONDS))
"""What these graphs carry. A model that reads just this can be asked about SMILES."""

_CHUNK = 1000
_ALONE = 4000
"""Molecules up to which processes take longer to start than they save."""
_SECONDS_BETWEEN_REPORTS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refused:
    """A row that gives no graph."""

    row: int
    """Counted from 0."""
    smiles: str
    reason: str


@dataclass(frozen=True, eq=False)
class Molecules:
    """What became of some SMILES."""

    graphs: PackedDataset
    """Of the molecules that could be read, without targets."""
    kept: Int[Tensor, "graphs"]
    """The row of each graph, counted from 0."""
    refused: tuple[Refused, ...]


def molecules(smiles: Sequence[str], *, name: str = "these molecules", workers: int | None = None) -> Molecules:
    """The graphs of these SMILES.

    Many are read by several processes: ``workers``, or one a core. What RDKit cannot read, or would take forever to
    (over ``atoms.LONGEST`` characters), is left out and reported.
    """
    smiles = [" ".join(text.split()) for text in smiles]
    parts, reasons, done, spoken = [], {}, 0, time.monotonic()
    for part in _answers("graph_rows", smiles, workers):
        parts.append(part)
        reasons |= {done + place: why for place, why in part["reasons"]}
        done += len(part["sizes"])
        if time.monotonic() - spoken > _SECONDS_BETWEEN_REPORTS:
            spoken = time.monotonic()
            _log.info("%s: %s of %s molecules read", name, f"{done:,}", f"{len(smiles):,}")
    sizes, bond_counts, bonds = (_joined(parts, field) for field in ("sizes", "bond_counts", "bonds"))
    kept = np.flatnonzero(sizes)
    graphs = packed(
        name,
        Unasked(),
        torch.zeros(len(kept), 0),
        sizes[kept],
        _joined(parts, "atoms"),
        [Links(_joined(parts, "ends"), bond_counts[kept], there=bonds, back=bonds)],
        {"node_labels": ATOMS, "edge_labels": BONDS},
    )
    texts = np.frombuffer("\n".join(smiles[row] for row in kept.tolist()).encode(), np.uint8).copy()
    return Molecules(
        replace(graphs, texts=torch.from_numpy(texts)),
        torch.from_numpy(kept),
        tuple(Refused(row, smiles[row], why) for row, why in reasons.items()),
    )


def _joined(parts: list[dict[str, Any]], field: str) -> np.ndarray:
    return np.concatenate([part[field] for part in parts])


def smiles_of(dataset: PackedDataset) -> list[str]:
    """The SMILES that the graphs were made from."""
    if dataset.texts is None:
        raise InputError(f"{dataset.name}: its graphs were not made from SMILES; choose a table of molecules")
    return dataset.texts.cpu().numpy().tobytes().decode().split("\n") if len(dataset) else []


def scaffold_split(
    smiles: Sequence[str], shares: tuple[float, float, float] = (0.8, 0.1, 0.1), *, workers: int | None = None
) -> Split:
    """Molecules with the same Bemis-Murcko scaffold stay together: the official split of OGB's molecules."""
    return grouped_split(
        [each for part in _answers("scaffolds", smiles, workers) for each in part["scaffolds"]], shares
    )


def rdkit_version() -> str:
    """The version of RDKit, or an error that says how to get it."""
    try:
        from rdkit import __version__
    except ImportError:
        raise InputError("molecules need RDKit, which is not installed: pip install 'mnagt[molecules]'") from None
    return __version__


def _answers(name: str, smiles: Sequence[str], workers: int | None) -> Iterator[dict[str, Any]]:
    """What ``atoms`` answers, a chunk of molecules at a time and in order."""
    rdkit_version()
    chunks = [smiles[at : at + _CHUNK] for at in range(0, len(smiles), _CHUNK)] or [smiles]
    if workers is None:
        workers = (os.cpu_count() or 1) if len(smiles) > _ALONE else 1
    workers = min(workers, len(chunks))
    if workers < 2:
        yield from map(atoms.ANSWERS[name], chunks)
        return
    with ExitStack() as started:
        idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for _ in range(workers):
            idle.put(started.enter_context(_worker()))

        def ask(chunk: Sequence[str]) -> dict[str, Any]:
            worker = idle.get()
            assert worker.stdin is not None
            assert worker.stdout is not None
            try:
                atoms.send(worker.stdin, {"what": name, "smiles": chunk})
                return atoms.receive(worker.stdout)
            except (EOFError, OSError, ValueError):
                raise InputError(
                    f"RDKit's process ended with status {worker.wait()} on a molecule between {chunk[0][:60]!r} and "
                    f"{chunk[-1][:60]!r}; leave it out"
                ) from None
            finally:
                idle.put(worker)

        pool = started.enter_context(ThreadPoolExecutor(workers))
        yield from pool.map(ask, chunks)


def _worker() -> subprocess.Popen[bytes]:
    """A plain process: one of ``multiprocessing`` would run the user's script once more, or fork PyTorch.

    A Ctrl-C is not for it; it ends when its pipe is closed.
    """
    command = [sys.executable, "-P", atoms.__file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
