"""Tables of numbers separated by commas: plain text is parsed by NumPy, other text line by line."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mnagt.errors import InputError

MAX_LINE_BYTES = 1 << 24


class Kind(NamedTuple):
    """A kind of fields."""

    parse_plain: Callable[[bytes, int], NDArray | None]
    """Reads plain text of so many columns at once; None for other text."""
    parse_field: Callable[[bytes], float]
    dtype: type[np.generic]


def parse_table(blocks: Iterator[bytes], label: str, kind: Kind, columns: int | None = None) -> NDArray:
    """Rows of fields of a ``kind``: ``INTEGERS``, ``FLOATS``, ...; as many ``columns`` as given, or as line 1 has.

    ``label`` names the text in errors. What is not plain is read field by field.
    """
    lines, parts = 0, []
    for text in _join_lines(blocks, label):
        columns = columns or text[: text.find(b"\n")].count(b",") + 1
        part = kind.parse_plain(text, columns)
        if part is None:
            part = parse_lines(text, columns, kind, label, lines + 1)
        lines += len(part)
        parts.append(part)
    if not parts:
        raise InputError(f"{label}: the file is empty; fetch or write it again")
    return np.concatenate(parts)


def refuse_line(label: str, is_wrong: NDArray[np.bool_], describe: Callable[[int], str]) -> None:
    """Refuse the first line that ``is_wrong``; ``describe`` says what is, from the index of the line."""
    if is_wrong.any():
        at = int(is_wrong.argmax())
        raise InputError(f"{label}, line {at + 1}: {describe(at)}")


def check_range(label: str, values: NDArray[np.integer], count: int, what: str) -> None:
    """Refuse values that are not from 0 to ``count - 1``, by the line of the first."""
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < count):
        is_wrong = (values < 0) | (values >= count)
        refuse_line(label, is_wrong, lambda at: f"{what} is {values[at]}; it may be 0 to {count - 1}")


def _join_lines(blocks: Iterator[bytes], label: str) -> Iterator[bytes]:
    """The text in blocks of whole lines, without a byte order mark or blank lines at its end."""
    rest = next(blocks, b"").removeprefix(b"\xef\xbb\xbf")
    for block in blocks:
        text = rest + block
        end = text.rstrip().rfind(b"\n") + 1
        if end:
            yield text[:end]
        rest = text[end:]
        if len(rest) > MAX_LINE_BYTES:
            raise InputError(f"{label}: a line is over {MAX_LINE_BYTES >> 20} MiB long; this is not a table")
    if rest := rest.rstrip():
        yield rest + b"\n"


_COMMA, _NEWLINE, _ZERO, _POINT, _A, _N = b",\n0.an"


def _are_rows(separators: NDArray[np.uint8], columns: int) -> bool:
    """Whether the separators are those of lines of ``columns`` fields."""
    if len(separators) % columns:
        return False
    rows = separators.reshape(-1, columns)
    return bool((rows[:, :-1] == _COMMA).all() and (rows[:, -1] == _NEWLINE).all())


def plain_integers(text: bytes, columns: int) -> NDArray[np.int32] | None:
    """Lines of ``columns`` unsigned integers of up to 8 digits; ``None`` for any other text.

    The 8 bytes before each separator are taken as one 64-bit word, with what is not of the number shifted out. Three
    multiplications then join neighbouring digits, pairs and fours in all words at once.
    """
    text = text.replace(b", ", b",")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    characters = np.frombuffer(b"0" * 8 + text, np.uint8)
    end = np.flatnonzero(characters - _ZERO > 9)
    digits = np.diff(end, prepend=7) - 1
    if not _are_rows(characters[end], columns) or digits.min() < 1 or digits.max() > 8:
        return None
    words = np.ndarray((len(characters) - 7,), "<u8", characters, strides=(1,))[end - 8]
    unused = (8 * (8 - digits)).astype(np.uint64)
    word = (words & 0x0F0F0F0F0F0F0F0F) >> unused << unused
    word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FF
    word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFF
    word = (word * 10000 + (word >> 32)) & 0x00000000FFFFFFFF
    return word.astype(np.int32).reshape(-1, columns)


def _plain_floats(text: bytes, columns: int) -> NDArray[np.float32] | None:
    """Lines of ``columns`` finite numbers; ``None`` for any other text."""
    characters = np.frombuffer(text, np.uint8)
    separators = characters[(characters == _COMMA) | (characters == _NEWLINE)]
    if not _are_rows(separators, columns) or b"_" in text:
        return None
    try:
        numbers = np.array(list(map(float, text[:-1].replace(b"\n", b",").split(b","))))
    except ValueError:
        return None
    is_representable = np.abs(numbers) <= np.finfo(np.float32).max
    return numbers.astype(np.float32).reshape(-1, columns) if is_representable.all() else None


def _plain_binary_labels(text: bytes, columns: int) -> NDArray[np.float32] | None:
    """Lines of ``columns`` fields that are 0, 1, 0.0, 1.0, nan or empty; ``None`` for any other text."""
    characters = np.frombuffer(b"00\n" + text, np.uint8)
    end = np.flatnonzero((characters == _COMMA) | (characters == _NEWLINE))
    length, end = np.diff(end) - 1, end[1:]
    if not _are_rows(characters[end], columns) or (columns == 1 and (length == 0).any()):
        return None
    first, second, last = (characters[end - back] for back in (3, 2, 1))
    is_number = (length == 1) | ((length == 3) & (second == _POINT) & (last == _ZERO))
    is_nothing = (length == 0) | ((length == 3) & (first == _N) & (second == _A) & (last == _N))
    digit = np.where(length == 1, last, first) - _ZERO
    if not (is_nothing | (is_number & (digit <= 1))).all():
        return None
    return np.where(is_nothing, np.float32(np.nan), digit).astype(np.float32).reshape(-1, columns)


def parse_lines(text: bytes, columns: int, kind: Kind, label: str, first: int) -> NDArray:
    """Any lines of ``columns`` fields, ``first`` being the number of the first line."""
    rows = []
    for at, line in enumerate(text[:-1].split(b"\n"), start=first):
        fields = line.split(b",")
        if not line.strip():
            raise InputError(f"{label}, line {at}: the line is empty; remove it or fill it in")
        if len(fields) != columns:
            raise InputError(f"{label}, line {at}: {_quote(line)} has {len(fields)} columns, expected {columns}")
        try:
            rows.append([kind.parse_field(field) for field in fields])
        except ValueError as error:
            raise InputError(f"{label}, line {at}: {_quote(line)} {error}") from None
    return np.array(rows, kind.dtype)


def parse_integer(field: bytes) -> int:
    try:
        value = int(field)
    except ValueError:
        value = _parse_float(field)
        if not value.is_integer():
            raise ValueError("is not an integer; labels and ids are integers") from None
    if b"_" in field or not -(2**63) <= value < 2**63:
        raise ValueError("is not an integer of 64 bits; labels and ids are integers")
    return int(value)


def _parse_float(field: bytes) -> float:
    try:
        value = float(field)
    except ValueError:
        raise ValueError("is not a number; write numbers separated by commas") from None
    if b"_" in field or not abs(value) <= float(np.finfo(np.float32).max):
        raise ValueError("is not a finite 32-bit number; fill in or remove such values")
    return value


def _parse_optional_float(field: bytes) -> float:
    return math.nan if field.strip().lower() in (b"", b"nan") else _parse_float(field)


def _parse_binary(field: bytes) -> float:
    try:
        value = _parse_optional_float(field)
    except ValueError:
        value = 2.0
    if value not in (0.0, 1.0) and not math.isnan(value):
        raise ValueError(f"holds the label {_quote(field)}; labels are 0, 1, or empty where missing")
    return value


def _quote(line: bytes) -> str:
    return repr(line.strip()[:40].decode("ascii", "replace"))


INTEGERS = Kind(plain_integers, parse_integer, np.int64)
FLOATS = Kind(_plain_floats, _parse_float, np.float32)
"""Finite numbers."""
OPTIONAL_FLOATS = Kind(_plain_floats, _parse_optional_float, np.float32)
"""Finite numbers; empty fields are NaN."""
BINARY_LABELS = Kind(_plain_binary_labels, _parse_binary, np.float32)
"""0 and 1; empty fields are NaN."""
