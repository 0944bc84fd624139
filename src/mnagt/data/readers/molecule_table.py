"""Data sets from tables of molecules, one molecule or several components a row.

The SMILES column is found by its name and the task by the values of the target columns. Rows that give no graph or have
no target are left out and reported, with their lines.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mnagt.data import cache
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.descriptor_columns import with_descriptors
from mnagt.data.readers.duplicates import resolve_duplicates, separate_parts
from mnagt.data.readers.list_targets import with_list_targets
from mnagt.data.readers.molecule_reader import rdkit_version
from mnagt.data.readers.sdf import SUFFIX, read_sdf
from mnagt.data.readers.smiles import (
    SEPARATOR,
    VERSION,
    RefusedRow,
    describe_unread,
    find_duplicates,
    get_smiles,
    guess_format,
    read_smiles,
)
from mnagt.data.readers.split_columns import SplitColumn, announce_unused, encode_split_column, find_part_columns
from mnagt.data.readers.text_table import (
    Table,
    join_tables,
    read_row_weights,
    read_table,
    read_targets,
)
from mnagt.data.splits import PARTS
from mnagt.data.table_config import TableConfig
from mnagt.errors import InputError, quote
from mnagt.graphs.molecules import MoleculeFormat
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
    """The column of SMILES; columns of several components have commas between them."""
    targets: tuple[str, ...]
    """The target columns."""
    kept: Int[Tensor, "graphs"]
    """The row of each graph, counted from 0."""
    refused: tuple[RefusedRow, ...]
    """The other rows, in order."""

    def __str__(self) -> str:
        """The rows left out, in one line."""
        columns = self.table.find_smiles_columns(self.smiles)
        rows = [f"line {self.table.lines[row.row]} ({row.explain(columns)})" for row in self.refused[:_MAX_LOGGED]]
        if len(self.refused) > _MAX_LOGGED:
            rows.append(f"and {len(self.refused) - _MAX_LOGGED:,} more")
        return (
            f"{self.table.label}: {len(self.refused):,} of {len(self.table):,} rows left out"
            f"{': ' if rows else ''}{'; '.join(rows)}"
        )


def read_molecule_file(path: Path) -> Table:
    """The table of molecules in a file: CSV, TSV, .smi or SDF."""
    if path.name.lower().removesuffix(".gz").endswith(SUFFIX) and path.is_file():
        return read_sdf(path)
    return read_table(path, may_lack_header=True)


def read_molecules(
    path: Path | str,
    *,
    smiles: str | None = None,
    targets: Sequence[str] | None = None,
    task: str | Task = "auto",
    group: str | SplitColumn | None = None,
    descriptors: Sequence[str] = (),
    options: TableConfig = TableConfig(),
) -> MoleculeTable:
    """Read a table of molecules.

    Args:
        path: A CSV, TSV, .smi or SDF file. Empty cells, 'nan', 'NA', 'n/a' and 'null' are missing values.
        smiles: The column of SMILES, where it cannot be guessed. Of several components of a row, their columns, with
            commas between them: 'solute,solvent'. A column of reactions ('reactants>>products') is found by what it
            holds.
        targets: The target columns, where they cannot be guessed.
        task: 'single-label', 'multi-label', 'regression', or a task that the targets must fit. 'auto': one column of
            two values or of texts is single-label, several columns of 0 and 1 are multi-label, other numbers are
            regression. 'node-regression': each cell lists a number for each atom, in the order of the SMILES;
            'edge-regression': for each bond, in the order of RDKit's ``GetBonds()``.
        group: The column that a split reads; see ``load_dataset``.
        descriptors: Columns of numbers that a model reads beside the graph.
        options: How the table is read: what is done about duplicates.

    >>> from mnagt import read_molecules
    >>> len(read_molecules("my.csv").dataset)
    30
    """
    table, part = _read_parts(Path(path), options)
    columns = table.find_smiles_columns(smiles)
    group = SplitColumn(group) if isinstance(group, str) else group
    targets = targets if isinstance(task, str) else task.target_columns(targets)
    parts, split_column = find_part_columns(table), group.name if group else columns[0]
    weights = (options.row_weights,) if options.row_weights else ()
    names = table.find_target_columns(targets, (*columns, split_column, *parts, *descriptors, *weights))
    _check_descriptors(table, names, descriptors)
    announce_unused(table, (*names, split_column))
    task, values, has_target = read_targets(table, names, task, may_be_lists=True)
    smiles_rows = table.read_rows(columns)
    row_format = guess_format(smiles_rows)
    if row_format.is_reaction:
        if task.level != "graph":
            raise InputError(f"{table.label}: such targets are of molecules, and {columns[0]} holds reactions")
        _log.info("%s: %s holds reactions, read as condensed graphs", table.label, columns[0])
    graphs, is_kept = _read_graphs(table.name, smiles_rows, row_format, has_target)
    refused = _explain_refused(table, names, smiles_rows, row_format, has_target, is_kept)
    indices = torch.from_numpy(np.flatnonzero(is_kept))
    dataset, rows = replace(graphs, name=table.name, task=task), table.select(indices.tolist())
    of_items = task.level != "graph"
    dataset = with_list_targets(dataset, rows, names) if of_items else replace(dataset, targets=values[indices])
    molecules = MoleculeTable(dataset, table, ",".join(columns), names, indices, refused)
    if not len(indices):
        raise InputError(f"{molecules}; nothing is left")
    dataset = with_descriptors(dataset, rows, columns, descriptors, options.descriptor_file)
    molecules = replace(molecules, dataset=dataset)
    if refused:
        _log.warning("%s", molecules)
    return _resolve_rows(molecules, part, group, options)


def _check_descriptors(table: Table, targets: Sequence[str], descriptors: Sequence[str]) -> None:
    """Refuse a column that is both."""
    if both := [name for name in targets if name in descriptors]:
        raise InputError(
            f"{table.label}: {quote(both[0])} is a target and a descriptor, so that a model would be told what it has "
            "to predict; name the columns to read: --descriptors a,b"
        )


def _read_parts(path: Path, options: TableConfig) -> tuple[Table, Int[Tensor, "rows"] | None]:
    """The rows of the table and of those of other parts, and the part of each row if there are such."""
    files = {"train": path, **{part: Path(file).expanduser() for part, file in options.part_files.items()}}
    tables = {part: read_molecule_file(file) for part, file in files.items()}
    for table in tables.values():
        if not len(table):
            raise InputError(f"{table.label}: no rows under the header; add a row a molecule")
    if len(tables) == 1:
        return tables["train"], None
    part = torch.cat([torch.full((len(table),), PARTS.index(part)) for part, table in tables.items()])
    return join_tables(list(tables.values())), part


def _read_graphs(
    name: str,
    smiles_rows: Sequence[tuple[str, ...]],
    row_format: MoleculeFormat,
    has_target: Bool[np.ndarray, "rows"],
) -> tuple[PackedDataset, Bool[np.ndarray, "rows"]]:
    """The graphs of the rows with a target, duplicates found, and which rows have a graph."""
    texts = list(map(SEPARATOR.join, smiles_rows))
    to_read = [smiles_rows[row] for row in np.flatnonzero(has_target).tolist()]

    def build() -> PackedDataset:
        graphs = read_smiles(to_read, name=name, row_format=row_format).graphs
        return replace(graphs, same_as=find_duplicates(get_smiles(graphs)))

    lines, version = "\n".join(map(SEPARATOR.join, to_read)), "reactions" if row_format.is_reaction else "same_as-2"
    graphs = cache.load_or_build(VERSION, rdkit_version(), lines, version, build=build)
    readable = set(get_smiles(graphs))
    return graphs, has_target & np.array([text in readable for text in texts], bool)


def _explain_refused(
    table: Table,
    names: Sequence[str],
    smiles_rows: Sequence[tuple[str, ...]],
    row_format: MoleculeFormat,
    has_target: Bool[np.ndarray, "rows"],
    is_kept: Bool[np.ndarray, "rows"],
) -> tuple[RefusedRow, ...]:
    """The rows that give no graph or have no target, and why."""
    unread = np.flatnonzero(has_target & ~is_kept).tolist()
    missing = f"no value of {names[0]}" if len(names) == 1 else "no value of any target"
    refused = [
        RefusedRow(row, SEPARATOR.join(smiles_rows[row]), missing if table.has_values(row) else "empty row")
        for row in np.flatnonzero(~has_target).tolist()
    ]
    read = read_smiles([smiles_rows[row] for row in unread], row_format=row_format)
    refused += [replace(each, row=unread[each.row]) for each in read.refused]
    return tuple(sorted(refused, key=lambda each: each.row))


def _resolve_rows(
    molecules: MoleculeTable,
    part: Int[Tensor, "rows"] | None,
    group: SplitColumn | None,
    options: TableConfig,
) -> MoleculeTable:
    """The table with its split column or parts encoded, and duplicates treated as ``options`` say."""
    dataset, rows = molecules.dataset, molecules.table.select(molecules.kept.tolist())
    for line in describe_unread(get_smiles(dataset)):
        _log.warning("%s: %s", rows.label, line)
    if part is not None:
        if group is not None:
            raise InputError("a split is given by a column or by files (--valid, --test); leave one out")
        dataset = replace(dataset, official=part[molecules.kept])
    if group is not None:
        dataset = replace(dataset, **encode_split_column(rows, group))
    if options.row_weights is not None:
        dataset = replace(dataset, row_weights=read_row_weights(rows, options.row_weights))
    dataset = separate_parts(dataset, rows, options.duplicates)
    resolved = resolve_duplicates(dataset, rows, options.duplicates)
    return replace(molecules, dataset=resolved.dataset, kept=molecules.kept[resolved.kept])
