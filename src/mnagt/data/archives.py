"""The files of a data set in a folder or a zip, and their bytes. Nothing is unpacked; ``.gz`` is read through.

Neither is trusted. What a file grows to is counted as it is read, whatever it says of itself, and held against what it
takes on disk; a zip whose names lead elsewhere, or are there twice, is refused.
"""

import gzip
import lzma
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from mnagt.errors import InputError, shown
from mnagt.reading import check_size

BLOCK = 1 << 20
LARGEST_FILE = 8 << 30
"""Bytes of a file, unpacked, that is read piece by piece into arrays."""
LARGEST_TOLD = 1 << 30
"""Bytes of a file, unpacked, of which every value becomes an object of Python: these take many times as much."""
LARGEST_RATIO = 500
"""Of a file's size to what it takes on disk, past ``RATIO_MATTERS`` bytes; of COLLAB's graph_indicator it is 222."""
RATIO_MATTERS = 256 << 20

_DAMAGED = (
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a version or compression that zipfile does not know
    RuntimeError,  # encrypted
    ValueError,
    IndexError,
    KeyError,
    OverflowError,
    struct.error,
)


@dataclass(frozen=True)
class Archive:
    """A folder or a zip. Its members go by their path within, with slashes."""

    path: Path

    def names(self, *patterns: str) -> list[str]:
        """The files there are: all in a zip, those that match in a folder."""
        if self.path.is_dir():
            files = [p for pattern in patterns for p in self.path.glob(pattern) if p.is_file()]
            return [p.relative_to(self.path).as_posix() for p in files]
        if not self.path.exists():
            raise InputError(f"{self.path}: no such file or folder")
        with _reading(str(self.path), "zip"), zipfile.ZipFile(self.path) as archive:
            files = [info for info in archive.infolist() if not info.filename.startswith("__MACOSX/")]
            seen: set[str] = set()
            for info in files:
                self._check_entry(info, seen)
                seen.add(info.filename)
            return [info.filename for info in files]

    def _check_entry(self, info: zipfile.ZipInfo, seen: set[str]) -> None:
        """Refuse what no data set has. Nothing is unpacked here, but whoever made it meant no good."""
        name, reason = info.filename, None
        if name.startswith("/") or "\\" in name or ":" in name or ".." in PurePosixPath(name).parts:
            reason = "leads out of the zip"
        elif stat.S_ISLNK(info.external_attr >> 16):
            reason = "is a link"
        elif name in seen:
            reason = "is there twice"
        if reason:
            raise InputError(f"{self.path}: {shown(name)} {reason}; do not trust it, fetch the data set elsewhere")

    def label(self, name: str) -> str:
        """The file as messages name it."""
        name = name if name.isprintable() and len(name) < 100 else shown(name, 100)
        return str(self.path / name) if self.path.is_dir() else f"{self.path}: {name}"

    def blocks(self, name: str, largest: int = LARGEST_FILE) -> Iterator[bytes]:
        """The file piece by piece; while one is looked at, the next is read. ``largest`` is for all of it."""
        is_gz = name.endswith(".gz")
        where, what = (self.label(name), "gzip file") if is_gz else (str(self.path), "zip")
        with ExitStack() as opened:
            with _reading(str(self.path), "zip"):
                file, size, on_disk = self._open(name, opened)
            self._check_growth(name, on_disk, size, largest)
            if is_gz:
                file = opened.enter_context(gzip.GzipFile(fileobj=file))
            pool, read_next, total = None, partial(file.read, BLOCK), 0
            while True:
                with _reading(where, what):
                    block = read_next()
                if not block:
                    return
                total += len(block)
                self._check_growth(name, on_disk, total, largest)
                if len(block) == BLOCK:  # else it was the last, and no thread is worth its start
                    pool = pool or opened.enter_context(ThreadPoolExecutor(max_workers=1))
                    read_next = pool.submit(file.read, BLOCK).result
                else:
                    read_next = partial(file.read, BLOCK)
                yield block

    def _open(self, name: str, opened: ExitStack) -> tuple[IO[bytes], int, int]:
        """The file, its size (as a ``.gz``, if it is one), and what it takes on disk."""
        if self.path.is_dir():
            path = self.path / name
            if not path.is_file() and path.exists():  # a pipe, a device
                raise InputError(f"{path}: cannot be read (not a file)")
            size = path.stat().st_size
            return opened.enter_context(path.open("rb")), size, size
        archive = opened.enter_context(zipfile.ZipFile(self.path))
        info = archive.getinfo(name)
        on_disk = min(info.compress_size, self.path.stat().st_size)
        file: IO[bytes] = opened.enter_context(archive.open(info))
        if info.compress_type == zipfile.ZIP_LZMA:
            file = _InSips(file)
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # bzip2: no bound at all
            raise InputError(f"{self.label(name)}: packed in a way that is not read; zip it with deflate")
        return file, info.file_size, on_disk

    def _check_growth(self, name: str, before: int, after: int, largest: int) -> None:
        check_size(self.label(name), after, largest)
        if after > RATIO_MATTERS and after > LARGEST_RATIO * before:
            raise InputError(
                f"{self.label(name)}: {before:,} bytes expand to over {after:,}, more than a data set does; unpack it "
                "yourself if you trust it"
            )


class _InSips(IO[bytes]):
    """A file of a zip packed by LZMA: of these ``zipfile`` unpacks as many packed bytes as it is asked for unpacked
    ones, which may make thousands of times as much. Asked for few at a time, it has few at a time."""

    SIP = 4096

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def read(self, n: int = -1) -> bytes:
        sips, wanted = [], n if n >= 0 else LARGEST_FILE
        while wanted > 0 and (sip := self.file.read(min(wanted, self.SIP))):
            sips.append(sip)
            wanted -= len(sip)
        return b"".join(sips)


@contextmanager
def _reading(where: str, what: str) -> Iterator[None]:
    """Whatever a damaged or unreadable file raises, told as an ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{where}: not a readable {what} ({reason}); fetch it again") from error
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error})") from error
