"""Reads the text layout of the TU collection (Morris et al., 2020): ``NAME_A.txt``, ``NAME_graph_indicator.txt``, ...

Nodes and graphs count from 1; where a 0 occurs among the ids of a file, that file counts from 0.

Graphs are undirected. Self loops are dropped (:math:`\\hat A` adds its own), the first of equal edges is kept, and
where only one of (u, v) and (v, u) is there, the other is added with its labels and values.

Labels may be any integers: the categories of a column are its values in order, and the values are kept as names.
"""

import logging
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.sparse import pointer_of_counts
from mnagt.tasks import Regression, SingleLabel, Task

VERSION = "tu-1"
"""Changes whenever the same files would be read differently."""

FIELDS = (
    "A",
    "graph_indicator",
    "graph_labels",
    "graph_attributes",
    "node_labels",
    "node_attributes",
    "edge_labels",
    "edge_attributes",
)
BLOCK = 1 << 20
LONGEST_LINE = 1 << 24
LARGEST_FILE = 8 << 30
LARGEST_RATIO = 1000
"""Of a zip member's size to its compressed size, past ``RATIO_MATTERS`` bytes."""
RATIO_MATTERS = 256 << 20

_DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # encrypted
    ValueError,
    IndexError,
    KeyError,
    OverflowError,
    struct.error,
)

_log = logging.getLogger(__name__)


def read_tu(path: Path) -> PackedDataset:
    """The data set in ``path``: a zip, or a folder that holds the text files, at its top or in ``raw/``."""
    files = _Files.found(Path(path))
    graph_of_node = _graph_of_node(files)
    sizes = np.bincount(graph_of_node)
    task, targets = _targets(files, len(sizes))
    nodes = _Columns.read(files, "node", len(graph_of_node))

    ends = _edges(files, graph_of_node)
    edges = _Columns.read(files, "edge", len(ends))
    destination, source, line = _undirected(files.name, ends, has_columns=bool(edges))

    node_ptr = pointer_of_counts(torch.from_numpy(sizes))
    in_degree = np.bincount(destination, minlength=len(graph_of_node))
    first = node_ptr.numpy()[:-1].astype(np.int32)[graph_of_node]
    source -= first[destination]
    edges = edges.taken(line)
    return PackedDataset(
        name=files.name,
        task=task,
        node_ptr=node_ptr,
        edge_ptr=pointer_of_counts(torch.from_numpy(in_degree))[node_ptr],
        source=torch.from_numpy(source),
        in_degree=torch.from_numpy(in_degree.astype(np.int32)),
        targets=targets,
        is_symmetric=True,
        label_counts=nodes.label_counts | edges.label_counts,
        node_labels=nodes.labels,
        node_values=nodes.values,
        edge_labels=edges.labels,
        edge_values=edges.values,
        vocabularies=nodes.vocabularies | edges.vocabularies,
    )


def files_read(path: Path) -> list[Path]:
    """The files that ``read_tu(path)`` reads: the zip, or those of the folder that count."""
    files = _Files.found(Path(path))
    return [path / member for member in files.members.values()] if path.is_dir() else [path]


# What the files say


def _graph_of_node(files: "_Files") -> NDArray[np.int32]:
    """Graph of each node, from 0."""
    ids = _integers(files, "graph_indicator", columns=1)[:, 0]
    base = min(int(ids[0]), 1)
    where = files.label("graph_indicator")
    if base < 0:
        raise InputError(f"{where}, line 1: graph {base} is below 0; graphs count from 0 or 1")
    step = np.diff(ids, prepend=base)
    if (step < 0).any():
        at = int((step < 0).argmax())
        raise InputError(
            f"{where}, line {at + 1}: graph {ids[at]} comes after graph {ids[at - 1]}; sort the nodes by graph"
        )
    is_gap = step > 1
    is_gap[0] = ids[0] > base
    if is_gap.any():
        at = int(is_gap.argmax())
        missing = base if at == 0 else int(ids[at - 1]) + 1
        raise InputError(f"{where}, line {at + 1}: graph {missing} has no nodes; leave it out and renumber the others")
    return (ids - base).astype(np.int32)


def _targets(files: "_Files", graphs: int) -> tuple[Task, Tensor]:
    """Classes from ``graph_labels``, or else numbers from ``graph_attributes``."""
    if "graph_labels" in files:
        labels = _integers(files, "graph_labels", columns=1)[:, 0]
        _check_count(files, "graph_labels", len(labels), graphs, "graph")
        values, index = np.unique(labels, return_inverse=True)
        if len(values) < 2:
            raise InputError(
                f"{files.label('graph_labels')}: every graph is of class {values[0]}; give at least 2 classes"
            )
        return SingleLabel(tuple(map(str, values.tolist()))), torch.from_numpy(index.astype(np.int64))
    if "graph_attributes" in files:
        values = _floats(files, "graph_attributes")
        _check_count(files, "graph_attributes", len(values), graphs, "graph")
        names = tuple(f"target_{i}" for i in range(values.shape[1]))
        return Regression(names), torch.from_numpy(values)
    raise InputError(f"{files.path}: no {files.name}_graph_labels.txt, nor {files.name}_graph_attributes.txt; add one")


def _edges(files: "_Files", graph_of_node: NDArray[np.int32]) -> NDArray[np.int32]:
    """(source, destination) of each line, from 0."""
    ends = _integers(files, "A", columns=2)
    base = 0 if (ends == 0).any() else 1
    nodes = len(graph_of_node)
    if int(ends.min()) < base or int(ends.max()) >= nodes + base:
        at = int(((ends < base) | (ends >= nodes + base)).any(axis=1).argmax())
        raise InputError(
            f"{files.label('A')}, line {at + 1}: edge {ends[at, 0]}, {ends[at, 1]} names a missing node;"
            f" graph_indicator has nodes {base} to {nodes - 1 + base}"
        )
    ends = ends.astype(np.int32, copy=False)
    ends -= base
    is_across = graph_of_node[ends[:, 0]] != graph_of_node[ends[:, 1]]
    if is_across.any():
        at = int(is_across.argmax())
        u, v = ends[at].tolist()
        raise InputError(
            f"{files.label('A')}, line {at + 1}: edge {u + base}, {v + base} joins two graphs, number"
            f" {graph_of_node[u] + 1} and {graph_of_node[v] + 1}; remove it or correct graph_indicator"
        )
    return ends


def _undirected(
    name: str, ends: NDArray[np.int32], *, has_columns: bool
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Destination and source of each edge, sorted, and the line that its columns come from if there are any."""
    is_loop = ends[:, 0] == ends[:, 1]
    loops = int(is_loop.sum())
    line = np.flatnonzero(~is_loop) if has_columns else np.empty(0, np.int64)
    if loops:
        ends = ends[~is_loop]
    given = len(ends)
    # One sortable number an edge: destination above, source below.
    key = ends[:, 1].astype(np.int64) << 32 | ends[:, 0]
    del ends, is_loop
    if has_columns:
        key, first = np.unique(key, return_index=True)
        line, distinct = line[first], len(key)
        mirrored = _mirrored(key)
        is_missing = ~np.isin(mirrored, key, assume_unique=True)
        key, line = np.concatenate([key, mirrored[is_missing]]), np.concatenate([line, line[is_missing]])
        order = key.argsort(kind="stable")
        key, line = key[order], line[order]
    else:
        # Without columns it does not matter which way round the edges are sorted first.
        key = _sorted_distinct(_mirrored(key))
        distinct = len(key)
        mirrored = _sorted_distinct(_mirrored(key))
        if not np.array_equal(key, mirrored):
            key = np.union1d(key, mirrored)
        del mirrored
    for count, what in (
        (loops, "self loops were dropped"),
        (given - distinct, "repeated edges were dropped"),
        (len(key) - distinct, "missing reverse edges were added"),
    ):
        if count:
            _log.info("%s: %d %s", name, count, what)
    return key >> 32, key.astype(np.int32), line


def _mirrored(key: NDArray[np.int64]) -> NDArray[np.int64]:
    return key >> 32 | key << 32


def _sorted_distinct(key: NDArray[np.int64]) -> NDArray[np.int64]:
    if (key[1:] > key[:-1]).all():
        return key
    key = np.sort(key, kind="stable")
    is_new = key[1:] != key[:-1]
    return key if is_new.all() else key[np.concatenate([[True], is_new])]


@dataclass(frozen=True)
class _Columns:
    """What the nodes or the edges carry."""

    labels: Tensor | None
    values: Tensor | None
    label_counts: dict[str, tuple[int, ...]]
    vocabularies: dict[str, tuple[str, ...]]

    def __bool__(self) -> bool:
        return self.labels is not None or self.values is not None

    @classmethod
    def read(cls, files: "_Files", kind: str, count: int) -> "_Columns":
        """The columns of ``kind``, 'node' or 'edge', of which there are ``count``."""
        labels, values, label_counts, vocabularies = None, None, {}, {}
        field = f"{kind}_labels"
        if field in files:
            raw = _integers(files, field)
            _check_count(files, field, len(raw), count, kind)
            labels = torch.empty(raw.shape, dtype=torch.int32)
            for column in range(raw.shape[1]):
                names, index = np.unique(raw[:, column], return_inverse=True)
                labels[:, column] = torch.from_numpy(index)
                vocabularies[f"{field}/{column}"] = tuple(map(str, names.tolist()))
            label_counts[field] = tuple(len(names) for names in vocabularies.values())
        if f"{kind}_attributes" in files:
            raw = _floats(files, f"{kind}_attributes")
            _check_count(files, f"{kind}_attributes", len(raw), count, kind)
            values = torch.from_numpy(raw)
        return cls(labels, values, label_counts, vocabularies)

    def taken(self, line: NDArray[np.int64]) -> "_Columns":
        """The rows ``line``."""
        rows = torch.from_numpy(line)
        return _Columns(
            None if self.labels is None else self.labels[rows],
            None if self.values is None else self.values[rows],
            self.label_counts,
            self.vocabularies,
        )


def _check_count(files: "_Files", field: str, lines: int, count: int, what: str) -> None:
    if lines != count:
        raise InputError(f"{files.label(field)}: {lines} lines for {count} {what}s; give one line a {what}")


# Text to numbers


def _integers(files: "_Files", field: str, columns: int | None = None) -> NDArray[np.integer]:
    return _table(files, field, columns, _quick_integers, _integer, np.int64)


def _floats(files: "_Files", field: str) -> NDArray[np.float32]:
    return _table(files, field, None, _quick_floats, _float, np.float32)


def _table(
    files: "_Files",
    field: str,
    columns: int | None,
    quick: Callable[[bytes, int], NDArray | None],
    number: Callable[[bytes], float],
    dtype: type[np.generic],
) -> NDArray:
    """The numbers of a file, line by line. What ``quick`` does not understand is read a ``number`` at a time."""
    label, lines, parts = files.label(field), 0, []
    for text in _whole_lines(files.blocks(field), label):
        columns = columns or text[: text.find(b"\n")].count(b",") + 1
        part = quick(text, columns)
        if part is None:
            part = _with_care(text, columns, number, dtype, label, lines + 1)
        lines += len(part)
        parts.append(part)
    if not parts:
        raise InputError(f"{label}: the file is empty; fetch or write it again")
    return np.concatenate(parts)


def _whole_lines(blocks: Iterator[bytes], label: str) -> Iterator[bytes]:
    """The same text cut at ends of lines, without a byte order mark or blank lines at its end."""
    rest = next(blocks, b"").removeprefix(b"\xef\xbb\xbf")
    for block in blocks:
        text = rest + block
        end = text.rstrip().rfind(b"\n") + 1
        if end:
            yield text[:end]
        rest = text[end:]
        if len(rest) > LONGEST_LINE:
            raise InputError(f"{label}: a line is over {LONGEST_LINE >> 20} MiB long; this is not a TU text file")
    if rest := rest.rstrip():
        yield rest + b"\n"


_COMMA, _NEWLINE, _ZERO = b",\n0"


def _quick_integers(text: bytes, columns: int) -> NDArray[np.int32] | None:
    """Lines of ``columns`` unsigned integers of up to 8 digits; ``None`` for any other text.

    The 8 bytes before each separator are taken as one 64-bit word, with what is not of the number shifted out. Three
    multiplications then join neighbouring digits, pairs and fours in all words at once.
    """
    text = text.replace(b", ", b",")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    characters = np.frombuffer(b"0" * 8 + text, np.uint8)
    end = np.flatnonzero(characters - _ZERO > 9)
    if len(end) % columns:
        return None
    separators = characters[end].reshape(-1, columns)
    digits = np.diff(end, prepend=7) - 1
    is_regular = (separators[:, :-1] == _COMMA).all() and (separators[:, -1] == _NEWLINE).all()
    if not is_regular or digits.min() < 1 or digits.max() > 8:
        return None
    words = np.ndarray((len(characters) - 7,), "<u8", characters, strides=(1,))[end - 8]
    unused = (8 * (8 - digits)).astype(np.uint64)
    word = (words & 0x0F0F0F0F0F0F0F0F) >> unused << unused
    word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FF
    word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFF
    word = (word * 10000 + (word >> 32)) & 0x00000000FFFFFFFF
    return word.astype(np.int32).reshape(-1, columns)


def _quick_floats(text: bytes, columns: int) -> NDArray[np.float32] | None:
    """Lines of ``columns`` finite numbers; ``None`` for any other text."""
    characters = np.frombuffer(text, np.uint8)
    separators = characters[(characters == _COMMA) | (characters == _NEWLINE)]
    if len(separators) % columns or b"_" in text:
        return None
    separators = separators.reshape(-1, columns)
    if not ((separators[:, :-1] == _COMMA).all() and (separators[:, -1] == _NEWLINE).all()):
        return None
    try:
        numbers = np.array(list(map(float, text[:-1].replace(b"\n", b",").split(b","))))
    except ValueError:
        return None
    is_representable = np.abs(numbers) <= np.finfo(np.float32).max
    return numbers.astype(np.float32).reshape(-1, columns) if is_representable.all() else None


def _with_care(
    text: bytes, columns: int, number: Callable[[bytes], float], dtype: type[np.generic], label: str, first: int
) -> NDArray:
    """Any lines of ``columns`` numbers, ``first`` being the number of the first line."""
    rows = []
    for at, line in enumerate(text[:-1].split(b"\n"), start=first):
        fields = line.split(b",")
        if not line.strip():
            raise InputError(f"{label}, line {at}: the line is empty; remove it or fill it in")
        if len(fields) != columns:
            raise InputError(f"{label}, line {at}: {_shown(line)} has {len(fields)} columns, expected {columns}")
        try:
            rows.append([number(field) for field in fields])
        except ValueError as error:
            raise InputError(f"{label}, line {at}: {_shown(line)} {error}") from None
    return np.array(rows, dtype)


def _integer(field: bytes) -> int:
    try:
        value = int(field)
    except ValueError:
        value = _float(field)
        if not value.is_integer():
            raise ValueError("is not an integer; labels and ids are integers") from None
    if b"_" in field or not -(2**63) <= value < 2**63:
        raise ValueError("is not an integer of 64 bits; labels and ids are integers")
    return int(value)


def _float(field: bytes) -> float:
    try:
        value = float(field)
    except ValueError:
        raise ValueError("is not a number; write numbers separated by commas") from None
    if b"_" in field or not abs(value) <= float(np.finfo(np.float32).max):
        raise ValueError("is not a finite 32-bit number; fill in or remove such values")
    return value


def _shown(line: bytes) -> str:
    return repr(line.strip()[:40].decode("ascii", "replace"))


# Where the files are


@dataclass(frozen=True)
class _Files:
    """The text files of one data set, by field: 'A', 'graph_indicator', ..."""

    name: str
    path: Path
    members: dict[str, str]
    """Zip members, or paths below the folder."""

    def __contains__(self, field: str) -> bool:
        return field in self.members

    @classmethod
    def found(cls, path: Path) -> "_Files":
        if path.is_dir():
            listed = [p for p in (*path.glob("*.txt"), *path.glob("*/*.txt")) if p.is_file()]
            members = [p.relative_to(path).as_posix() for p in listed]
        elif path.exists():
            with _reading(path), zipfile.ZipFile(path) as archive:
                members = [member for member in archive.namelist() if not member.startswith("__MACOSX/")]
        else:
            raise InputError(f"{path}: no such file or folder")
        edges = [m for m in members if m.endswith("_A.txt")]
        if not edges:
            raise InputError(f"{path}: no NAME_A.txt inside; expected a data set in the TU text layout")
        edges = [m for m in edges if PurePosixPath(m).name in (f"{path.name}_A.txt", f"{path.stem}_A.txt")] or edges
        edges = [m for m in edges if m.count("/") == min(e.count("/") for e in edges)]
        if len(set(edges)) > 1:
            raise InputError(f"{path}: several data sets inside, {edges[0]!r} and {edges[1]!r}; give one")
        stem = edges[0].removesuffix("A.txt")
        present = set(members)
        files = cls(
            name=PurePosixPath(stem).name.removesuffix("_"),
            path=path,
            members={field: f"{stem}{field}.txt" for field in FIELDS if f"{stem}{field}.txt" in present},
        )
        if "graph_indicator" not in files:
            raise InputError(f"{path}: no {files.name}_graph_indicator.txt; it says which graph each node belongs to")
        return files

    def label(self, field: str) -> str:
        """The file of ``field``, as messages name it."""
        member = self.members[field]
        member = member if member.isprintable() else ascii(member)
        return str(self.path / member) if self.path.is_dir() else f"{self.path}: {member}"

    def blocks(self, field: str) -> Iterator[bytes]:
        """The file of ``field`` piece by piece; while one is looked at, the next is read."""
        with ExitStack() as opened:
            with _reading(self.path):
                file = self._open(field, opened)
            pool = opened.enter_context(ThreadPoolExecutor(max_workers=1))
            ahead = pool.submit(file.read, BLOCK)
            while True:
                with _reading(self.path):
                    block = ahead.result()
                if not block:
                    return
                ahead = pool.submit(file.read, BLOCK)
                yield block

    def _open(self, field: str, opened: ExitStack) -> IO[bytes]:
        member = self.members[field]
        if self.path.is_dir():
            return opened.enter_context((self.path / member).open("rb"))
        archive = opened.enter_context(zipfile.ZipFile(self.path))
        info = archive.getinfo(member)
        is_bomb = info.file_size > RATIO_MATTERS and info.file_size > LARGEST_RATIO * info.compress_size
        if info.file_size > LARGEST_FILE or is_bomb:
            raise InputError(
                f"{self.label(field)}: {info.compress_size:,} bytes expand to {info.file_size:,}, more than a data set"
                " does; unpack it yourself if you trust it, and give the folder"
            )
        return opened.enter_context(archive.open(info))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a damaged or unreadable file raises, told as an ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGED_ZIP as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not a readable zip ({reason}); fetch it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
