"""Files of predictions, written some rows at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mnagt.files import csv_writer
from mnagt.screening.inputs import Shard, import_parquet

Write = Callable[[Mapping[str, list[Any]]], None]
"""Writes rows, given as columns."""


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
