"""Targets in the columns of a table: the kind of task is guessed from their values, and the task parses them."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from mnagt.data.readers.text_table import Table
from mnagt.errors import InputError, quote
from mnagt.registry import lookup
from mnagt.tasks import TASKS, MultiLabel, Regression, SingleLabel, Task, Unlabelled
from mnagt.tasks.target_column import MISSING, TargetColumn, parse_binary, parse_number

_log = logging.getLogger(__name__)

KINDS = tuple(kind for kind, task in TASKS.items() if task.is_parsable)


def read_targets(table: Table, names: Sequence[str], task: str | Task) -> tuple[Task, Tensor, Bool[np.ndarray, "rows"]]:
    """The task, the targets of each row of the table, and which rows have any.

    ``task`` is one of ``KINDS``, 'auto' to guess it from the columns ``names``, or a task that the columns must fit.
    """
    if not names:
        return Unlabelled(), torch.zeros(len(table), 0), np.ones(len(table), bool)
    columns = [_read_column(table, name) for name in names]
    if isinstance(task, str):
        for column in columns:
            if not column.values:
                raise InputError(f"{table.label}: column {quote(column.name)} is empty; leave it out (--target)")
        kind = task
        if task == "auto":
            kind = guess_kind(columns)
            _log.info("%s: %s taken as %s", table.label, ", ".join(names), kind)
        parsable = {kind: TASKS[kind] for kind in KINDS}
        task = lookup(parsable, kind, "task").from_columns(columns)
    return task, task.parse_targets(columns), has_any_target(table, names)


def has_any_target(table: Table, names: Sequence[str]) -> Bool[np.ndarray, "rows"]:
    """Which rows have a value in any of these columns."""
    columns = [_read_column(table, name).texts for name in names]
    return np.array([any(texts) for texts in zip(*columns, strict=True)], bool)


def _read_column(table: Table, name: str) -> TargetColumn:
    texts = ["" if text.lower() in MISSING else text for text in table.column(name)]
    return TargetColumn(name, texts, table.label, lambda row: table.locate(row, name))


def guess_kind(columns: Sequence[TargetColumn]) -> str:
    """The kind of task that the values suggest; an error where one value contradicts the others."""
    return _guess_from_one(*columns) if len(columns) == 1 else _guess_from_several(columns)


def _guess_from_one(column: TargetColumn) -> str:
    rows, classes = sum(map(bool, column.texts)), len(column.classes)
    not_numbers, not_binary = column.unparsable_rows(parse_number), column.unparsable_rows(parse_binary)
    if classes <= 2:
        return SingleLabel.kind
    if len(not_numbers) == rows:
        if 2 * classes > rows:
            raise InputError(
                f"{column.label}: column {quote(column.name)} holds {classes:,} different texts in {rows:,} rows, too "
                f"many for classes; choose another column (--target), or give --task {SingleLabel.kind}"
            )
        return SingleLabel.kind
    if not_numbers:
        raise _contradiction(column, not_numbers[0], "not a number, and others are")
    if 20 * len(not_binary) < rows:
        raise _contradiction(column, not_binary[0], "neither 0 nor 1, as nearly all others are")
    return Regression.kind


def _guess_from_several(columns: Sequence[TargetColumn]) -> str:
    binary = [column for column in columns if not column.unparsable_rows(parse_binary)]
    if len(binary) == len(columns):
        return MultiLabel.kind
    for column in columns:
        for row in column.unparsable_rows(parse_number)[:1]:
            raise _contradiction(column, row, "neither a number nor empty, and several targets are numbers")
        for row in column.unparsable_rows(parse_binary)[: len(binary)]:
            raise _contradiction(column, row, f"neither 0, 1 nor empty, as all of {quote(binary[0].name)} are")
    return Regression.kind


def _contradiction(column: TargetColumn, row: int, problem: str) -> InputError:
    return InputError(
        f"{column.locate(row)}: {quote(column.texts[row])} is {problem}; fix it, or name the task: --task "
        f"{' or '.join(KINDS)}"
    )
