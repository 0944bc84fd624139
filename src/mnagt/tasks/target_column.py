"""Columns of texts in a table, as tasks parse them into targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from mnagt.errors import InputError, quote

Value = TypeVar("Value", bound=float)

MISSING = ("", "nan", "na")
"""Texts, in lower case, that stand for a missing value."""
_LARGEST = 3.4028234663852886e38
"""The largest finite float32."""
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

    @property
    def classes(self) -> tuple[str, ...]:
        """The distinct classes, in order of their numbers if all are numbers."""
        classes = {parse_class(text) for text in self.values}
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


def parse_class(text: str) -> str:
    """The name of a class. Whole numbers lose their decimals: tables with missing values tend to write 1 as 1.0."""
    value = parse_number(text)
    return text if value is None or not value.is_integer() else str(int(value))
