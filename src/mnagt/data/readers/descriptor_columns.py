"""Columns of numbers of whole molecules that a model reads beside the graph: of their table, or of another."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.text_table import Table, read_column, read_table
from mnagt.errors import InputError, count, join_names, quote
from mnagt.graphs.molecules import TABLE_DESCRIPTORS
from mnagt.tasks.target_column import convert_decimal_commas, parse_number

KIND = "descriptors"
"""The kind of these columns among the names of columns of a data set and of a model."""

_log = logging.getLogger(__name__)


def find_descriptor_columns(path: Path, smiles: str | None = None) -> tuple[str, ...]:
    """The columns of numbers of a table of descriptors, but for ids; ``smiles`` as for ``read_molecules``."""
    table = read_table(path)
    columns = _find_smiles_columns(table, [each for each in table.split_names(smiles) if each is not None])
    names = [name for name in table.columns if name not in columns and not table.why_no_target(name)]
    if not names:
        raise InputError(f"{table.label}: no column of numbers beside {_quote_all(columns)}; add the descriptors")
    _log.info("%s: descriptors are %s", table.label, join_names(names))
    return tuple(names)


def _find_smiles_columns(table: Table, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of SMILES of a table of descriptors; one may have another name than in the table of molecules."""
    if len(names) > 1:
        return tuple(table.check_column(name, "smiles") for name in names)
    return table.find_smiles_columns()


def with_descriptors(
    dataset: PackedDataset, table: Table, smiles: Sequence[str], names: Sequence[str], file: str | None = None
) -> PackedDataset:
    """The data set with the columns ``names`` beside its graphs, each of which is a row of ``table``.

    With a ``file``, they are columns of that table, whose rows are found by their SMILES, in the columns ``smiles``, as
    written.
    """
    if not names:
        return dataset
    if file is not None:
        other = read_table(Path(file).expanduser())
        table = other.select(_find_rows(table, smiles, other, names))
    values = torch.tensor([_read_numbers(table, name) for name in names]).T
    graph = torch.repeat_interleave(torch.arange(len(dataset)), dataset.sizes)
    encodings = {**dataset.encodings, TABLE_DESCRIPTORS: values[graph]}
    return replace(dataset, encodings=encodings, columns={**dataset.columns, KIND: tuple(names)})


def _read_numbers(table: Table, name: str) -> list[float]:
    """The numbers in a column; NaN where there is none, with a notice."""
    if name not in table.columns:
        raise InputError(
            f"{table.label}: no column {quote(name)}, which the model reads beside the graph; add it, or give the "
            "table that has it (--descriptors)"
        )
    column = convert_decimal_commas(read_column(table, name))
    numbers = column.parse(parse_number, math.nan, "neither a number nor empty, as a descriptor has to be; fix it")
    if missing := sum(map(math.isnan, numbers)):
        _log.warning("%s: no %s in %s, where its mean is read", table.label, name, count(missing, "row"))
    return numbers


def _quote_all(texts: Sequence[str]) -> str:
    return join_names(map(quote, texts))


def _find_rows(table: Table, smiles: Sequence[str], other: Table, names: Sequence[str]) -> list[int]:
    """The row of ``other`` with the SMILES of each row of ``table``; an error where there is none, or two differ."""
    row_of: dict[tuple[str, ...], int] = {}
    columns = {name: other.column(other.check_column(name, "descriptors")) for name in names}
    for row, texts in enumerate(other.read_rows(_find_smiles_columns(other, smiles))):
        first = row_of.setdefault(texts, row)
        if differing := [name for name, cells in columns.items() if cells[first] != cells[row]]:
            raise InputError(
                f"{other.label}: lines {other.name_line(first)} and {other.name_line(row)} are of the same molecule, "
                f"{_quote_all(texts)}, with different values of {quote(differing[0])}; keep one"
            )
    rows = table.read_rows(smiles)
    if missing := [row for row, texts in enumerate(rows) if texts not in row_of]:
        raise InputError(
            f"{other.label}: no row for {_quote_all(rows[missing[0]])} ({table.locate(missing[0])}; "
            f"{count(len(missing), 'molecule')} in all); rows are found by the SMILES as they are written: add them"
        )
    return [row_of[texts] for texts in rows]
