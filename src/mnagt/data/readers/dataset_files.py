"""The files of a data set in the TU or the OGB layout, found in a folder or a zip, and the number tables in them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from mnagt.data.archives import Archive
from mnagt.data.readers.number_tables import INTEGERS, Kind, check_range, parse_table, refuse_line
from mnagt.errors import InputError

TU_FIELDS = (
    "A",
    "graph_indicator",
    "graph_labels",
    "graph_attributes",
    "node_labels",
    "node_attributes",
    "edge_labels",
    "edge_attributes",
)
OGB_SUFFIX = ".csv.gz"
OGB_MARK = f"raw/num-node-list{OGB_SUFFIX}"
"""The file by which the OGB layout is recognised."""
OGB_MAPPINGS = ("mapping/mol", "mapping/typeidx2type", "mapping/attridx2attr")
OFFICIAL_SPLITS = ("scaffold", "project")

_OGB_PATTERNS = [f"{above}{inside}" for above in ("", "*/") for inside in ("raw/*.gz", "mapping/*.gz", "split/*/*.gz")]


@dataclass(frozen=True)
class DatasetFiles:
    """The files of one data set, by field: 'A', 'graph_indicator', ... or 'raw/edge', 'split/scaffold/train', ..."""

    name: str
    archive: Archive
    members: dict[str, str]

    def __contains__(self, field: str) -> bool:
        return field in self.members

    @property
    def paths(self) -> list[Path]:
        """The files that are read, on disk: the zip, or those in the folder."""
        if not self.archive.path.is_dir():
            return [self.archive.path]
        return [self.archive.path / name for _, name in sorted(self.members.items())]

    @property
    def official_split(self) -> str | None:
        """The kind of split that comes with a data set in the OGB layout."""
        kinds = {field.split("/")[1] for field in self.members if field.startswith("split/")}
        official = [kind for kind in OFFICIAL_SPLITS if kind in kinds] or sorted(kinds)
        return official[0] if official else None

    def label(self, field: str) -> str:
        """The file of ``field``, for messages."""
        return self.archive.label(self.members[field])

    def read_blocks(self, field: str) -> Iterator[bytes]:
        """The file of ``field``, block by block."""
        if field not in self.members:
            raise InputError(f"{self.archive.path}: no {field}{OGB_SUFFIX} inside; fetch the data set again")
        return self.archive.read_blocks(self.members[field])

    def read_text(self, field: str) -> str:
        """The file of ``field`` as text."""
        try:
            return b"".join(self.read_blocks(field)).decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{self.label(field)}: not UTF-8 ({error.reason}); write it again") from None

    def read_numbers(
        self, field: str, kind: Kind = INTEGERS, columns: int | None = None, *, rows: tuple[int, str] | None = None
    ) -> NDArray:
        """The numbers in the file of ``field``; ``rows`` is how many lines it must have, and what has one each."""
        numbers = parse_table(self.read_blocks(field), self.label(field), kind, columns)
        if rows is not None:
            self.check_count(field, len(numbers), *rows)
        return numbers

    def check_count(self, field: str, lines: int, count: int, what: str) -> None:
        """Refuse a file that has not one line for each node, edge or graph."""
        if lines != count:
            raise InputError(f"{self.label(field)}: {lines:,} lines for {count:,} {what}s; give one line a {what}")

    def refuse_line(self, field: str, is_wrong: NDArray[np.bool_], describe: Callable[[int], str]) -> None:
        """Refuse the first line that ``is_wrong``; ``describe`` says what is, from the index of the line."""
        refuse_line(self.label(field), is_wrong, describe)

    def check_range(self, field: str, values: NDArray[np.integer], count: int, what: str) -> None:
        """Refuse values that are not from 0 to ``count - 1``."""
        check_range(self.label(field), values, count, what)


def find_tu_files(path: Path) -> DatasetFiles:
    """The text files of a data set in the TU layout."""
    archive = Archive(path)
    members = archive.names("*.txt", "*/*.txt")
    edges = [m for m in members if m.endswith("_A.txt")]
    if not edges:
        raise InputError(f"{path}: no NAME_A.txt inside; expected a data set in the TU text layout")
    edges = [m for m in edges if PurePosixPath(m).name in (f"{path.name}_A.txt", f"{path.stem}_A.txt")] or edges
    stem = _only_one(path, {m.removesuffix("A.txt") for m in edges}, "A.txt")
    present = set(members)
    files = DatasetFiles(
        PurePosixPath(stem).name.removesuffix("_"),
        archive,
        {field: f"{stem}{field}.txt" for field in TU_FIELDS if f"{stem}{field}.txt" in present},
    )
    if "graph_indicator" not in files:
        raise InputError(f"{path}: no {files.name}_graph_indicator.txt; it says which graph each node belongs to")
    return files


def find_ogb_files(path: Path) -> DatasetFiles:
    """The files of a data set in the OGB layout; ``path`` may also be its folder ``raw/``."""
    path = path.parent if path.is_dir() and path.name == "raw" else path
    archive = Archive(path)
    names = archive.names(*_OGB_PATTERNS)
    stems = {name.removesuffix(OGB_MARK) for name in names if f"/{name}".endswith(f"/{OGB_MARK}")}
    if not stems:
        raise InputError(f"{path}: no {OGB_MARK} inside; expected a data set in OGB's layout")
    stem = _only_one(path, stems)
    fields = {name.removeprefix(stem).removesuffix(OGB_SUFFIX): name for name in names if name.startswith(stem)}
    read = {field: name for field, name in fields.items() if field in OGB_MAPPINGS or not field.startswith("mapping/")}
    return DatasetFiles(PurePosixPath(stem).name or path.resolve().stem, archive, read)


def _only_one(path: Path, stems: set[str], suffix: str = "") -> str:
    """The data set with the fewest folders above it; an error where there are several."""
    stem, *others = sorted(stem for stem in stems if stem.count("/") == min(each.count("/") for each in stems))
    if others:
        one, other = f"{stem}{suffix}", f"{others[0]}{suffix}"
        raise InputError(f"{path}: several data sets inside, {one!r} and {other!r}; give one")
    return stem


def is_ogb_layout(path: Path) -> bool:
    """Whether this zip or folder has a data set in the OGB layout."""
    if path.is_dir():
        base = path.parent if path.name == "raw" else path
        return (base / OGB_MARK).is_file() or any(base.glob(f"*/{OGB_MARK}"))
    return any(f"/{name}".endswith(f"/{OGB_MARK}") for name in Archive(path).names())
