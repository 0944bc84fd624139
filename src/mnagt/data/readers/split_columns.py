"""Columns of a table that say how it is split: the part of each row, its group, or its time."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.readers.text_table import Table
from mnagt.data.splits import PARTS
from mnagt.errors import InputError, join_names, quote
from mnagt.tasks.target_column import parse_number

PART_NAMES = {
    "train": ("train", "training", "trn"),
    "valid": ("valid", "val", "validation", "dev", "development"),
    "test": ("test", "testing", "tst"),
}
"""What a column may call the parts of a split, in lower case."""
NO_PART = -1

_NUMBERS = {name: number for number, part in enumerate(PARTS) for name in PART_NAMES[part]}
_log = logging.getLogger(__name__)


class SplitColumn(NamedTuple):
    """A column that a split reads, and what it holds."""

    name: str
    holds: Literal["parts", "groups", "times"] = "groups"


def encode_split_column(table: Table, column: SplitColumn) -> dict[str, Int[Tensor, "rows"]]:
    """The column by the field of ``PackedDataset`` that takes it: ``official`` for parts, ``groups`` for the others."""
    column = column._replace(name=table.check_column(column.name, "split-column"))
    if column.holds == "parts":
        return {"official": _encode_parts(table, column.name)}
    if are_parts(table.columns[column.name]):
        raise InputError(
            f"{table.label}: column {quote(column.name)} holds the parts of a split (train, test), not "
            f"{column.holds}; to split by it, leave out --split: --split-column {column.name}"
        )
    encode = encode_groups if column.holds == "groups" else _encode_times
    return {"groups": encode(table, column.name)}


def find_part_columns(table: Table) -> list[str]:
    """The columns that hold the parts of a split."""
    return [name for name in table.columns if are_parts(table.columns[name])]


def announce_unused(table: Table, used: Sequence[str]) -> None:
    """Log columns that hold the parts of a split, most rows of them at least, and are not ``used``."""
    for name in table.columns:
        odd = None if name in used else _list_odd_rows(table.columns[name])
        if odd == []:
            _log.warning(
                "%s: column %s holds the parts of a split and is not used; use it: --split-column %s",
                *(table.label, quote(name), name),
            )
        elif odd and 2 * len(odd) < len(table):
            _log.warning(
                "%s: column %s looks like the parts of a split and is not used, since %s (%s) is none of them",
                *(table.label, quote(name), quote(table.columns[name][odd[0]]), table.locate(odd[0])),
            )


def _list_odd_rows(texts: Sequence[str]) -> list[int] | None:
    """The rows of other words in a column that names parts of a split; None where it names none."""
    words = [text.strip().lower() for text in texts]
    if not are_parts([word for word in words if word in _NUMBERS]):
        return None
    return [row for row, word in enumerate(words) if word and word not in _NUMBERS]


def are_parts(texts: Sequence[str]) -> bool:
    """Whether these are names of parts, those of training and of another among them; some may be empty.

    >>> are_parts(["Train", "val", "", "TEST"]), are_parts(["test", "tests"])
    (True, False)
    """
    parts = {0}
    for text in texts:
        if name := text.strip().lower():
            if name not in _NUMBERS:
                return False
            parts.add(_NUMBERS[name])
    return len(parts) > 1


def encode_groups(table: Table, column: str) -> Int[Tensor, "rows"]:
    """A number for each distinct value of a column."""
    texts = _check_values(table, column, "group")
    return torch.from_numpy(np.unique(texts, return_inverse=True)[1].astype(np.int64))


def _encode_parts(table: Table, column: str) -> Int[Tensor, "rows"]:
    texts = [text.lower() for text in table.column(column)]
    parts = [_NUMBERS.get(text, NO_PART) for text in texts]
    for row, (text, part) in enumerate(zip(texts, parts, strict=True)):
        if text and part == NO_PART:
            raise InputError(
                f"{table.locate(row, column)}: {quote(text)} is no part of a split (train, valid, test); fix it, or "
                f"say what the column holds: --split group for groups, --split time for dates or numbers"
            )
    if missing := [part for number, part in enumerate(PARTS) if number not in parts and part != "valid"]:
        names = join_names(PART_NAMES[missing[0]])
        raise InputError(f"{table.label}: column {quote(column)} has no row for {missing[0]} ({names}); mark some rows")
    if count := parts.count(NO_PART):
        _log.warning("%s: %d rows have no %s and are in no part of the split", table.label, count, column)
    return torch.tensor(parts, dtype=torch.long)


def _encode_times(table: Table, column: str) -> Int[Tensor, "rows"]:
    """The rank of each row's date (ISO 8601) or number."""
    texts = _check_values(table, column, "date")
    numbers = [parse_number(text) for text in texts]
    values = [_parse_date(text) for text in texts] if None in numbers else numbers
    if None in values:
        row = values.index(None)
        raise InputError(
            f"{table.locate(row, column)}: {quote(texts[row])} is neither a date (2024-05-31) nor a number, as a split "
            "by time needs; write dates as YEAR-MONTH-DAY"
        )
    return torch.from_numpy(np.unique(np.array(values, np.float64), return_inverse=True)[1].astype(np.int64))


def _parse_date(text: str) -> float | None:
    """Seconds since year 1 of an ISO date, or None."""
    try:
        return (datetime.fromisoformat(text).replace(tzinfo=None) - datetime.min).total_seconds()
    except ValueError:
        return None


def _check_values(table: Table, column: str, what: str) -> list[str]:
    """The texts of a column that has a value in each row."""
    texts = table.column(table.check_column(column, "split-column"))
    if "" in texts:
        raise InputError(
            f"{table.locate(texts.index(''), column)}: no {what}; each graph needs one for a split by {what}s"
        )
    return texts
