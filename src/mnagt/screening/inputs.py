"""The files of a screening: which there are, how many rows they have, and where each shard of rows begins.

A line is a row, so that a file can be cut anywhere and a bad line spoils no other.
"""

import csv
import gzip
import hashlib
import math
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from mnagt.data.readers.text_table import find_delimiter, parse_table
from mnagt.errors import InputError, explain_missing, join_names

TEXTS = (".csv", ".tsv", ".smi", ".smiles")
"""Suffixes of files of lines; each may be followed by .gz."""
PARQUET = ".parquet"
STRIDE = 1000
"""Shards of lines begin at multiples of so many."""
MAX_LINE = 1 << 20
"""Bytes of a line; what a longer one has beyond them is not read."""
_BLOCK = 1 << 20
_HEAD = 6
"""Lines that show whether the first is a header."""


@dataclass(frozen=True)
class InputFile:
    """A file of molecules, one a row."""

    path: str
    size: int
    mtime_ns: int
    digest: str
    """Of the content; of Parquet, of the footer, which has the place and the statistics of all columns."""
    rows: int
    columns: tuple[str, ...]
    has_header: bool = False
    """Whether the first line is no row."""

    @property
    def is_parquet(self) -> bool:
        return self.path.lower().endswith(PARQUET)


@dataclass(frozen=True)
class Shard:
    """Some rows of a file, one after the other."""

    number: int
    file: InputFile
    first: int
    """The first row, counted from 0."""
    rows: int
    offset: int
    """Where the line of the first row begins, in bytes of the text."""

    @property
    def first_line(self) -> int:
        """The line of the first row, counted from 1; of Parquet, the row."""
        return self.first + 1 + self.file.has_header


def find_inputs(names: Sequence[str], out: Path) -> list[Path]:
    """The files that names, folders and patterns stand for, without those of the folder ``out``."""
    suffixes = (*TEXTS, *(suffix + ".gz" for suffix in TEXTS), PARQUET)
    paths: dict[Path, None] = {}
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            files = [each for each in path.rglob("*") if each.name.lower().endswith(suffixes) and each.is_file()]
            files = [each for each in files if not any(part.startswith(".") for part in each.relative_to(path).parts)]
        elif path.is_file():
            files = [path]
        else:
            files = [Path(each) for each in glob(str(path), recursive=True) if Path(each).is_file()]
        files = [each for each in files if out.resolve() not in each.resolve().parents]
        if not files:
            raise InputError(f"{name}: no such file, and no folder or pattern with files of {join_names(suffixes)}")
        if others := [each for each in files if not each.name.lower().endswith(suffixes)]:
            raise InputError(f"{others[0]}: screened are files of {join_names(suffixes)}; convert it, or leave it out")
        paths |= dict.fromkeys(sorted(files))
    return [path.resolve() for path in paths]


def scan_file(path: Path) -> tuple[InputFile, Sequence[int]]:
    """The file, and where every ``STRIDE``-th of its lines begins (none for Parquet)."""
    status = path.stat()
    if path.name.lower().endswith(PARQUET):
        digest, rows, columns = _scan_parquet(path)
        return InputFile(str(path), status.st_size, status.st_mtime_ns, digest, rows, columns), ()
    columns, has_header = _read_head(path)
    digest, lines, offsets = _scan_lines(path)
    rows = lines - has_header
    return InputFile(str(path), status.st_size, status.st_mtime_ns, digest, rows, columns, has_header), offsets


def cut_shards(files: Sequence[tuple[InputFile, Sequence[int]]], most: int, at_least: int) -> list[Shard]:
    """Shards of all files, of at most ``most`` rows, and at least so many of them if there are enough rows."""
    total = sum(file.rows for file, _ in files)
    size = max(STRIDE, min(most, math.ceil(total / at_least))) // STRIDE * STRIDE
    shards: list[Shard] = []
    for file, offsets in files:
        lines = file.rows + file.has_header
        for start, stop in pairwise([*range(0, file.rows, size), lines]):
            first = max(0, start - file.has_header)
            offset = offsets[start // STRIDE] if offsets else 0
            shards.append(Shard(len(shards), file, first, stop - file.has_header - first, offset))
    return shards


def open_lines(path: str | Path) -> BinaryIO:
    """The text of a file, unpacked if it is compressed (.gz)."""
    try:
        return cast(BinaryIO, gzip.open(path)) if str(path).lower().endswith(".gz") else Path(path).open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def check_unchanged(file: InputFile) -> None:
    """Refuse a file that is another than it was; only one with another date is read to find out."""
    path = Path(file.path)
    try:
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns):
            return
        is_same = status.st_size == file.size and scan_file(path)[0].digest == file.digest
    except FileNotFoundError:
        raise InputError(f"{path}: it is gone, and its rows are to be screened; restore it") from None
    if not is_same:
        raise InputError(
            f"{path}: changed since the screening began; restore it, or screen into another folder (--out)"
        )


def import_parquet(path: str | Path) -> Any:
    """The module that reads and writes Parquet, or an error that says how to get it."""
    with explain_missing(f"{path}: Parquet", "parquet"):
        from pyarrow import parquet
    return parquet


def _scan_parquet(path: Path) -> tuple[str, int, tuple[str, ...]]:
    parquet = import_parquet(path)
    import pyarrow

    try:
        with parquet.ParquetFile(path) as file:
            metadata, columns = file.metadata, tuple(file.schema_arrow.names)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file, or damaged ({' '.join(str(error).split())[:200]})") from None
    with path.open("rb") as raw:
        raw.seek(max(0, path.stat().st_size - metadata.serialized_size - 8))
        digest = hashlib.blake2b(raw.read(), digest_size=16).hexdigest()
    return digest, metadata.num_rows, columns


def _read_head(path: Path) -> tuple[tuple[str, ...], bool]:
    """The columns of a file of lines, and whether its first line is a header."""
    with explain_damage(path), open_lines(path) as file:
        lines = [file.readline(MAX_LINE).decode("utf-8-sig", "replace").rstrip("\r\n") for _ in range(_HEAD)]
    if "\r" in lines[0]:
        raise InputError(f"{path}: its lines end in a carriage return alone; convert them (tr '\\r' '\\n')")
    delimiter = find_delimiter(path, lines[0])
    width = len(split_line(lines[0], delimiter, None)[0])
    whole = [line for line in lines[1:] if line and not split_line(line, delimiter, width)[1]]
    table = parse_table(path, "\n".join([lines[0], *whole]), may_lack_header=True)
    return tuple(table.columns), not (table.lines and table.lines[0] == 1)


def _scan_lines(path: Path) -> tuple[str, int, Sequence[int]]:
    """The digest of a file of text, its lines, and where every ``STRIDE``-th begins."""
    digest, lines, position, offsets, last = hashlib.blake2b(digest_size=16), 0, 0, array("q", [0]), b"\n"
    with explain_damage(path), open_lines(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            wanted = ends[STRIDE - 1 - lines % STRIDE :: STRIDE]
            offsets.extend((wanted + (position + 1)).tolist())
            lines, position, last = lines + len(ends), position + len(block), block[-1:]
    return digest.hexdigest(), lines + (last != b"\n"), offsets


@contextmanager
def explain_damage(path: str | Path) -> Iterator[None]:
    """An error for the user if a compressed file turns out to be damaged."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged or cut off ({error}); fetch it again") from None


def split_line(line: str, delimiter: str | None, width: int | None) -> tuple[list[str], str]:
    """The fields of a line, and what is wrong with it; ``width`` of them, if it is not None.

    Without a ``delimiter`` the line is that of a .smi file: a SMILES and its name.

    >>> split_line("CCO,46.07", ",", 2)
    (['CCO', '46.07'], '')
    >>> split_line('"CCO,46.07', ",", 2)
    (['"CCO', '46.07'], 'a quote that does not end; a line is a row')
    """
    problem = ""
    if delimiter is None:
        fields = [*line.split(maxsplit=1), "", ""][:2]
        fields[1] = fields[1].rstrip()
    elif '"' in line:
        try:
            (fields,) = csv.reader([line], delimiter=delimiter, strict=True)
        except csv.Error as error:
            fields, problem = line.split(delimiter), f"{error}"
            if "end of data" in problem:
                problem = "a quote that does not end; a line is a row"
    else:
        fields = line.split(delimiter)
    if width is None or len(fields) == width:
        return fields, problem
    if line.strip() and not problem:
        problem = f"{len(fields)} fields, and the header has {width}"
    return [*fields, *[""] * width][:width], problem


def iterate_lines(file: BinaryIO, count: int) -> Iterator[tuple[str, str]]:
    """The next lines of a file, and what is wrong with each before it is split."""
    for _ in range(count):
        raw, problem = file.readline(MAX_LINE), ""
        if not raw.endswith(b"\n") and len(raw) == MAX_LINE:
            problem = f"over {MAX_LINE:,} bytes in a line"
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            line, problem = raw.decode(errors="replace"), problem or f"byte 0x{raw[error.start]:02x} is not UTF-8"
        yield line.rstrip("\r\n"), problem
