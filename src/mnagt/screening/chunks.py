"""The rows of a shard, some at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from mnagt.data.readers.text_table import find_delimiter
from mnagt.errors import InputError, quote
from mnagt.screening.inputs import Shard, explain_damage, import_parquet, iterate_lines, open_lines, split_line
from mnagt.tasks.target_column import MISSING, parse_number

ROWS = 2048
"""Rows that are read, predicted for and written at a time."""


@dataclass(frozen=True)
class Chunk:
    """Some rows."""

    first: int
    """The first, counted from 0 in its file."""
    columns: dict[str, list[Any]]
    """As they are in the file."""
    problems: dict[int, str]
    """What is wrong with rows of this chunk, by row."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def texts(self, name: str) -> list[str]:
        """A column as texts, empty where nothing is."""
        return ["" if value is None else str(value).strip() for value in self.columns[name]]


def read_chunks(shard: Shard) -> Iterator[Chunk]:
    """The rows of a shard in their order."""
    yield from (_read_parquet if shard.file.is_parquet else _read_lines)(shard)


def _read_lines(shard: Shard) -> Iterator[Chunk]:
    path, names = shard.file.path, shard.file.columns
    with explain_damage(path), _open_at(shard) as (file, delimiter):
        for first in range(0, shard.rows, ROWS):
            rows, problems = [], {}
            for line, unread in iterate_lines(file, min(ROWS, shard.rows - first)):
                line = line.removeprefix("\ufeff") if shard.first == first == len(rows) == 0 else line
                fields, unsplit = split_line(line, delimiter, len(names))
                if problem := unread or unsplit:
                    problems[len(rows)] = problem
                rows.append(fields)
            columns = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
            yield Chunk(shard.first + first, columns, problems)


@contextmanager
def _open_at(shard: Shard) -> Iterator[tuple[BinaryIO, str | None]]:
    """The text from the first row of a shard on, and its delimiter.

    A compressed file stays open for the next shard, so that a process unpacks it only once.
    """
    path = shard.file.path
    opened = _UNPACKED.pop((path, shard.file.mtime_ns), None)
    for other in list(_UNPACKED):
        _UNPACKED.pop(other)[0].close()
    if opened is None:
        file = open_lines(path)
        opened = file, find_delimiter(Path(path), next(iterate_lines(file, 1))[0])
    file = opened[0]
    try:
        file.seek(shard.offset)
        if shard.file.has_header and shard.first == 0:
            next(iterate_lines(file, 1))
        yield opened
        if path.lower().endswith(".gz") and shard.first + shard.rows < shard.file.rows:
            _UNPACKED[path, shard.file.mtime_ns] = opened
            file = None
    finally:
        if file is not None:
            file.close()


_UNPACKED: dict[tuple[str, int], tuple[BinaryIO, str | None]] = {}
"""The compressed file that is open, by path and date."""


def _read_parquet(shard: Shard) -> Iterator[Chunk]:
    with import_parquet(shard.file.path).ParquetFile(shard.file.path) as file:
        groups = file.metadata.num_row_groups
        ends = list(accumulate(file.metadata.row_group(group).num_rows for group in range(groups)))
        starts, last = [0, *ends], shard.first + shard.rows
        wanted = [g for g in range(groups) if starts[g] < last and ends[g] > shard.first]
        at = starts[wanted[0]]
        for batch in file.iter_batches(batch_size=ROWS, row_groups=wanted):
            first, stop = max(at, shard.first), min(at + len(batch), last)
            if first < stop:
                yield Chunk(first, batch.slice(first - at, stop - first).to_pydict(), {})
            at += len(batch)


def read_numbers(chunk: Chunk, names: Sequence[str]) -> tuple[dict[str, list[str]], dict[int, str]]:
    """Columns of numbers as texts that can be parsed, and what is wrong with rows that have something else there."""
    columns, problems = {}, {}
    for name in names:
        if name not in chunk.columns:
            raise InputError(f"no column {quote(name)}, which the model reads beside the graph; add it")
        texts = chunk.texts(name)
        for row, text in enumerate(texts):
            if text.lower() in MISSING or parse_number(text) is not None:
                continue
            texts[row] = text.replace(",", ".") if text.count(",") == 1 else ""
            if parse_number(texts[row]) is None:
                texts[row], problems[row] = "", f"{quote(text)} is no number, as {name} has to be"
        columns[name] = texts
    return columns, problems
