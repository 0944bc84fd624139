"""What a screening writes: predictions, some rows at a time, and the best rows by one column."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from heapq import nsmallest
from pathlib import Path
from typing import Any

from mnagt.files import csv_writer, write_atomically
from mnagt.screening.config import ScreenConfig
from mnagt.screening.inputs import Shard, import_parquet
from mnagt.tasks.target_column import parse_number

Write = Callable[[Mapping[str, list[Any]]], None]
"""Writes rows, given as columns."""
BestRow = dict[str, Any]
"""The row as JSON can hold it: its ``value``, ``shard``, ``file``, ``line`` and ``columns``."""


@contextmanager
def open_writer(
    path: Path, shard: Shard, added: Mapping[str, str], *, suffix: str, quotes_formulas: bool
) -> Iterator[Write]:
    """A function that writes rows of a shard, with the columns ``added`` to those of its input, to ``path``."""
    if suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            write_rows = csv_writer(file, quotes_formulas=quotes_formulas)
            write_rows([[*shard.file.columns, *added]])
            yield lambda columns: write_rows(zip(*columns.values(), strict=True))
        return
    parquet = import_parquet(path)
    import pyarrow

    types = dict.fromkeys(shard.file.columns, pyarrow.string())
    if shard.file.is_parquet:
        schema = parquet.read_schema(shard.file.path)
        types = dict(zip(schema.names, schema.types, strict=True))
    schema = pyarrow.schema(types | {name: pyarrow.type_for_alias(kind) for name, kind in added.items()})
    with parquet.ParquetWriter(path, schema) as writer:
        yield lambda columns: writer.write_table(pyarrow.table(columns, schema))


def name_type(values: list[Any]) -> str:
    """Arrow's name of the type of a column of predictions."""
    kinds = {type(value) for value in values}
    return (
        "int64" if kinds == {int} else "float64" if kinds <= {int, float} else "bool" if kinds == {bool} else "string"
    )


def find_best(columns: Mapping[str, Sequence[Any]], config: ScreenConfig, shard: Shard, first: int) -> list[BestRow]:
    """The best rows of a chunk, which begins with row ``first`` of the file."""
    if config.by is None:
        return []
    sign = 1 if config.lowest else -1
    values = [
        (sign * value, row) for row, text in enumerate(columns[config.by]) if (value := _to_number(text)) is not None
    ]
    best = []
    for value, row in nsmallest(config.top_k, values):
        cells = {name: _to_json(column[row]) for name, column in columns.items()}
        line = shard.first_line + first - shard.first + row
        best.append(
            {"value": sign * value, "shard": shard.number, "file": shard.file.path, "line": line, "columns": cells}
        )
    return best


def keep_best(rows: Iterable[BestRow], config: ScreenConfig) -> list[BestRow]:
    """The best of these, the first of equal ones, whatever the order in which they came."""
    sign = 1 if config.lowest else -1
    return nsmallest(config.top_k, rows, key=lambda row: (sign * row["value"], row["shard"], row["line"]))


def write_best(path: Path, rows: Sequence[BestRow], *, quotes_formulas: bool) -> None:
    """Write these rows as CSV, with where each is from."""
    with write_atomically(path) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        write = csv_writer(file, quotes_formulas=quotes_formulas)
        write([["file", "line", *(rows[0]["columns"] if rows else ())]])
        write([row["file"], row["line"], *row["columns"].values()] for row in rows)


def _to_number(value: Any) -> float | None:
    if isinstance(value, str):
        return parse_number(value)
    is_number = isinstance(value, int | float | Decimal) and not math.isnan(value)
    return float(value) if is_number else None


def _to_json(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
