"""Where the text files of a TU data set are, in a folder or a zip, and their bytes. A zip is read, never unpacked."""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from mnagt.errors import InputError

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


@dataclass(frozen=True)
class TuFiles:
    """The text files of one data set, by field: 'A', 'graph_indicator', ..."""

    name: str
    path: Path
    members: dict[str, str]
    """Zip members, or paths below the folder."""

    def __contains__(self, field: str) -> bool:
        return field in self.members

    @classmethod
    def found(cls, path: Path) -> "TuFiles":
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
