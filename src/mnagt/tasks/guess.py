"""The kind of task that columns of a table suggest."""

import re
from collections.abc import Sequence

from mnagt.errors import InputError, quote
from mnagt.registry import TASK_CHOICES
from mnagt.tasks.columns import MultiLabel
from mnagt.tasks.list_regression import parse_list
from mnagt.tasks.regression import Regression
from mnagt.tasks.single_label import SingleLabel
from mnagt.tasks.target_column import BOUNDS, TargetColumn, parse_binary, parse_number

_NUMBER_AND_UNIT = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?\s*([^\d\s].*)", re.IGNORECASE)

MIXED = "mixed"
"""The kind of ``Mixed``."""


def guess_kind(columns: Sequence[TargetColumn]) -> str:
    """The kind of task that the values suggest; an error where one value contradicts the others of its column.

    >>> columns = {"active": ["0", "1"], "logP": ["1.5", "2"]}
    >>> guess_kind([TargetColumn(name, texts, "my.csv", str) for name, texts in columns.items()])
    'mixed'
    """
    for column in columns:
        if column.values and all(text[0] == "[" and parse_list(text) is not None for text in column.values):
            raise InputError(
                f"{column.label}: column {quote(column.name)} holds lists; if they have a number for each atom, give "
                "--atom-targets, and for each bond --bond-targets"
            )
    if len(columns) == 1:
        return SingleLabel.kind if len(columns[0].classes) <= 2 else guess_column(columns[0])
    kinds = {guess_column(column) for column in columns}
    return kinds.pop() if kinds in ({MultiLabel.kind}, {Regression.kind}) else MIXED


def guess_column(column: TargetColumn) -> str:
    """The kind of one column of several: labels where all are 0 and 1, numbers, or classes where all are texts."""
    rows, classes = sum(map(bool, column.texts)), len(column.classes)
    not_numbers, not_binary = column.unparsable_rows(parse_number), column.unparsable_rows(parse_binary)
    if not not_binary:
        return MultiLabel.kind
    if len(not_numbers) == rows:
        if 2 * classes > rows and classes > 2:
            if (unit := _find_unit(column)) is not None:
                raise InputError(
                    f"{column.locate(not_numbers[0])}: {quote(column.texts[not_numbers[0]])} is a number and a unit; "
                    f"leave {quote(unit)} out of the column, and name the unit in its header"
                )
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


def _find_unit(column: TargetColumn) -> str | None:
    """The text that follows a number in all cells, such as '%'; None where they hold something else."""
    matches = {_NUMBER_AND_UNIT.fullmatch(text) for text in column.texts if text}
    units = {match and match[1] for match in matches}
    return units.pop() if len(units) == 1 else None


def _contradiction(column: TargetColumn, row: int, problem: str) -> InputError:
    text = column.texts[row]
    if text[0] in BOUNDS and parse_number(text.lstrip(BOUNDS)) is not None:
        return InputError(
            f"{column.locate(row)}: {quote(text)} is a bound (a censored value), and others are numbers; read bounds "
            "with --censored, or leave the row out"
        )
    return InputError(
        f"{column.locate(row)}: {quote(column.texts[row])} is {problem}; fix it, or name the task: --task "
        f"{' or '.join(TASK_CHOICES[1:])}"
    )
