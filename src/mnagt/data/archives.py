"""Reads the files of a data set in a folder or a zip; ``.gz`` is decompressed.

Files are not trusted. Their decompressed size is counted while they are read, and compared with their size on disk. A
zip with paths that lead elsewhere, links or duplicate names is refused.
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

from mnagt.errors import InputError, quote
from mnagt.files import check_file_size

BLOCK = 1 << 20
MAX_FILE_BYTES = 8 << 30
"""Decompressed bytes of a file that is parsed into arrays block by block."""
MAX_PARSED_BYTES = 1 << 30
"""Decompressed bytes of a file whose values become Python objects, which take many times the memory."""
MAX_COMPRESSION_RATIO = 500
"""Decompressed to compressed size, from ``CHECKED_FROM`` bytes on; COLLAB's graph_indicator has 222."""
CHECKED_FROM = 256 << 20

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
        with _read_errors(str(self.path), "zip"), zipfile.ZipFile(self.path) as archive:
            files = [info for info in archive.infolist() if not info.filename.startswith("__MACOSX/")]
            names: set[str] = set()
            for info in files:
                self._check_entry(info, names)
                names.add(info.filename)
            return [info.filename for info in files]

    def _check_entry(self, info: zipfile.ZipInfo, earlier: set[str]) -> None:
        """Refuse entries that no data set has: paths that lead elsewhere, links, duplicates."""
        name, reason = info.filename, None
        if name.startswith("/") or "\\" in name or ":" in name or ".." in PurePosixPath(name).parts:
            reason = "leads out of the zip"
        elif stat.S_ISLNK(info.external_attr >> 16):
            reason = "is a link"
        elif name in earlier:
            reason = "is there twice"
        if reason:
            raise InputError(f"{self.path}: {quote(name)} {reason}; do not trust it, fetch the data set elsewhere")

    def label(self, name: str) -> str:
        """The file, for messages."""
        name = name if name.isprintable() and len(name) < 100 else quote(name, 100)
        return str(self.path / name) if self.path.is_dir() else f"{self.path}: {name}"

    def read_blocks(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> Iterator[bytes]:
        """The file in blocks, the next of which is read ahead; at most ``max_bytes`` in all."""
        is_gz = name.endswith(".gz")
        where, what = (self.label(name), "gzip file") if is_gz else (str(self.path), "zip")
        with ExitStack() as opened:
            with _read_errors(str(self.path), "zip"):
                file, size, on_disk = self._open(name, opened)
            self._check_growth(name, on_disk, size, max_bytes)
            if is_gz:
                file = opened.enter_context(gzip.GzipFile(fileobj=file))
            pool, read_next, total = None, partial(file.read, BLOCK), 0
            while True:
                with _read_errors(where, what):
                    block = read_next()
                if not block:
                    return
                total += len(block)
                self._check_growth(name, on_disk, total, max_bytes)
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
            file = _SmallReads(file)
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # bzip2: no bound at all
            raise InputError(f"{self.label(name)}: packed in a way that is not read; zip it with deflate")
        return file, info.file_size, on_disk

    def _check_growth(self, name: str, before: int, after: int, max_bytes: int) -> None:
        check_file_size(self.label(name), after, max_bytes)
        if after > CHECKED_FROM and after > MAX_COMPRESSION_RATIO * before:
            raise InputError(
                f"{self.label(name)}: {before:,} bytes expand to over {after:,}, more than a data set does; unpack it "
                "yourself if you trust it"
            )


class _SmallReads(IO[bytes]):
    """Reads an LZMA file of a zip in small steps.

    ``zipfile`` decompresses as many compressed bytes as are requested, which may expand a thousandfold.
    """

    SIZE = 4096

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def read(self, n: int = -1) -> bytes:
        blocks, wanted = [], n if n >= 0 else MAX_FILE_BYTES
        while wanted > 0 and (block := self.file.read(min(wanted, self.SIZE))):
            blocks.append(block)
            wanted -= len(block)
        return b"".join(blocks)


@contextmanager
def _read_errors(where: str, what: str) -> Iterator[None]:
    """Turn the errors of damaged or unreadable files into ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{where}: not a readable {what} ({reason}); fetch it again") from error
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error})") from error
