"""Graphs as people tell them: nodes, edges and graphs that carry columns with names; and the data set made of them.

A column of texts, whole numbers or true and false holds categories; one of numbers of which some have a point is
continuous, and lists of numbers are several such columns. Graphs are undirected unless said: an edge runs both ways.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.molecule_table import Table, targets_of
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError, shown
from mnagt.graphs.batch import GraphBatch
from mnagt.tasks import MultiLabel, Regression, Task, Unasked

TARGET = "y"
"""What is learned where nothing else is named."""

SPARE_CELLS, EMPTY_CELLS = 1 << 24, 64
"""Values that may be missing: so many, and so many more for each that is there."""

_SHOWN = 10

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class NamedColumns:
    """What all nodes or all edges carry, by name: a value a row, None where there is none."""

    kind: str
    """nodes or edges."""
    at: Callable[[int, str], str]
    """The place of a value, by row and name, as messages name it."""
    values: dict[str, list[Any]] = field(default_factory=dict)
    rows: int = 0
    label: str = ""
    """The file, as messages name it."""
    given: int = 0
    """Values that are not just missing."""

    def add(self, row: Mapping[str, Any]) -> None:
        self.given += len(row)
        for name in row:
            if name not in self.values:
                self._check_room(len(self.values) + 1)
                self.values[name] = [None] * self.rows
        self._check_room(len(self.values))
        for name, column in self.values.items():
            column.append(row.get(name))
        self.rows += 1

    def _check_room(self, columns: int) -> None:
        """Refuse a table that is nearly all empty: it would take many times as much as the file."""
        if columns * self.rows > SPARE_CELLS + EMPTY_CELLS * self.given:
            told = f"{self.rows:,} {self.kind} and {columns:,} columns so far, nearly all empty"
            raise InputError(f"{self.label or self.kind}: {told}; give all {self.kind} the same columns")

    def add_empty(self, rows: int) -> None:
        """Rows that carry nothing."""
        for column in self.values.values():
            column.extend([None] * rows)
        self.rows += rows


@dataclass(frozen=True, eq=False)
class GraphTable(Table):
    """What the graphs carry, as text; ``places`` says where each graph stands."""

    places: tuple[str, ...] = ()

    def at(self, row: int, column: str | None = None) -> str:
        return self.places[row] + ("" if column is None else f", {shown(column)}")

    @classmethod
    def of(cls, label: str, rows: Sequence[Mapping[str, Any]], places: Sequence[str]) -> "GraphTable":
        """A row of values a graph; a list is several columns: y/0, y/1, ..."""
        told = NamedColumns("graphs", lambda row, name: f"{places[row]}, {shown(name)}", label=label)
        for row, place in zip(rows, places, strict=True):
            told.add({name: each for key, value in row.items() for name, each in _laid_out(key, value, place).items()})
        texts = [["" if value is None else named(value) for value in column] for column in told.values.values()]
        cells = [list(row) for row in zip(*texts, strict=True)] if texts else [[] for _ in rows]
        return cls(label, tuple(told.values), cells, list(range(1, len(rows) + 1)), tuple(places))

    def named_targets(self, names: Sequence[str] | None, besides: str | None) -> tuple[str, ...]:
        """The columns ``names``, a list's being all of its; else ``TARGET``, or the only one there is."""
        if names is None:
            found = self._spread(TARGET)
            return found or self.target_columns(None, besides or "")
        return self.target_columns([each for name in names for each in self._spread(name) or (name,)], "")

    def _spread(self, name: str) -> tuple[str, ...]:
        return tuple(
            c for c in self.columns if c == name or (c.startswith(f"{name}/") and c[len(name) + 1 :].isdigit())
        )


@dataclass(frozen=True, eq=False)
class NamedGraphs:
    """Graphs laid end to end; nodes are numbered over all of them."""

    name: str
    sizes: Sequence[int]
    ends: Sequence[tuple[int, int]]
    """Source and destination of each edge."""
    is_directed: Sequence[bool]
    """Whether an edge runs one way only."""
    nodes: NamedColumns
    edges: NamedColumns
    table: GraphTable
    ids: Sequence[str | int]
    """What each graph is called; its number, if nothing else."""

    def packed(
        self,
        *,
        targets: Sequence[str] | None = None,
        task: str | Task = "auto",
        group: str | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> PackedDataset:
        """The data set. Graphs without any target are left out.

        ``targets`` and ``group`` name columns of the graphs, ``task`` says what is asked (see ``read_molecules``).
        ``columns`` are those that a model reads, by kind ('node_labels', ...): they are read as it does, others not.
        """
        table = self.table
        if not self.sizes:
            raise InputError(f"{table.label}: no graphs in it; give at least one")
        if targets is None and isinstance(task, MultiLabel | Regression):
            targets = task.names
        names = () if isinstance(task, Unasked) else table.named_targets(targets, group)
        is_guessed = task == "auto"
        task, answers, has_target = targets_of(table, names, task)
        nodes, edges = (_read(table.label, each, columns) for each in (self.nodes, self.edges))
        edge_index, line = _directions(table.label, self.ends, self.is_directed)
        batch = GraphBatch.from_edges(
            edge_index,
            list(self.sizes),
            node_labels=nodes.labels,
            node_values=nodes.values,
            edge_labels=None if edges.labels is None else edges.labels[line],
            edge_values=None if edges.values is None else edges.values[line],
            targets=answers,
        )
        counted = {
            "label_counts": {kind: counts for each in (nodes, edges) for kind, counts in each.label_counts.items()},
            "vocabularies": nodes.vocabularies | edges.vocabularies,
        }
        dataset = PackedDataset.from_batch(self.name, task, batch, **counted)
        kept = torch.from_numpy(np.flatnonzero(has_target))
        if len(kept) < len(dataset):
            _log.warning("%s", _left_out(table, has_target))
            if not len(kept):
                raise InputError(f"{_left_out(table, has_target)}; nothing is left")
            dataset = PackedDataset.from_batch(self.name, task, dataset.batch(kept), **counted)
        if is_guessed and names:
            _log.info("%s: %s taken as %s", table.label, ", ".join(names), task.kind)
        groups = None if group is None else group_numbers(table, group)[kept]
        return replace(dataset, columns=nodes.columns | edges.columns, groups=groups)

    def like(self, columns: Mapping[str, Sequence[str]]) -> "NamedGraphs":
        """The same graphs, to be read by the ``columns`` of others that came before them from the same source.

        A column that is missing here holds nothing. One that is new, or a category that turns out to be a number, is
        refused: the others would have been read otherwise.
        """
        for told in (self.nodes, self.edges):
            kind = told.kind.removesuffix("s")
            labels, values = (columns.get(f"{kind}_{what}", ()) for what in ("labels", "values"))
            for name, column in _spread(told).items():
                row = next((row for row, value in enumerate(column) if value is not None), 0)
                if name not in (*labels, *values):
                    raise InputError(
                        f"{told.at(row, name)}: a column that the first graphs do not have; give it to them, if only "
                        "as null, or leave it out"
                    )
                if name in labels and _is_continuous(told, name, column):
                    row = next(row for row, value in enumerate(column) if isinstance(value, float))
                    raise InputError(
                        f"{told.at(row, name)}: {_shown(column[row])} is a number, and those of the first graphs are "
                        "categories; write 3.0, not 3, where a column is one of numbers"
                    )
            spread = {name.rpartition("/")[0] for name in (*labels, *values)} & told.values.keys()
            for name in (*labels, *values):
                if name.rpartition("/")[0] not in spread:
                    told.values.setdefault(name, [None] * told.rows)
        return self


def named(value: Any) -> str:
    """A value as the name of a category: 1.0 is 1, as in tables."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def group_numbers(table: Table, column: str) -> Int[Tensor, "graphs"]:
    """A number for each group that ``column`` names."""
    if column not in table.columns:
        listed = ", ".join(map(repr, table.columns[:40])) or "none"
        raise InputError(f"{table.label}: no column {column!r} to split by (--split-column); there are: {listed}")
    texts = table.column(column)
    if "" in texts:
        raise InputError(f"{table.at(texts.index(''), column)}: no group; each graph needs one for a split by groups")
    return torch.from_numpy(np.unique(texts, return_inverse=True)[1].astype(np.int64))


def _laid_out(name: str, value: Any, place: str) -> dict[str, Any]:
    """A list as so many values with names of their own."""
    inner = {name: value}
    if isinstance(value, list | tuple):
        inner = {f"{name}/{i}": each for i, each in enumerate(value)}
    for key, each in inner.items():
        if not isinstance(each, str | int | float | None):
            raise InputError(f"{place}, {shown(key)}: expected a text, a number or a list of them, got {_shown(each)}")
    return inner


def _left_out(table: GraphTable, has_target: NDArray[np.bool_]) -> str:
    rows = np.flatnonzero(~has_target).tolist()
    told = "; ".join(table.places[row] for row in rows[:_SHOWN]) + ("; ..." if len(rows) > _SHOWN else "")
    return f"{table.label}: {len(rows):,} of {len(has_target):,} graphs have no target and are left out: {told}"


# Which way edges run


def _directions(
    label: str, ends: Sequence[tuple[int, int]], is_directed: Sequence[bool]
) -> tuple[Int[Tensor, "2 edges"], Int[Tensor, "edges"]]:
    """(source, destination) of each edge, and the row that its columns come from.

    Self loops are dropped, of equal edges the first is kept, and an undirected edge whose other direction is missing
    gets it.
    """
    pairs = np.array(ends, np.int64).reshape(-1, 2)
    row = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    key, first = np.unique(pairs[row, 0] << 32 | pairs[row, 1], return_index=True)
    row, dropped = row[first], len(pairs) - len(key)
    back = key >> 32 | key << 32
    is_new = ~np.array(is_directed, bool)[row] & ~np.isin(back, key, assume_unique=True)
    key, row = np.concatenate([key, back[is_new]]), np.concatenate([row, row[is_new]])
    if dropped:
        _log.info("%s: %d self loops and repeated edges were dropped", label, dropped)
    return torch.from_numpy(np.stack([key >> 32, key & 0xFFFFFFFF])), torch.from_numpy(row)


# What columns hold


@dataclass(frozen=True)
class _Read:
    """The columns of nodes or edges as tensors."""

    labels: Int[Tensor, "rows _"] | None
    values: Float[Tensor, "rows _"] | None
    label_counts: dict[str, tuple[int, ...]]
    vocabularies: dict[str, tuple[str, ...]]
    columns: dict[str, tuple[str, ...]]


def _read(label: str, told: NamedColumns, wanted: Mapping[str, Sequence[str]] | None) -> _Read:
    kind = told.kind.removesuffix("s")
    found = _spread(told)
    if wanted is None:
        is_value = {name: _is_continuous(told, name, column) for name, column in found.items()}
        of_labels, of_values = ([n for n in found if is_value[n] is which] for which in (False, True))
    else:
        of_labels, of_values = (list(wanted.get(f"{kind}_{what}", ())) for what in ("labels", "values"))
        for name in (*of_labels, *of_values):
            if name not in found and told.rows:
                there = ", ".join(map(repr, found)) or "none"
                raise InputError(
                    f"{label}: the model reads {name!r} of {told.kind}, which is not there; there are: {there}"
                )
    nothing = [None] * told.rows
    categories = [_categories(found.get(name, nothing)) for name in of_labels]
    numbers = [_numbers(told, name, found.get(name, nothing)) for name in of_values]
    if found and wanted is None:
        words = [f"{n} ({len(names)} categories)" for n, (_, names) in zip(of_labels, categories, strict=True)]
        _log.info("%s: %s have %s", label, told.kind, ", ".join(words + [f"{name} (a number)" for name in of_values]))
    labels, values = f"{kind}_labels", f"{kind}_values"
    return _Read(
        torch.tensor([index for index, _ in categories], dtype=torch.long).T.contiguous() if of_labels else None,
        torch.from_numpy(np.stack(numbers, axis=1)) if of_values else None,
        {labels: tuple(len(names) for _, names in categories)} if of_labels else {},
        {f"{labels}/{i}": names for i, (_, names) in enumerate(categories)},
        {what: tuple(names) for what, names in ((labels, of_labels), (values, of_values)) if names},
    )


def _spread(told: NamedColumns) -> dict[str, list[Any]]:
    """The columns, one of lists cut into as many as its lists are long."""
    found: dict[str, list[Any]] = {}
    for name, column in told.values.items():
        for row, value in enumerate(column):
            for each in value if isinstance(value, list | tuple) else (value,):
                is_huge = each is not value and type(each) is int and abs(each) >= 2**1023  # no float holds it
                if is_huge or not isinstance(each, str | int | float | None):
                    raise InputError(f"{told.at(row, name)}: expected a text, a number or a list, got {_shown(each)}")
        if not any(isinstance(value, list | tuple) for value in column):
            found[name] = column
            continue
        length = next(len(value) for value in column if isinstance(value, list | tuple))
        for row, value in enumerate(column):
            if not isinstance(value, list | tuple) or len(value) != length:
                raise InputError(f"{told.at(row, name)}: expected a list of {length} as before, got {_shown(value)}")
        found |= {
            f"{name}/{i}": [float(v) if type(v) is int else v for v in each]
            for i, each in enumerate(zip(*column, strict=True))
        }
    return found


def _is_continuous(told: NamedColumns, name: str, column: list[Any]) -> bool:
    """Whether a column is one of numbers; what is at odds with the rest is refused."""
    texts = numbers = points = 0
    for value in column:
        texts += isinstance(value, str)
        numbers += isinstance(value, int | float)
        points += isinstance(value, float)
    if texts and numbers:
        wrong, was = (str, "a text") if texts <= numbers else (int | float, "a number")
        row = next(row for row, value in enumerate(column) if isinstance(value, wrong))
        others = "numbers" if texts <= numbers else "texts"
        raise InputError(f"{told.at(row, name)}: {_shown(column[row])} is {was}, and others are {others}; mend it")
    return points > 0


def _categories(column: list[Any]) -> tuple[list[int], tuple[str, ...]]:
    """The number of each row's category, -1 for none, and what they are called."""
    of_value = {value: named(value) for value in {value for value in column if value is not None}}
    are_whole = all(type(value) is int for value in of_value)
    names = tuple(sorted(set(of_value.values()), key=int if are_whole else str))
    place = {name: number for number, name in enumerate(names)}
    number = {value: place[name] for value, name in of_value.items()}
    return [-1 if value is None else number[value] for value in column], names


def _numbers(told: NamedColumns, name: str, column: list[Any]) -> NDArray[np.float32]:
    largest = float(np.finfo(np.float32).max)
    for row, value in enumerate(column):
        if not isinstance(value, int | float) or not abs(value) <= largest:
            raise InputError(f"{told.at(row, name)}: expected a finite number, got {_shown(value)}; fill it in")
    return np.array(column, np.float32)


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "nothing"
    return shown(value)
