"""Tables of molecules, one row each: CSV and TSV with a head, and .smi files (a SMILES and its name a line).

``read_molecules`` makes a data set of one. The columns are found by name where that is obvious, the task by what the
target columns hold. Rows that give no graph or have no target are left out and reported, with their lines.
"""

import csv
import io
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data import TABLES, cache
from mnagt.data.archives import LARGEST_TOLD, Archive
from mnagt.data.packed import PackedDataset
from mnagt.data.smiles import VERSION, Refused, molecules, rdkit_version, smiles_of
from mnagt.errors import InputError, listed, shown
from mnagt.tasks import NO_CLASS, MultiLabel, Regression, SingleLabel, Task, Unasked

KINDS = (SingleLabel.kind, MultiLabel.kind, Regression.kind)

_SMILES_NAMES = ("smiles", "smile", "smi", "canonical_smiles", "isomeric_smiles", "mol", "molecule", "structure")
_OTHER_NAMES = ("", "id", "mol_id", "name", "mol_name", "cid", "inchi", "inchikey", "split")
"""Columns that are not to be learned, unless that is said."""
_MISSING = ("", "nan", "na")
_ANSWERS = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}
_TOLD = 10
"""Rows left out that the log names one by one."""
_LISTED = 40
"""Columns that a message names."""
_LONGEST_FIELD = 1 << 24

_log = logging.getLogger(__name__)


# The file


@dataclass(frozen=True, eq=False)
class Table:
    """A table of texts."""

    label: str
    """The file as messages name it."""
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    """The line of each row in the file, counted from 1."""

    @property
    def name(self) -> str:
        """The file's name without its suffixes."""
        return Path(self.label.removesuffix(".gz")).stem

    def taken(self, rows: Sequence[int]) -> "Table":
        """Only these rows, in this order."""
        return replace(self, rows=[self.rows[row] for row in rows], lines=[self.lines[row] for row in rows])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.columns)}

    def column(self, name: str) -> list[str]:
        place = self._places[name]
        return [row[place].strip() for row in self.rows]

    def smiles_column(self, name: str | None = None) -> str:
        """The column called ``name``, or else the one that is obviously of SMILES."""
        if name is not None:
            return self._checked(name, "smiles")
        by_name = {column.strip().lower(): column for column in reversed(self.columns)}
        found = [by_name[known] for known in _SMILES_NAMES if known in by_name]
        if not found:
            raise InputError(f"{self.label}: which column holds the SMILES? Name it (--smiles); {self._listed}")
        return found[0]

    def target_columns(self, names: Sequence[str] | None, smiles: str) -> tuple[str, ...]:
        """The columns ``names``, or else the only one that can be meant; none where there are no others."""
        if names is not None:
            return tuple(self._checked(name, "target") for name in dict.fromkeys(names))
        found = [c for c in self.columns if c != smiles and c.strip().lower() not in _OTHER_NAMES]
        if len(found) > 1:
            raise InputError(f"{self.label}: which columns are to be learned? Name them (--target); {self._listed}")
        return tuple(found)

    def _checked(self, name: str, option: str) -> str:
        if name not in self._places:
            raise InputError(f"{self.label}: no column {shown(name)} (--{option}); {self._listed}")
        return name

    @property
    def _listed(self) -> str:
        names = [*self.columns[:_LISTED], *["..."] * (len(self.columns) > _LISTED)]
        return f"there are: {listed(names, 600)}"

    def at(self, row: int, column: str | None = None) -> str:
        """A place in the file, as messages name it."""
        return f"{self.label}, line {self.lines[row]}" + ("" if column is None else f", column {shown(column)}")


def read_table(path: Path) -> Table:
    """The table in a file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a table of molecules ({', '.join(TABLES)}, each also as .gz)")
    text = _text(path)
    if not text.strip():
        raise InputError(f"{path}: the file is empty; give a table with a head and a row a molecule")
    if str(path).lower().removesuffix(".gz").endswith((".smi", ".smiles")):
        return _smiles_lines(path, text)
    is_tsv = str(path).lower().removesuffix(".gz").endswith(".tsv")
    between = "\t" if is_tsv else max(",;\t", key=text.split("\n", 1)[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=between, strict=True)
    rows, lines, limit = [], [], csv.field_size_limit(_LONGEST_FIELD)
    try:
        columns = tuple(next(reader))
        for row in reader:
            if len(row) not in (0, len(columns)):
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(row)} fields, and the head has {len(columns)}; mend the row "
                    "(text with commas goes between quotes)"
                )
            rows.append(row or [""] * len(columns))
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}; mend the row") from None
    finally:
        csv.field_size_limit(limit)
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise InputError(f"{path}, line 1: column {shown(twice[0])} is there twice; rename one")
    return Table(str(path), columns, *_trimmed(rows, lines))


def _text(path: Path) -> str:
    content = b"".join(Archive(path.parent).blocks(path.name, LARGEST_TOLD))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = content[error.start]
        raise InputError(f"{path}, line {line}: byte 0x{byte:02x} is not UTF-8; save the file in UTF-8") from None


def _smiles_lines(path: Path, text: str) -> Table:
    """A SMILES a line, and after a space or tab what it is called. A first line that says so is a head."""
    rows = [(*line.split(maxsplit=1), "", "")[:2] for line in text.split("\n")]
    lines = list(range(1, len(rows) + 1))
    if rows[0][0].lower() in _SMILES_NAMES:
        rows, lines = rows[1:], lines[1:]
    return Table(str(path), ("smiles", "name"), *_trimmed([list(row) for row in rows], lines))


def _trimmed(rows: list[list[str]], lines: list[int]) -> tuple[list[list[str]], list[int]]:
    """Without empty rows at the end."""
    while rows and not any(rows[-1]):
        rows.pop()
    return rows, lines[: len(rows)]


# The data set


@dataclass(frozen=True, eq=False)
class MoleculeTable:
    """What became of a table."""

    dataset: PackedDataset
    table: Table
    smiles: str
    """The column of SMILES."""
    targets: tuple[str, ...]
    """The columns to learn."""
    kept: Int[Tensor, "graphs"]
    """The row of each graph, counted from 0."""
    refused: tuple[Refused, ...]
    """The other rows, in order."""

    def __str__(self) -> str:
        """The rows left out, in a line."""
        told = [f"line {self.table.lines[row.row]} ({row.reason})" for row in self.refused[:_TOLD]]
        more = [f"and {len(self.refused) - _TOLD:,} more"] if len(self.refused) > _TOLD else []
        return (
            f"{self.table.label}: {len(self.refused):,} of {len(self.table.rows):,} rows left out"
            f"{': ' if told else ''}{'; '.join(told + more)}"
        )


def read_molecules(
    path: Path | str, *, smiles: str | None = None, targets: Sequence[str] | None = None, task: str | Task = "auto"
) -> MoleculeTable:
    """The data set in a table of molecules.

    ``task`` is one of ``KINDS``, or a task that the targets must fit; 'auto' finds it from the columns. One column of
    two values, or of texts, is a choice of classes; several of 0 and 1 are questions; numbers are numbers. Nothing,
    'nan' and 'NA' stand for a missing value.
    """
    table = read_table(Path(path))
    if not table.rows:
        raise InputError(f"{table.label}: no rows under the head; add a row a molecule")
    column = table.smiles_column(smiles)
    if targets is None and isinstance(task, MultiLabel | Regression):
        targets = task.names
    names = table.target_columns(() if isinstance(task, Unasked) else targets, column)
    is_guessed = task == "auto"
    task, values, has_target = targets_of(table, names, task)
    texts = [" ".join(text.split()) for text in table.column(column)]
    asked = np.flatnonzero(has_target)
    graphs = _graphs(table.name, [texts[row] for row in asked.tolist()])
    readable = set(smiles_of(graphs))
    is_kept = has_target & np.array([text in readable for text in texts], bool)
    unread = [row for row in asked.tolist() if not is_kept[row]]
    missing = f"no value of {names[0]}" if len(names) == 1 else "no value of any target"
    reasons = {row: missing if any(table.rows[row]) else "empty row" for row in np.flatnonzero(~has_target).tolist()}
    reasons |= {unread[each.row]: each.reason for each in molecules([texts[row] for row in unread]).refused}
    kept = torch.from_numpy(np.flatnonzero(is_kept))
    dataset = replace(graphs, name=table.name, task=task, targets=values[kept])
    refused = tuple(Refused(row, texts[row], reasons[row]) for row in sorted(reasons))
    found = MoleculeTable(dataset, table, column, names, kept, refused)
    if not len(kept):
        raise InputError(f"{found}; nothing is left")
    if is_guessed and names:
        _log.info("%s: %s taken as %s", table.label, ", ".join(names), task.kind)
    if refused:
        _log.warning("%s", found)
    return found


def _graphs(name: str, smiles: list[str]) -> PackedDataset:
    """Those that can be read; kept by the SMILES and by the version of RDKit, which may come to read others."""
    parts = VERSION, rdkit_version(), "\n".join(smiles)
    return cache.cached(*parts, build=lambda: molecules(smiles, name=name).graphs)


# What the targets say


@dataclass(frozen=True, eq=False)
class _Column:
    """A column of targets."""

    name: str
    texts: list[str]
    """Empty where there is no value."""

    @classmethod
    def of(cls, table: Table, name: str) -> "_Column":
        return cls(name, ["" if text.lower() in _MISSING else text for text in table.column(name)])

    @cached_property
    def values(self) -> set[str]:
        """Those there are."""
        return set(self.texts) - {""}

    @property
    def classes(self) -> tuple[str, ...]:
        """The values, in order."""
        found = {_class(text) for text in self.values}
        are_numbers = all(_number(each) is not None for each in found)
        return tuple(sorted(found, key=float if are_numbers else str))

    def rows_not(self, read: Callable[[str], object]) -> list[int]:
        """Rows with a value that ``read`` makes None of."""
        strange = {text for text in self.values if read(text) is None}
        return [row for row, text in enumerate(self.texts) if text in strange] if strange else []

    def read(self, read: Callable[[str], float | None], missing: float) -> list[float | None]:
        """What ``read`` makes of each row."""
        known = {text: read(text) for text in self.values} | {"": missing}
        return [known[text] for text in self.texts]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if "_" not in text and abs(value) <= float(np.finfo(np.float32).max) else None


def _answer(text: str) -> float | None:
    return _ANSWERS.get(_class(text).lower())


def _class(text: str) -> str:
    """1.0, as tables with missing values come to be written, is 1."""
    value = _number(text)
    return text if value is None or not value.is_integer() else str(int(value))


def targets_of(table: Table, names: tuple[str, ...], task: str | Task) -> tuple[Task, Tensor, np.ndarray]:
    """The task, a row of targets for each row of the table, and which rows have any."""
    if not names:
        return Unasked(), torch.zeros(len(table.rows), 0), np.ones(len(table.rows), bool)
    columns = [_Column.of(table, name) for name in names]
    for column in columns:
        if not column.values and not isinstance(task, Task):
            raise InputError(f"{table.label}: column {shown(column.name)} is empty; leave it out (--target)")
    kind = task.kind if isinstance(task, Task) else _kind(table, columns) if task == "auto" else task
    has_target = has_any(table, names)
    if kind == SingleLabel.kind:
        return *_classes(table, columns, task if isinstance(task, SingleLabel) else None), has_target
    if kind not in KINDS:
        raise InputError(f"{table.label}: task {kind!r} cannot be learned from a table; choose {', '.join(KINDS)}")
    read, wanted = (_number, "a number nor") if kind == Regression.kind else (_answer, "0, 1 nor")
    for column in columns:
        for row in column.rows_not(read)[:1]:
            raise InputError(
                f"{table.at(row, column.name)}: {shown(column.texts[row])} is neither {wanted} empty; mend it"
            )
    values = torch.tensor([column.read(read, math.nan) for column in columns], dtype=torch.float32).T.contiguous()
    if isinstance(task, Task):
        return task, values, has_target
    return Regression(names) if kind == Regression.kind else MultiLabel(names, "rocauc"), values, has_target


def has_any(table: Table, names: Sequence[str]) -> np.ndarray:
    """Which rows hold a value in any of these columns."""
    columns = [_Column.of(table, name).texts for name in names]
    return np.array([any(texts) for texts in zip(*columns, strict=True)], bool)


def _kind(table: Table, columns: list[_Column]) -> str:
    """What is asked, by what the columns hold; an error where a value is at odds with the others."""
    return _kind_of_one(table, *columns) if len(columns) == 1 else _kind_of_several(table, columns)


def _kind_of_one(table: Table, column: _Column) -> str:
    rows, classes = sum(map(bool, column.texts)), len(column.classes)
    no_number, no_answer = column.rows_not(_number), column.rows_not(_answer)
    if classes <= 2:
        return SingleLabel.kind
    if len(no_number) == rows:
        if 2 * classes > rows:
            raise InputError(
                f"{table.label}: column {shown(column.name)} holds {classes:,} different texts in {rows:,} rows; "
                f"classes are fewer: choose another column (--target), or say --task {SingleLabel.kind}"
            )
        return SingleLabel.kind
    if no_number:
        raise _odd(table, column, no_number[0], "not a number, and others are")
    if 20 * len(no_answer) < rows:
        raise _odd(table, column, no_answer[0], "neither 0 nor 1, as nearly all others are")
    return Regression.kind


def _kind_of_several(table: Table, columns: list[_Column]) -> str:
    questions = [column for column in columns if not column.rows_not(_answer)]
    if len(questions) == len(columns):
        return MultiLabel.kind
    for column in columns:
        for row in column.rows_not(_number)[:1]:
            raise _odd(table, column, row, "neither a number nor empty, and several targets are numbers")
        for row in column.rows_not(_answer)[: len(questions)]:
            raise _odd(table, column, row, f"neither 0, 1 nor empty, as all of {shown(questions[0].name)} are")
    return Regression.kind


def _odd(table: Table, column: _Column, row: int, told: str) -> InputError:
    return InputError(
        f"{table.at(row, column.name)}: {shown(column.texts[row])} is {told}; mend it, or say what is meant: --task "
        f"{' or '.join(KINDS)}"
    )


def _classes(table: Table, columns: list[_Column], task: SingleLabel | None) -> tuple[SingleLabel, Tensor]:
    if len(columns) > 1:
        raise InputError(f"{table.label}: one column holds the class, and {len(columns)} are named; choose one")
    (column,) = columns
    if task is None:
        if len(column.classes) < 2:
            raise InputError(f"{table.label}: column {shown(column.name)} holds one value only; nothing to tell apart")
        task = SingleLabel(column.classes)
    place = {name: number for number, name in enumerate(task.classes)}

    def read(text: str) -> int | None:
        return place.get(_class(text))

    for row in column.rows_not(read)[:1]:
        raise InputError(
            f"{table.at(row, column.name)}: {shown(column.texts[row])} is no class here; there are: {listed(place)}"
        )
    return task, torch.tensor(column.read(read, NO_CLASS), dtype=torch.long)
