"""Columns of texts in a table, as tasks parse them into targets."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from mnagt.errors import InputError, quote

_log = logging.getLogger(__name__)
_MAX_ROUNDING = 0.01
"""The share of a column's deviation that rounding to 32 bits may have."""

Value = TypeVar("Value")

MISSING = ("", "nan", "na", "n/a", "#n/a", "null")
"""Texts, in lower case, that stand for a missing value."""
_LARGEST = 3.4028234663852886e38
"""The largest finite float32."""
BOUNDS = "<>=≤≥ "
"""Characters before a number of which only a bound is known: >10."""
_DECIMAL_COMMA = re.compile(rf"[{BOUNDS}]*[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_THOUSANDS = re.compile(rf"[{BOUNDS}]*[+-]?[1-9]\d?\d?,\d\d\d", re.ASCII)
_BINARY = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}


@dataclass(frozen=True, eq=False)
class TargetColumn:
    """A column of a table that holds targets."""

    name: str
    texts: Sequence[str]
    """A cell for each row; empty where the value is missing."""
    label: str
    """The table, as messages name it."""
    locate: Callable[[int], str]
    """Describes the cell in a row for messages: file, line and column."""

    @cached_property
    def values(self) -> set[str]:
        """The distinct texts that are not empty."""
        return set(self.texts) - {""}

    @cached_property
    def spellings(self) -> dict[str, list[str]]:
        """The spellings of each class, which differ in case and spaces only; a class has the most common one's name."""
        counts = Counter(parse_class(text) for text in self.texts if text)
        spellings: dict[str, list[str]] = {}
        for text in sorted(counts, key=lambda text: (-counts[text], text)):
            spellings.setdefault(fold_class(text), []).append(text)
        return {each[0]: each for each in spellings.values()}

    @property
    def classes(self) -> tuple[str, ...]:
        """The distinct classes, in order of their numbers if all are numbers."""
        classes = self.spellings
        are_numbers = all(parse_number(each) is not None for each in classes)
        return tuple(sorted(classes, key=float if are_numbers else str))

    def unparsable_rows(self, parse: Callable[[str], object]) -> list[int]:
        """Rows with a value for which ``parse`` returns None."""
        unparsable = {text for text in self.values if parse(text) is None}
        return [row for row, text in enumerate(self.texts) if text in unparsable] if unparsable else []

    def parse(self, parse: Callable[[str], Value | None], missing: Value, expected: str) -> list[Value]:
        """``parse`` of each row. ``expected`` says in the error what a value should have been."""
        parsed = {text: parse(text) for text in self.values} | {"": missing}
        cells = [parsed[text] for text in self.texts]
        for row, cell in enumerate(cells):
            if cell is None:
                raise InputError(f"{self.locate(row)}: {quote(self.texts[row])} is {expected}")
        return cells  # type: ignore[return-value]

    def report_rounding(self) -> None:
        """Log that the numbers of the column lie closer together than 32 bits tell apart, if they do."""
        values = np.array([parse_number(text) for text in self.values], dtype=np.float64)
        error, deviation = np.abs(values - values.astype(np.float32)).max(), values.std()
        if error > _MAX_ROUNDING * deviation > 0:
            _log.warning(
                "%s: numbers of 32 bits round %s by up to %.2g, and its values have a deviation of %.2g; subtract a "
                "constant, such as their mean, from the column",
                *(self.label, self.name, error, deviation),
            )


def parse_number(text: str) -> float | None:
    """A number that float32 can hold, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if "_" not in text and abs(value) <= _LARGEST else None


def parse_binary(text: str) -> float | None:
    """0.0 for 0 and false, 1.0 for 1 and true, or None."""
    return _BINARY.get(parse_class(text).lower())


def fold_class(name: str) -> str:
    """The name of a class as it is compared: in lower case, with single spaces."""
    return " ".join(name.lower().split())


def convert_decimal_commas(column: TargetColumn) -> TargetColumn:
    """The column with 1,5 written as 1.5, if nearly all its values are numbers; an error where it is ambiguous.

    >>> convert_decimal_commas(TargetColumn("y", ["1,5", "2", ">0,25"], "my.csv", str)).texts
    ['1.5', '2', '>0.25']
    """
    with_comma = {text for text in column.values if _DECIMAL_COMMA.fullmatch(text)}
    numbers = {text for text in column.values - with_comma if parse_number(text.lstrip(BOUNDS)) is not None}
    if not with_comma or 10 * len(with_comma | numbers) < 9 * len(column.values):
        return column
    first = next(row for row, text in enumerate(column.texts) if text in with_comma)
    shown = f"{column.locate(first)}: {quote(column.texts[first])}"
    if with_point := [text for text in numbers if "." in text]:
        row = next(row for row, text in enumerate(column.texts) if text == with_point[0])
        raise InputError(
            f"{shown} has a decimal comma, and {quote(with_point[0])} ({column.locate(row)}) a decimal point; write "
            "all with a point"
        )
    if all(_THOUSANDS.fullmatch(text) for text in with_comma):
        raise InputError(
            f"{shown} may have a decimal comma or a comma between thousands; write it with a point, or without a comma"
        )
    _log.warning("%s has a decimal comma: commas of the column are read so", shown)
    return replace(column, texts=[text.replace(",", ".") if text in with_comma else text for text in column.texts])


def parse_class(text: str) -> str:
    """The name of a class. Whole numbers lose their decimals: tables with missing values tend to write 1 as 1.0."""
    value = parse_number(text)
    return text if value is None or not value.is_integer() else str(int(value))
