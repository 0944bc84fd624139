"""Columns of attributes of nodes and edges, by name, and their encoding as tensors.

A column of texts, whole numbers or booleans is categorical. A column of numbers of which some are floats is continuous,
and a column of lists is one continuous column for each entry ('name/0', 'name/1', ...).
"""

import logging
import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.categories import NO_CATEGORY
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError, quote
from mnagt.graphs.sparse import ptr_from_counts

MAX_MISSING, MAX_MISSING_PER_VALUE, MAX_MISSING_PER_ROW = 1 << 20, 64, 4
"""Cells of a table that may be empty or hold a default: so many, and so many more for each value and each row."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class AttributeColumns:
    """The attributes of all nodes, edges or graphs: a list of values for each name, None where one is missing."""

    kind: str
    """'nodes', 'edges' or 'graphs'."""
    label: str
    """The file, for messages."""
    locate: Callable[[int, str], str]
    """Where the value of a row and a name is, for messages."""
    values: dict[str, list[Any]] = field(default_factory=dict)
    rows: int = 0
    num_values: int = 0
    """Values that are neither missing nor defaults."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; one with defaults is a ``ChainMap`` of what is given and the defaults."""
        self.num_values += len(row.maps[0]) if isinstance(row, ChainMap) else len(row)
        for name in row:
            if name not in self.values:
                self._check_density(len(self.values) + 1)
                self.values[name] = [None] * self.rows
        if len(self.values) * self.rows > MAX_MISSING:
            self._check_density(len(self.values))
        for name, column in self.values.items():
            column.append(row.get(name))
        self.rows += 1

    def add_empty(self, rows: int) -> None:
        """Append rows without attributes."""
        for column in self.values.values():
            column.extend([None] * rows)
        self.rows += rows

    def _check_density(self, columns: int) -> None:
        """Refuse a table that is nearly all empty: it would take many times the memory of its file."""
        most = MAX_MISSING + MAX_MISSING_PER_VALUE * self.num_values + MAX_MISSING_PER_ROW * self.rows
        if columns * self.rows > most:
            raise InputError(
                f"{self.label}: {self.rows:,} {self.kind} and {columns:,} columns so far, nearly all "
                f"empty; give all {self.kind} the same columns"
            )

    def split_lists(self) -> dict[str, list[Any]]:
        """The columns, with one of lists split into a column for each entry."""
        columns: dict[str, list[Any]] = {}
        for name, column in self.values.items():
            for row, value in enumerate(column):
                for entry in value if isinstance(value, list | tuple) else (value,):
                    is_huge = entry is not value and type(entry) is int and abs(entry) >= 2**1023  # no float holds it
                    if is_huge or not isinstance(entry, str | int | float | None):
                        raise self.type_error(row, name, "a text, a number or a list", entry)
            length = next((len(value) for value in column if isinstance(value, list | tuple)), None)
            if length is None:
                columns[name] = column
                continue
            for row, value in enumerate(column):
                if not isinstance(value, list | tuple) or len(value) != length:
                    raise self.type_error(row, name, f"a list of {length} as before", value)
            columns |= {
                f"{name}/{i}": [float(entry) if type(entry) is int else entry for entry in entries]
                for i, entries in enumerate(zip(*column, strict=True))
            }
        return columns

    def is_continuous(self, name: str, column: list[Any]) -> bool:
        """Whether a column holds floats; an error where texts and numbers are mixed."""
        texts = sum(isinstance(value, str) for value in column)
        numbers = sum(isinstance(value, int | float) for value in column)
        if texts and numbers:
            odd, what, others = (str, "a text", "numbers") if texts <= numbers else (int | float, "a number", "texts")
            row = next(row for row, value in enumerate(column) if isinstance(value, odd))
            raise InputError(
                f"{self.locate(row, name)}: {quote_value(column[row])} is {what}, and others are {others}; fix it"
            )
        return any(isinstance(value, float) for value in column)

    def to_floats(self, name: str, column: list[Any]) -> NDArray[np.float32]:
        """A continuous column; an error where a value is missing or no finite float32."""
        max_float = float(np.finfo(np.float32).max)
        for row, value in enumerate(column):
            if not isinstance(value, int | float) or not abs(value) <= max_float:
                raise self.type_error(row, name, "a finite number", value, "; fill it in")
        return np.array(column, np.float32)

    def type_error(self, row: int, name: str, expected: str, value: Any, remedy: str = "") -> InputError:
        return InputError(f"{self.locate(row, name)}: expected {expected}, got {quote_value(value)}{remedy}")

    def check_continued(self, columns: Mapping[str, list[Any]], labels: Sequence[str], values: Sequence[str]) -> None:
        """Refuse columns that the first graphs of the same file do not have, or have as another kind."""
        for name, column in columns.items():
            if name not in (*labels, *values):
                row = next((row for row, value in enumerate(column) if value is not None), 0)
                raise InputError(
                    f"{self.locate(row, name)}: a column that the first graphs do not have; give it to them, if only "
                    "as null, or leave it out"
                )
            if name in labels and self.is_continuous(name, column):
                row = next(row for row, value in enumerate(column) if isinstance(value, float))
                raise InputError(
                    f"{self.locate(row, name)}: {quote_value(column[row])} is a number, and those of the first graphs "
                    "are categories; write 3.0, not 3, where a column is one of numbers"
                )


@dataclass(frozen=True)
class EncodedColumns:
    """The columns of nodes or edges by the fields of ``PackedDataset`` ('node_labels', ...)."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    vocabularies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The categories of each column of labels: 'node_labels/0', ..."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """``PackedDataset.columns``."""

    def select(self, rows: NDArray[np.int64]) -> "EncodedColumns":
        index = torch.from_numpy(rows)
        return replace(self, tensors={name: column[index] for name, column in self.tensors.items()})


def pack_keys(
    name: str,
    sizes: NDArray[np.integer],
    keys: NDArray[np.int64],
    nodes: EncodedColumns,
    edges: EncodedColumns,
    **others: Any,
) -> PackedDataset:
    """The data set of graphs of these ``sizes`` with the edges of the sorted ``keys``; ``others`` are more fields."""
    node_ptr = ptr_from_counts(torch.from_numpy(sizes))
    destination, source = keys >> 32, keys.astype(np.int32)
    in_degree = np.bincount(destination, minlength=int(node_ptr[-1]))
    source -= np.repeat(node_ptr.numpy()[:-1].astype(np.int32), sizes)[destination]
    tensors, vocabularies = {**nodes.tensors, **edges.tensors}, {**nodes.vocabularies, **edges.vocabularies}
    label_counts = {
        name: tuple(len(vocabularies[f"{name}/{column}"]) for column in range(tensors[name].shape[1]))
        for name in tensors
        if name.endswith("_labels")
    }
    return PackedDataset(
        name=name,
        node_ptr=node_ptr,
        edge_ptr=ptr_from_counts(torch.from_numpy(in_degree))[node_ptr],
        source=torch.from_numpy(source),
        in_degree=torch.from_numpy(in_degree.astype(np.int32)),
        label_counts=label_counts,
        vocabularies=vocabularies,
        columns={**nodes.names, **edges.names},
        **tensors,
        **others,
    )


def encode_columns(
    label: str, attributes: AttributeColumns, names: Mapping[str, Sequence[str]] | None, *, is_continued: bool = False
) -> EncodedColumns:
    """Tensors of the attributes.

    Args:
        label: the file, for messages.
        attributes: of nodes or of edges.
        names: the columns to read, by kind ('node_labels', ...); None to find out which there are, and of what kind.
        is_continued: ``names`` are those of earlier graphs of the same file. Columns may then be missing, but not new.
    """
    kind, columns = attributes.kind.removesuffix("s"), attributes.split_lists()
    labels, values = f"{kind}_labels", f"{kind}_values"
    is_guessed = names is None
    if names is None:
        is_value = {name: attributes.is_continuous(name, column) for name, column in columns.items()}
        names = {labels: [n for n in columns if not is_value[n]], values: [n for n in columns if is_value[n]]}
    label_names, value_names = tuple(names.get(labels, ())), tuple(names.get(values, ()))
    missing = [name for name in (*label_names, *value_names) if name not in columns]
    if is_continued:
        attributes.check_continued(columns, label_names, value_names)
    elif missing and attributes.rows:
        raise InputError(
            f"{label}: the model reads {missing[0]!r} of {attributes.kind}, which is not there; there are: "
            f"{', '.join(map(repr, columns)) or 'none'}"
        )
    empty = [None] * attributes.rows
    categories = [encode_categories(columns.get(name, empty)) for name in label_names]
    numbers = [attributes.to_floats(name, columns.get(name, empty)) for name in value_names]
    if columns and is_guessed:
        kinds = [f"{n} ({len(words)} categories)" for n, (_, words) in zip(label_names, categories, strict=True)]
        kinds += [f"{name} (a number)" for name in value_names]
        _log.info("%s: %s have %s", label, attributes.kind, ", ".join(kinds))
    tensors = {}
    if label_names:
        tensors[labels] = torch.tensor([indices for indices, _ in categories], dtype=torch.long).T.contiguous()
    if value_names:
        tensors[values] = torch.from_numpy(np.stack(numbers, axis=1))
    vocabularies = {f"{labels}/{i}": words for i, (_, words) in enumerate(categories)}
    return EncodedColumns(tensors, vocabularies, {what: tuple(names[what]) for what in tensors})


def encode_categories(column: list[Any]) -> tuple[list[int], tuple[str, ...]]:
    """The category of each row, -1 where it is missing, and the names of the categories in order."""
    name_of = {value: category_name(value) for value in {value for value in column if value is not None}}
    are_whole = all(type(value) is int for value in name_of)
    names = tuple(sorted(set(name_of.values()), key=int if are_whole else str))
    index = {name: number for number, name in enumerate(names)}
    category = {value: index[name] for value, name in name_of.items()}
    return [NO_CATEGORY if value is None else category[value] for value in column], names


def category_name(value: Any) -> str:
    """The name of a value as a category; 1.0 is 1, as in tables.

    >>> category_name(1.0), category_name(True), category_name("C")
    ('1', 'true', 'C')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def quote_value(value: Any) -> str:
    """A value for messages; 'nothing' where it is missing."""
    return "nothing" if value is None or (isinstance(value, float) and math.isnan(value)) else quote(value)
