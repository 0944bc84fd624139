"""Data sets larger than memory: a folder with a memory-mapped file for each column, written part by part.

Tensors with a row for each graph are read into memory; the others are mapped read-only, and writing to one ends the
process.
"""

import os
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnagt.data.cache import VERSION, from_header, packed_errors, to_header
from mnagt.data.categories import renumber
from mnagt.data.packed import ENCODING, PackedDataset
from mnagt.data.readers.attributed_graphs import GraphTable
from mnagt.data.readers.jsonl import SUFFIXES, iterate_jsonl
from mnagt.data.readers.split_columns import encode_groups
from mnagt.data.readers.text_table import has_any_target, read_targets
from mnagt.errors import InputError
from mnagt.files import read_json, write_folder_atomically, write_record
from mnagt.graphs.batch import EDGE_COLUMNS, NODE_COLUMNS
from mnagt.tasks import Task, Unlabelled, task_to_dict

HEADER = "packed.json"
LARGE = 4 << 30
"""Bytes from which a data set is shuffled by blocks, on every machine, so that the order of graphs is the same."""
MAX_BYTES = 1 << 60
"""Bytes of a column; a header that says more is damaged."""
BLOCK = 256 << 10
"""Bytes of the graphs of a block."""
GRAPHS_AT_ONCE = 1024
"""Graphs of a JSONL file in memory at a time. The first so many decide which columns there are, and of what kind."""

_OF_GRAPHS = ("node_ptr", "edge_ptr", "targets", "official", "groups")
_OF_NODES = ("in_degree", *NODE_COLUMNS)
_OF_EDGES = ("source", *EDGE_COLUMNS)
_TENSORS = (*_OF_GRAPHS, *_OF_NODES, *_OF_EDGES, "texts")
_BLOCK_BYTES = 1 << 24


def write_packed(
    folder: Path | str, parts: Iterable[PackedDataset], *, name: str | None = None, block: int | None = None
) -> PackedDataset:
    """Write the graphs of all ``parts``, one part at a time, as one data set in ``folder``, and open it.

    ``block`` is the number of graphs that shuffling keeps together, 0 for none; see ``PackedWriter.finish``.
    """
    with packed_writer(folder) as writer:
        for part in parts:
            writer.add(part)
        writer.finish(name=name, block=block)
    return open_packed(folder, check=False)


@contextmanager
def packed_writer(folder: Path | str) -> Iterator["PackedWriter"]:
    """A writer of a data set in the new ``folder``, which exists once the block ends without an error."""
    if os.path.lexists(folder):
        raise InputError(f"cannot write {folder}: it is there already; choose another name")
    with write_folder_atomically(Path(folder)) as scratch:
        yield PackedWriter(scratch)


class PackedWriter:
    """Appends graphs to the files of a data set, in constant memory; ``finish`` comes last."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.graphs = folder, 0
        self._columns: dict[str, _Column] = {}
        self._header: dict[str, Any] = {}
        self._task: Task | None = None
        self._vocabularies: dict[str, dict[str, int]] = {}

    def add(self, part: PackedDataset) -> None:
        """Append the graphs of ``part``.

        All parts have the same columns and the same task. Categories are matched by name where they have names, and
        each part may have others.
        """
        if not len(part):
            return
        part = replace(part, same_as=None)
        where = f"{part.name}, after {self.graphs:,} graphs"
        if self._task is None:
            self._task, self._header = part.task, to_header(part)
        if part.task != self._task:
            raise InputError(f"{where}: has another task; give all parts the same")
        tensors = self._renumber_categories(part, where)
        if self.graphs and (odd := tensors.keys() ^ self._columns.keys()):
            raise InputError(f"{where}: {', '.join(sorted(odd))} is in some parts only; give it to all")
        for name, tensor in tensors.items():
            self._append(name, tensor, where)
        self._header["is_symmetric"] &= part.is_symmetric
        self.graphs += len(part)

    def finish(
        self,
        *,
        name: str | None = None,
        task: Task | None = None,
        targets: Tensor | None = None,
        groups: Tensor | None = None,
        block: int | None = None,
    ) -> None:
        """Write the header. ``name`` and ``task`` are those of the first part if they are not given.

        ``targets`` and ``groups``, a row for each graph, replace those of the parts. ``block`` is the number of graphs
        that shuffling keeps together: by default 0 up to ``LARGE`` bytes, and as many as fill ``BLOCK`` beyond.
        """
        if not self.graphs:
            raise InputError(f"{self.folder.name}: no graphs were added; give at least one")
        for what, rows in (("targets", targets), ("groups", groups)):
            if rows is not None:
                if what in self._columns:
                    self._columns.pop(what).path.unlink()
                self._append(what, rows, self.folder.name)
        size = sum(column.path.stat().st_size for column in self._columns.values())
        if block is not None and block < 0:
            raise InputError(f"block counts graphs, 0 for none; got {block}")
        if block is None:
            block = 0 if size <= LARGE else max(1, BLOCK * self.graphs // size)
        header = self._header | {
            "vocabularies": {column: list(words) for column, words in self._vocabularies.items()},
            "block": block,
            "tensors": {name: column.finish() for name, column in self._columns.items()},
        }
        if name is not None:
            header["name"] = name
        if task is not None:
            header["task"] = task_to_dict(task)
        write_record(self.folder / HEADER, header)

    def _append(self, name: str, tensor: Tensor, where: str) -> None:
        """Append rows to the file of a column; an error where they are of another kind than those before."""
        rows = tensor.detach().cpu().contiguous().numpy()
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = _Column(self.folder / _file_name(name), rows.dtype.str, rows.shape[1:])
        elif name.endswith("_ptr"):
            rows = rows[1:] + column.last
        elif name == "texts":
            rows = np.concatenate([np.frombuffer(b"\n", np.uint8), rows])
        kind, kind_before = (rows.dtype.str, rows.shape[1:]), (column.dtype, column.shape)
        if kind != kind_before:
            raise InputError(
                f"{where}: {name} has rows of {kind}, and had {kind_before} before; give all parts the same"
            )
        column.append(rows)

    def _renumber_categories(self, part: PackedDataset, where: str) -> dict[str, Tensor]:
        """The tensors of ``part``, with categories numbered as in the whole data set."""
        tensors = part.named_tensors
        for kind, counts in part.label_counts.items():
            if kind not in tensors:
                continue
            totals = list(self._header["label_counts"][kind]) if self.graphs else [0] * len(counts)
            columns = list(tensors[kind].unbind(dim=1))
            for i, count in enumerate(counts):
                names = part.vocabularies.get(f"{kind}/{i}")
                is_named = f"{kind}/{i}" in self._vocabularies if self.graphs else names is not None
                if is_named != (names is not None) or count > len(names or range(count)):
                    raise InputError(
                        f"{where}: categories of {kind}/{i} have names in some parts only, or some of them have; name "
                        "all or none"
                    )
                if names is None:
                    totals[i] = max(totals[i], count)
                    continue
                index = self._vocabularies.setdefault(f"{kind}/{i}", {})
                indices = [index.setdefault(name, len(index)) for name in names]
                if len(index) > torch.iinfo(columns[i].dtype).max:
                    raise InputError(f"{where}: {len(index):,} categories of {kind}/{i}; give labels a wider type")
                columns[i], totals[i] = renumber(columns[i], indices), len(index)
            self._header["label_counts"][kind] = totals
            tensors[kind] = torch.stack(columns, dim=1)
        return tensors


@dataclass(eq=False)
class _Column:
    """A file of a column, to which rows are appended."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    rows: int = 0
    crc: int = 0
    last: Any = None

    def append(self, rows: np.ndarray) -> None:
        content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        with self.path.open("ab") as file:
            file.write(content)
        self.crc = zlib.crc32(content, self.crc)
        self.rows, self.last = self.rows + len(rows), rows[-1:]

    def finish(self) -> dict[str, Any]:
        """Have the file on disk, and describe it for the header."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return {"dtype": self.dtype, "shape": [self.rows, *self.shape], "crc32": self.crc}


def is_packed_folder(folder: Path | str) -> bool:
    """Whether there is a data set in ``folder``."""
    return os.path.isfile(os.path.join(folder, HEADER))


def open_packed(folder: Path | str, *, check: bool = True) -> PackedDataset:
    """The data set in ``folder``, memory-mapped.

    With ``check`` all of it is read once to verify its checksums.
    """
    folder = Path(folder)
    header = read_json(folder / HEADER)
    with packed_errors(folder, "; pack the graphs again"):
        if header["version"] != VERSION:
            raise InputError(f"{folder / HEADER}: written by another version of mnagt")
        tensors = {name: _open_column(folder, name, about, check=check) for name, about in header["tensors"].items()}
        dataset = from_header(header, tensors)
        _check_rows(dataset)
        _check_labels(dataset, check=check)
        return dataset


def _open_column(folder: Path, name: str, about: dict[str, Any], *, check: bool) -> Tensor:
    path, dtype, shape = folder / _file_name(name), np.dtype(about["dtype"]), tuple(map(int, about["shape"]))
    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    if dtype.kind not in "iuf" or min(shape, default=0) < 0 or size > MAX_BYTES:
        raise InputError(f"{folder / HEADER}: {name} cannot be {dtype} of shape {str(shape)[:80]}")
    if path.stat().st_size != size:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes where {size:,} are expected")
    if not size:
        return torch.from_numpy(np.empty(shape, dtype))
    if name in _OF_GRAPHS:
        rows = np.fromfile(path, dtype).reshape(shape)
    else:
        rows = np.memmap(path, dtype, mode="r", shape=shape)
    if check and _checksum(path) != about["crc32"]:
        raise InputError(f"{path}: damaged")
    return as_tensor(rows)


def as_tensor(rows: np.ndarray) -> Tensor:
    """A tensor over the memory of an array, which may be read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(rows)


def _checksum(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while content := file.read(_BLOCK_BYTES):
            crc = zlib.crc32(content, crc)
    return crc


def _check_rows(dataset: PackedDataset) -> None:
    """Refuse columns of contradicting lengths."""
    if dataset.block < 0:
        raise InputError(f"block counts graphs, got {dataset.block}")
    nodes, edges = int(dataset.node_ptr[-1]), int(dataset.edge_ptr[-1])
    for ptr, where in ((dataset.node_ptr, "node_ptr"), (dataset.edge_ptr, "edge_ptr")):
        if len(ptr) != len(dataset) + 1 or int(ptr[0]) or bool((ptr.diff() < 0).any()):
            raise InputError(f"{where} does not count up from 0, graph by graph")
    rows: dict[str, int] = dict.fromkeys(_OF_EDGES, edges)
    rows |= {name: len(dataset) for name in ("targets", "official", "groups")}
    for name, tensor in dataset.named_tensors.items():
        expected = rows.get(name, nodes)  # encodings are of nodes
        if name not in ("node_ptr", "edge_ptr", "texts") and len(tensor) != expected:
            raise InputError(f"{name} has {len(tensor)} rows, not {expected}")


def _check_labels(dataset: PackedDataset, *, check: bool) -> None:
    """Refuse numbers and names of categories that do not fit the columns; with ``check`` their rows are read too."""
    for kind in ("node_labels", "edge_labels"):
        labels, counts = getattr(dataset, kind), dataset.label_counts.get(kind, ())
        if labels is None and not counts:
            continue
        if labels is None or labels.ndim != 2 or labels.is_floating_point() or labels.shape[1] != len(counts):
            raise InputError(f"label_counts does not fit the columns of {kind}")
        for i, count in enumerate(counts):
            names = dataset.vocabularies.get(f"{kind}/{i}")
            if not isinstance(count, int) or count < 0 or (names is not None and len(names) != count):
                raise InputError(f"{kind}/{i} has {str(count)[:20]!r} categories, which does not fit")
            if check and len(labels) and not -1 <= int(labels[:, i].min()) <= int(labels[:, i].max()) < count:
                raise InputError(f"{kind}/{i} has rows beyond its {count} categories")


def _file_name(name: str) -> str:
    """The name of the file of a tensor."""
    if name not in _TENSORS and not re.fullmatch(ENCODING + "[a-z][a-z0-9-]{0,40}", name):
        raise InputError(f"a packed data set has no {name[:60]!r}")
    return f"{name.replace('/', '-')}.bin"


def pack_jsonl(
    path: Path | str,
    folder: Path | str,
    *,
    targets: Sequence[str] | None = None,
    task: str | Task = "auto",
    group: str | None = None,
    block: int | None = None,
) -> PackedDataset:
    """The graphs of a JSONL file as a memory-mapped data set in ``folder``; ``load_dataset(folder)`` opens it again.

    The result is that of ``load_dataset`` with the same ``targets``, ``task`` and ``group``, except that categories are
    numbered in order of appearance. Of each graph only its targets, its group and its line stay in memory.
    """
    path = Path(path)
    if not path.name.lower().removesuffix(".gz").endswith(SUFFIXES):
        raise InputError(f"{path}: packed from JSONL only ({', '.join(SUFFIXES)}); from Python, see write_packed")
    columns, names = None, ()
    texts_of: dict[str, list[str]] = {}
    locations: list[str] = []
    with packed_writer(Path(folder)) as writer:
        for part in iterate_jsonl(path, GRAPHS_AT_ONCE):
            dataset = part.pack(task=Unlabelled(), columns=columns, is_continued=columns is not None)
            if columns is None:
                columns = dataset.columns
                targets = targets if isinstance(task, str) else task.target_columns(targets)
                names = part.table.find_targets(targets, group)
                texts_of = {name: [] for name in (*names, *([group] if group else []))}
            rows = range(len(dataset))
            if names:
                present = [name for name in names if name in part.table.columns]
                rows = np.flatnonzero(has_any_target(part.table, present)).tolist()
            for name, texts in texts_of.items():
                column = part.table.columns.get(name)
                texts += [""] * len(rows) if column is None else [column[row] for row in rows]
            locations += [part.table.locations[row] for row in rows]
            writer.add(dataset if len(rows) == len(dataset) else dataset.select(torch.tensor(rows, dtype=torch.long)))
        if not locations:
            raise InputError(f"{path}: no graph in it has a target; nothing is left")
        table = GraphTable(str(path), dict(texts_of), range(len(locations)), locations=locations)
        parsed_task, target, _ = read_targets(table, names, task)
        groups = None if group is None else encode_groups(table, group)
        writer.finish(task=parsed_task, targets=target, groups=groups, block=block)
    return open_packed(folder, check=False)
