"""Data sets of functions from Python sources, in the layout and schema of ogbg-code2; docs/code.md has the rules."""

import logging
import os
import platform
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.code_config import MAX_NODES, CodeConfig
from mnagt.data.readers.code_trees import (
    CONSTANTS,
    Function,
    Trees,
    UnparsableError,
    parse_functions,
    sub_tokens,
    write_layout,
)
from mnagt.data.readers.ogb import read_ogb
from mnagt.data.splits import PARTS
from mnagt.errors import InputError
from mnagt.files import read_small_file, write_folder_atomically

VERSION = "code-1"
"""Changes whenever the same sources would give another data set."""

SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}

_SECONDS_BETWEEN_REPORTS = 5
_NOT_THE_LIBRARY = ("site-packages", "dist-packages", "test", "tests", "idle_test")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What became of the sources. Functions are unnamed, copies, near-copies, or have become graphs."""

    files: int
    skipped: tuple[str, ...]
    """Files among them, and folders, that could not be read, each with the line and the reason."""
    counts: Mapping[str, int]
    """Functions that were kept, and left out: 'unnamed' (the language chose the name, or there is no word in it),
    'copies' (name and tree have been seen), 'near_copies' (the same but for what strings and numbers say)."""
    clipped: int
    """Graphs that were larger than ``max_nodes``."""
    projects: int
    parts: Mapping[str, int]
    """Graphs of each part."""

    @property
    def graphs(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {count:,}" for part, count in self.parts.items())
        return (
            f"{self.graphs:,} graphs of {self.projects:,} projects ({parts}), {self.clipped:,} of them clipped; "
            f"{self.files:,} files held {sum(self.counts.values()):,} functions, of which left out: "
            f"{self.counts['unnamed']:,} whose name says nothing, {self.counts['copies']:,} copies, "
            f"{self.counts['near_copies']:,} near-copies"
        )


def build_code(
    paths: Sequence[Path | str],
    out: Path | str,
    config: CodeConfig | None = None,
    *,
    leave_out: Iterable[str] = (),
) -> Report:
    """Write the functions of Python files and folders into the new folder ``out``, in the layout of ogbg-code2.

    Of several paths each is a project; of one folder, each package or module in it; of one package, each of its
    modules. Fewer than three projects are divided by module too. Folders called as in ``leave_out``, hidden ones and
    ``__pycache__`` are passed over.
    """
    out, config = Path(out), config or CodeConfig()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out}: is there already; choose another folder, or remove it")
    files, skipped = _files([Path(path) for path in paths], {"__pycache__", *leave_out})
    if not files:
        raise InputError(f"{', '.join(map(str, paths))}: no Python files there; give files or folders that hold some")
    corpus = _Corpus(skipped=skipped)
    last_report = time.monotonic()
    for done, file in enumerate(files, start=1):
        corpus.add_file(file, config.max_nodes)
        if time.monotonic() - last_report > _SECONDS_BETWEEN_REPORTS:
            last_report = time.monotonic()
            _log.info(
                "%s of %s files read, %s functions", f"{done:,}", f"{len(files):,}", f"{len(corpus.trees.labels):,}"
            )
    if not corpus.file_of_graph:
        first = f"; not read: {len(corpus.skipped)}, the first: {corpus.skipped[0]}" if corpus.skipped else ""
        raise InputError(f"no functions to name; Python files: {len(files)}{first}")
    project_of = _projects(set(corpus.file_of_graph), len(paths))
    projects = [project_of[file] for file in corpus.file_of_graph]
    part_of = assign_parts(Counter(projects), config.seed)
    parts = [part_of[project] for project in projects]
    with write_folder_atomically(out) as scratch:
        write_layout(scratch, corpus.trees, projects, parts, config.attributes)
    return Report(
        files=len(files),
        skipped=tuple(corpus.skipped),
        counts=corpus.counts,
        clipped=corpus.clipped,
        projects=len(part_of),
        parts={part: parts.count(part) for part in PARTS},
    )


def stdlib_name() -> str:
    """What the standard library of this interpreter is called as a data set."""
    return f"stdlib-{platform.python_version()}"


def stdlib_folder() -> Path:
    """Where its sources are."""
    return Path(sysconfig.get_path("stdlib"))


def read_stdlib(config: CodeConfig | None = None) -> PackedDataset:
    """The functions of Python's own standard library, less its tests, divided by module."""
    name, folder = stdlib_name(), stdlib_folder()
    _log.info("%s: reading the functions in %s, once", name, folder)
    with tempfile.TemporaryDirectory() as scratch:
        report = build_code([folder], Path(scratch, name), config, leave_out=_NOT_THE_LIBRARY)
        _log.info("%s: %s", name, report)
        return read_ogb(Path(scratch, name), name=name)


def read_functions(path: Path, max_nodes: int = MAX_NODES) -> list[Function]:
    """Every function of a Python file."""
    try:
        functions = _parse_file(path, max_nodes)
    except UnparsableError as error:
        raise InputError(f"{error}; it is not Python {platform.python_version()}") from None
    if not functions:
        raise InputError(f"{path}: no functions in it")
    return functions


def _parse_file(path: Path, max_nodes: int) -> list[Function]:
    try:
        return list(parse_functions(read_small_file(path), max_nodes))
    except UnparsableError as error:
        line = "" if error.line is None else f", line {error.line}"
        raise UnparsableError(f"{path}{line}: {error}", error.line) from None


def assign_parts(sizes: Mapping[str, int], seed: int) -> dict[str, str]:
    """The part of each project, 8:1:1 by what ``sizes`` counts, as near as whole projects allow.

    Each goes to the part that lacks most: first those that hold over a twentieth of all, largest first, then the others
    in an order drawn with ``seed``. No part is left empty.
    """
    total = sum(sizes.values())
    lacking = {part: share * total for part, share in SHARES.items()}

    def sort_key(project: str) -> tuple[int, bytes]:
        drawn = blake2b(f"{seed} {project}".encode(errors="backslashreplace")).digest()
        return -sizes[project] if sizes[project] > total / 20 else 0, drawn

    part_of: dict[str, str] = {}
    empty = list(PARTS)
    for project in sorted(sizes, key=sort_key):
        choice = empty if len(sizes) - len(part_of) <= len(empty) else PARTS
        part = max(choice, key=lacking.__getitem__)
        part_of[project] = part
        lacking[part] -= sizes[project]
        if part in empty:
            empty.remove(part)
    return part_of


# Sources


@dataclass(frozen=True)
class _File:
    path: Path
    base: Path
    """The path that was given, which this is or is in."""

    @property
    def module(self) -> tuple[str, ...]:
        """The names below ``base``, without suffix."""
        *folders, last = self.path.relative_to(self.base).parts or (self.path.name,)
        return *folders, last.removesuffix(".py")


def _files(paths: Sequence[Path], leave_out: set[str]) -> tuple[list[_File], list[str]]:
    """The Python files in ``paths``, in order, and the folders that could not be entered."""
    files: list[_File] = []
    skipped: list[str] = []

    def skip(error: OSError) -> None:
        skipped.append(f"{error.filename}: cannot be read ({error.strerror})")

    for base in paths:
        if not os.path.exists(base):
            raise InputError(f"{base}: no such file or folder; give Python files, or folders that hold some")
        if not base.is_dir():
            files.append(_File(base, base))
            continue
        for folder, inner, names in os.walk(base, onerror=skip):
            inner[:] = sorted(name for name in inner if name not in leave_out and not name.startswith("."))
            files += [_File(Path(folder, name), base) for name in sorted(names) if name.endswith(".py")]
    return files, skipped


def _projects(files: Iterable[_File], bases: int) -> dict[_File, str]:
    """The project of each file: the coarsest choice that gives three of them."""
    files = list(files)
    by_base = {file: file.base.resolve().name.removesuffix(".py") for file in files}
    prefix = {file: f"{base}." if bases > 1 else "" for file, base in by_base.items()}
    by_entry = {file: prefix[file] + file.module[0] for file in files}
    by_module = {file: prefix[file] + ".".join(file.module) for file in files}
    is_package = (files[0].base / "__init__.py").exists()
    for projects in [by_base, by_entry, by_module][0 if bases > 1 else 2 if is_package else 1 :]:
        if len(set(projects.values())) >= len(PARTS):
            return projects
    raise InputError(
        f"modules with functions to name: {len(set(by_module.values()))}; a data set needs at least three, to train, "
        "choose and judge: give more files"
    )


# Graphs


@dataclass(eq=False)
class _Corpus:
    """Trees as they come in, and what was left out."""

    skipped: list[str]
    trees: Trees = field(default_factory=Trees)
    file_of_graph: list[_File] = field(default_factory=list)
    clipped: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _digests: set[bytes] = field(default_factory=set)

    def add_file(self, file: _File, max_nodes: int) -> None:
        """Add the functions of a file."""
        try:
            for function in _parse_file(file.path, max_nodes):
                self.counts[self._add(function, file)] += 1
        except (InputError, UnparsableError) as error:
            self.skipped.append(str(error))

    def _add(self, function: Function, file: _File) -> str:
        """Add the function if it has a name to predict and is no copy. Returns the key of ``counts`` for it."""
        name = function.name.rpartition(".")[2]
        label = " ".join(sub_tokens(name))
        if not label or (name.startswith("__") and name.endswith("__")):
            return "unnamed"
        nodes = self.trees.encode(function)
        valueless = nodes.copy()
        valueless[1, nodes[0] < len(CONSTANTS)] = 0
        exact, near = (
            blake2b(label.encode() + b"\n" + each.tobytes(), digest_size=16).digest() for each in (nodes, valueless)
        )
        kind = "copies" if exact in self._digests else "near_copies" if near in self._digests else "kept"
        self._digests |= {exact, near}
        if kind == "kept":
            self.trees.add(nodes, label)
            self.file_of_graph.append(file)
            self.clipped += function.is_clipped
        return kind
