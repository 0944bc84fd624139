"""Tables of texts: CSV and TSV with a header, and .smi files (a SMILES and its name on each line)."""

import csv
import io
import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mnagt.data.archives import MAX_PARSED_BYTES, Archive
from mnagt.data.readers import rdkit_worker
from mnagt.errors import InputError, join_names, quote, suggest
from mnagt.files import suggest_file
from mnagt.registry import lookup
from mnagt.tasks import TASKS, Regression, Task, Unlabelled
from mnagt.tasks.base import Level
from mnagt.tasks.guess import guess_kind
from mnagt.tasks.target_column import BOUNDS, MISSING, TargetColumn, convert_decimal_commas, parse_binary, parse_number

TABLES = (".csv", ".tsv", ".smi", ".smiles", ".sdf")
"""Suffixes of tables of molecules; each may be followed by .gz."""

_SMILES_NAMES = ("smiles", "smile", "smi", "canonical_smiles", "isomeric_smiles", "mol", "molecule", "structure")
_REACTION_NAMES = ("rxn_smiles", "reaction_smiles", "rxn", "reaction", "reactions", "aam", "mapped_rxn")
_NO_TARGETS = ("", "id", "mol_id", "name", "mol_name", "cid", "inchi", "inchikey", "split")
"""Columns that are no targets unless they are named."""
_NAMES = ("name", "mol_name", "compound", "compound_name", "drug", "drug_name", "title", "id", "mol_id", "cid")
"""Columns by which molecules are called."""
_MAX_LISTED = 40
"""Columns that a message lists."""
_ROWS_AFTER_HEADER = 5
"""Rows that show whether a first line is a row like them."""
_MAX_OUTLIERS = 5
"""Outliers that a message names one by one."""
_MAX_FIELD_BYTES = 1 << 24

ALL = "all"
"""In place of target columns: every column of numbers."""
_PATTERN, _ID_WORDS = set("*?["), {"id", "ids", "cid", "cas", "index", "idx", "key", "inchikey"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of a file by name: of texts, or of values that are None where they are missing."""

    label: str
    """The file, for messages."""
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int]
    """The line of each row in the file, counted from 1."""
    line_name: str = "line"
    """'row' for files without lines."""
    files: Sequence[str] = ()
    """The file of each row, where there are several."""

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def name(self) -> str:
        """The file's name without its suffixes."""
        return Path(self.label.removesuffix(".gz")).stem

    def select(self, rows: Sequence[int]) -> "Table":
        """Only these rows, in this order."""
        columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        files = [self.files[row] for row in rows] if self.files else ()
        return replace(self, columns=columns, lines=[self.lines[row] for row in rows], files=files)

    def column(self, name: str) -> list[str]:
        """The texts of a column, stripped."""
        return [text.strip() for text in self.columns[name]]

    def has_values(self, row: int) -> bool:
        """Whether any cell of a row holds something."""
        return any(column[row] for column in self.columns.values())

    def find_smiles_column(self, name: str | None = None) -> str:
        """The column ``name``, or else the first with a usual name for SMILES."""
        if name is not None:
            return self.check_column(name, "smiles")
        by_name = {column.strip().lower(): column for column in reversed(list(self.columns))}
        columns = [by_name[usual] for usual in (*_SMILES_NAMES, *_REACTION_NAMES) if usual in by_name]
        if not columns:
            raise InputError(f"{self.label}: which column holds the SMILES? Name it (--smiles); {self._available}")
        return columns[0]

    def find_smiles_columns(self, names: str | None = None) -> tuple[str, ...]:
        """The columns ``names``, with commas between several, or else the one with a usual name for SMILES."""
        columns = [self.find_smiles_column(name) for name in self.split_names(names)]
        if len(set(columns)) < len(columns):
            raise InputError(f"{self.label}: --smiles names a column twice; name a column for each component")
        return tuple(columns)

    def split_names(self, names: str | None) -> Sequence[str | None]:
        """The parts of ``names`` between commas; all of it where that is a column."""
        return [names] if names is None or names in self.columns else [name.strip() for name in names.split(",")]

    def read_rows(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The SMILES of each row in these columns, without needless spaces."""
        cells = [[" ".join(text.split()) for text in self.column(name)] for name in columns]
        return list(zip(*cells, strict=True))

    def find_name_column(self) -> str | None:
        """The first column with a usual name for names or identifiers of molecules, if there is one."""
        by_name = {column.strip().lower().replace(" ", "_"): column for column in reversed(list(self.columns))}
        return next((by_name[usual] for usual in _NAMES if usual in by_name), None)

    def find_target_columns(self, names: Sequence[str] | None, others: Collection[str]) -> tuple[str, ...]:
        """The columns ``names``, or else the only one besides ``others`` that can be a target, if there is any.

        A name with ``*``, ``?`` or ``[`` that no column has is a pattern (``NR-*``), and ``all`` stands for every
        column of numbers that is neither an id nor among ``others``. Commas stand between several (``active,logP``).
        """
        if names is not None:
            targets = [each for name in names for each in self._expand_name(name, others)]
            return tuple(dict.fromkeys(targets))
        targets = [c for c in self.columns if c not in others and c.strip().lower() not in _NO_TARGETS]
        if len(targets) > 1:
            raise InputError(f"{self.label}: which column is the target? Name it (--target); {self._available}")
        return tuple(targets)

    def _expand_name(self, name: str, others: Collection[str]) -> list[str]:
        """The columns that a name, a pattern or ``all`` stands for, or several of them with commas between."""
        if name not in self.columns and "," in name:
            return [each for part in name.split(",") for each in self._expand_name(part.strip(), others)]
        if name in self.columns or not (name == ALL or _PATTERN & set(name)):
            return [self.check_column(name, "target")]
        if name != ALL:
            if matching := [c for c in self.columns if c not in others and fnmatchcase(c, name)]:
                return matching
            raise InputError(f"{self.label}: no column is like {quote(name)} (--target); {self._available}")
        reasons = {c: self.why_no_target(c) for c in self.columns if c not in others}
        left_out = [f"{c} ({reason})" for c, reason in reasons.items() if reason]
        if matching := [c for c, reason in reasons.items() if not reason]:
            _log.info("%s: targets are %s; left out: %s", self.label, join_names(matching), join_names(left_out))
            return matching
        raise InputError(f"{self.label}: no column of numbers to learn; left out: {join_names(left_out)}")

    def why_no_target(self, name: str) -> str:
        """Why ``all`` leaves a column out; empty if it does not."""
        texts = [text for text in self.column(name) if text.lower() not in MISSING]
        words = re.split(r"[^a-z]+", name.lower())
        if name.strip().lower() in _NO_TARGETS or _ID_WORDS & set(words):
            return "an id"
        if not texts:
            return "empty"
        numbers = [parse_number(text.lstrip(BOUNDS).replace(",", ".")) for text in texts]
        binary = [parse_binary(text) for text in texts]
        if None in numbers and None in binary:
            return "not numbers"
        steps = {after - before for before, after in pairwise(numbers) if before is not None and after is not None}
        return "counts the rows" if steps == {1.0} and len(texts) == len(self) > 2 else ""

    def check_column(self, name: str, option: str) -> str:
        """The column of this name, spaces around it aside; an error that mentions ``option`` where there is none."""
        if name not in self.columns:
            if alike := [column for column in self.columns if column.strip() == name.strip()]:
                return alike[0]
            hint = suggest(name, self.columns)
            raise InputError(f"{self.label}: no column {quote(name)} (--{option}); {hint}{self._available}")
        return name

    @property
    def _available(self) -> str:
        names = [*list(self.columns)[:_MAX_LISTED], *["..."] * (len(self.columns) > _MAX_LISTED)]
        return f"there are: {join_names(names, 600)}"

    def name_line(self, row: int) -> str:
        """The line of a row, for lists of lines in messages."""
        return f"{self.lines[row]} of {Path(self.files[row]).name}" if self.files else str(self.lines[row])

    def locate(self, row: int, column: str | None = None) -> str:
        """Where a row or cell is in the file, for messages."""
        where = f"{self.files[row] if self.files else self.label}, {self.line_name} {self.lines[row]}"
        return where if column is None else f"{where}, column {quote(column)}"


def join_tables(tables: Sequence[Table]) -> Table:
    """The rows of all tables, under the name of the first; an error where one lacks a column that may be a target."""
    first, lacking = tables[0], set()
    for table in tables[1:]:
        missing = [name for name in first.columns if name not in table.columns]
        if needed := [name for name in missing if name.strip().lower() not in _NO_TARGETS]:
            raise InputError(
                f"{table.label}: no column {quote(needed[0])}, which {first.label} has; {table._available}"
            )
        lacking |= set(missing)
    names = [name for name in first.columns if name not in lacking]
    columns = {name: [text for table in tables for text in table.columns[name]] for name in names}
    lines = [line for table in tables for line in table.lines]
    return Table(first.label, columns, lines, files=[table.label for table in tables for _ in table.lines])


def read_table(path: Path, *, may_lack_header: bool = False) -> Table:
    """The table in a file. With ``may_lack_header``, a first line with a SMILES above others is a row.

    Its columns are then called ``smiles``, ``column 2``, ...
    """
    if not path.is_file():
        hint = suggest_file(path) or f"give a table of molecules ({', '.join(TABLES)}, each also as .gz)"
        raise InputError(f"{path}: no such file; {hint}")
    return parse_table(path, read_text(path), may_lack_header=may_lack_header)


def parse_table(path: Path, text: str, *, may_lack_header: bool = False) -> Table:
    """The table whose file ``path`` holds ``text``; see ``read_table``."""
    if not text.strip():
        raise InputError(f"{path}: the file is empty; give a table with a header and a row a molecule")
    if (delimiter := find_delimiter(path, text.split("\n", 1)[0])) is None:
        return _parse_smiles_lines(path, text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines, limit = [], [], csv.field_size_limit(_MAX_FIELD_BYTES)
    try:
        columns = tuple(next(reader))
        for row in reader:
            if len(row) not in (0, len(columns)):
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(row)} fields, and the header has {len(columns)}; fix "
                    "the row (text with commas goes between quotes, and so do numbers with a decimal comma)"
                )
            rows.append(row or [""] * len(columns))
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}; fix the row") from None
    finally:
        csv.field_size_limit(limit)
    if may_lack_header and (index := _find_smiles_in_header(columns, rows)) is not None:
        rows, lines = [list(columns), *rows], [1, *lines]
        columns = tuple("smiles" if i == index else f"column {i + 1}" for i in range(len(columns)))
        _log.warning("%s: the first line is no header; its columns are called %s", path, join_names(columns))
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise InputError(f"{path}, line 1: column {quote(twice[0])} is there twice; rename one")
    return _make_table(path, columns, rows, lines)


def find_delimiter(path: Path, header: str) -> str | None:
    """What is between the fields of a table with this first line; None for .smi files, which have spaces."""
    suffix = Path(str(path).lower().removesuffix(".gz")).suffix
    if suffix in (".smi", ".smiles"):
        return None
    return "\t" if suffix == ".tsv" else max(",;\t", key=header.count)


def read_text(path: Path) -> str:
    """The content of a file in UTF-8, which may be compressed (.gz)."""
    content = b"".join(Archive(path.parent).read_blocks(path.name, MAX_PARSED_BYTES))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = content[error.start]
        raise InputError(f"{path}, line {line}: byte 0x{byte:02x} is not UTF-8; save the file in UTF-8") from None


def _find_smiles_in_header(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int | None:
    """The column in which the first line has a SMILES as the next lines have, so that it is no header."""
    if any(name.strip().lower() in _SMILES_NAMES for name in header) or not find_spec("rdkit"):
        return None
    for index, name in enumerate(header):
        if name.strip():
            sizes = rdkit_worker.graph_rows([name, *(row[index] for row in rows[:_ROWS_AFTER_HEADER])])["sizes"]
            if sizes.all():
                return index
    return None


def _parse_smiles_lines(path: Path, text: str) -> Table:
    """A SMILES on each line, and after a space or tab its name. A first line that says so is a header."""
    rows = [[*line.split(maxsplit=1), "", ""][:2] for line in text.split("\n")]
    lines = list(range(1, len(rows) + 1))
    if rows[0][0].lower() in _SMILES_NAMES:
        rows, lines = rows[1:], lines[1:]
    return _make_table(path, ("smiles", "name"), rows, lines)


def _make_table(path: Path, names: Sequence[str], rows: list[list[str]], lines: list[int]) -> Table:
    """The table of these rows without empty ones at the end."""
    while rows and not any(rows[-1]):
        rows.pop()
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return Table(str(path), dict(zip(names, columns, strict=True)), lines[: len(rows)])


def read_targets(
    table: Table, names: Sequence[str], task: str | Task, *, may_be_lists: bool = False
) -> tuple[Task, Tensor, Bool[np.ndarray, "rows"]]:
    """The task, the targets of each row of the table, and which rows have any.

    ``task`` is one of ``TASK_CHOICES`` ('auto' guesses it from the columns ``names``), or a task that they must fit.
    With ``may_be_lists`` a cell may list them; ``with_list_targets`` then reads them when the graphs are known.
    """
    if not names:
        return Unlabelled(), torch.zeros(len(table), 0), np.ones(len(table), bool)
    columns = [read_column(table, name) for name in names]
    if find_level(task) == "graph":
        columns = [convert_decimal_commas(column) for column in columns]
    elif not may_be_lists:
        raise InputError(
            f"{table.label}: targets of {find_level(task)}s are read from tables of molecules ({', '.join(TABLES)}); "
            "give others in Python: from_graphs(graphs, targets, task='node-regression')"
        )
    if isinstance(task, str):
        for column in columns:
            if not column.values:
                raise InputError(f"{table.label}: column {quote(column.name)} is empty; leave it out (--target)")
        kind = task
        if task == "auto":
            kind = guess_kind(columns)
            _log.info("%s: the task for %s is %s (--task sets another)", table.label, ", ".join(names), kind)
        task = lookup(TASKS, kind, "task").from_columns(columns)
        for column in columns if kind == Regression.kind else ():
            column.report_rounding()
        _report_outliers(task, columns)
    return task, task.parse_targets(columns), has_any_target(table, names)


def find_level(task: str | Task) -> Level:
    """What has a target: each graph, or each of its nodes or edges."""
    if isinstance(task, str):
        return "graph" if task == "auto" else lookup(TASKS, task, "task").level
    return task.level


def _report_outliers(task: Task, columns: Sequence[TargetColumn]) -> None:
    """Log numbers that are far from all others, with their lines."""
    is_outlier = task.find_outliers(task.parse_targets(columns))
    for column, rows in zip(columns, is_outlier.T, strict=False):
        if cells := rows.nonzero()[:, 0].tolist():
            listed = [f"{column.locate(row)}: {column.texts[row]}" for row in cells[:_MAX_OUTLIERS]]
            _log.warning(
                "%s: %d values of %s lie more than 10 robust deviations from the median; check them, or let them weigh "
                "less (--target-transform log or rank): %s",
                *(column.label, len(cells), column.name, "; ".join([*listed, *["..."] * (len(cells) > len(listed))])),
            )


def has_any_target(table: Table, names: Sequence[str]) -> Bool[np.ndarray, "rows"]:
    """Which rows have a value in any of these columns."""
    columns = [read_column(table, name).texts for name in names]
    return np.array([any(texts) for texts in zip(*columns, strict=True)], bool)


def read_row_weights(table: Table, name: str) -> Float[Tensor, "rows"]:
    """The weight of each row: a number above 0 in its cell."""
    column = read_column(table, table.check_column(name, "row-weights"))
    weights = column.parse(parse_number, math.nan, "no weight of a row, a number above 0; fix it")
    for row, weight in enumerate(weights):
        if not weight > 0:
            raise InputError(f"{column.locate(row)}: a row needs a weight above 0; fix it, or leave the row out")
    return torch.tensor(weights)


def read_column(table: Table, name: str) -> TargetColumn:
    """The texts of a column, empty where they stand for a missing value, with hyphens for typographic minus signs."""
    texts = ["" if text.lower() in MISSING else text.replace("\N{MINUS SIGN}", "-") for text in table.column(name)]
    return TargetColumn(name, texts, table.label, lambda row: table.locate(row, name))
