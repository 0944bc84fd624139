"""Data sets from tables of molecules, one molecule a row.

The SMILES column is found by its name and the task by the values of the target columns. Rows that give no graph or have
no target are left out and reported, with their lines.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data import cache
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import VERSION, RefusedRow, get_smiles, rdkit_version, read_smiles
from mnagt.data.readers.text_table import Table, read_table, read_targets
from mnagt.errors import InputError
from mnagt.tasks import Task

_MAX_LOGGED = 10
"""Rows left out that the log names one by one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class MoleculeTable:
    """A table of molecules as a data set."""

    dataset: PackedDataset
    table: Table
    smiles: str
    """The column of SMILES."""
    targets: tuple[str, ...]
    """The target columns."""
    kept: Int[Tensor, "graphs"]
    """The row of each graph, counted from 0."""
    refused: tuple[RefusedRow, ...]
    """The other rows, in order."""

    def __str__(self) -> str:
        """The rows left out, in one line."""
        rows = [f"line {self.table.lines[row.row]} ({row.reason})" for row in self.refused[:_MAX_LOGGED]]
        if len(self.refused) > _MAX_LOGGED:
            rows.append(f"and {len(self.refused) - _MAX_LOGGED:,} more")
        return (
            f"{self.table.label}: {len(self.refused):,} of {len(self.table):,} rows left out"
            f"{': ' if rows else ''}{'; '.join(rows)}"
        )


def read_molecules(
    path: Path | str, *, smiles: str | None = None, targets: Sequence[str] | None = None, task: str | Task = "auto"
) -> MoleculeTable:
    """Read a table of molecules.

    Args:
        path: A CSV, TSV or .smi file. Empty cells, 'nan' and 'NA' are missing values.
        smiles: The column of SMILES, where it cannot be guessed.
        targets: The target columns, where they cannot be guessed.
        task: 'single-label', 'multi-label', 'regression', or a task that the targets must fit. 'auto': one column of
            two values or of texts is single-label, several columns of 0 and 1 are multi-label, other numbers are
            regression.

    >>> from mnagt import read_molecules
    >>> len(read_molecules("my.csv").dataset)
    30
    """
    table = read_table(Path(path))
    if not len(table):
        raise InputError(f"{table.label}: no rows under the header; add a row a molecule")
    column = table.find_smiles_column(smiles)
    targets = targets if isinstance(task, str) else task.target_columns(targets)
    names = table.find_target_columns(targets, column)
    task, values, has_target = read_targets(table, names, task)
    texts = [" ".join(text.split()) for text in table.column(column)]
    labelled = np.flatnonzero(has_target)
    to_read = [texts[row] for row in labelled.tolist()]
    graphs = cache.load_or_build(
        *(VERSION, rdkit_version(), "\n".join(to_read)), build=lambda: read_smiles(to_read, name=table.name).graphs
    )
    readable = set(get_smiles(graphs))
    is_kept = has_target & np.array([text in readable for text in texts], bool)
    unread = [row for row in labelled.tolist() if not is_kept[row]]
    missing = f"no value of {names[0]}" if len(names) == 1 else "no value of any target"
    reasons = {row: missing if table.has_values(row) else "empty row" for row in np.flatnonzero(~has_target).tolist()}
    reasons |= {unread[each.row]: each.reason for each in read_smiles([texts[row] for row in unread]).refused}
    kept = torch.from_numpy(np.flatnonzero(is_kept))
    dataset = replace(graphs, name=table.name, task=task, targets=values[kept])
    refused = tuple(RefusedRow(row, texts[row], reasons[row]) for row in sorted(reasons))
    molecules = MoleculeTable(dataset, table, column, names, kept, refused)
    if not len(kept):
        raise InputError(f"{molecules}; nothing is left")
    if refused:
        _log.warning("%s", molecules)
    return molecules
