"""The files of a data set in a folder or a zip, and their bytes. Nothing is unpacked; ``.gz`` is read through."""

import gzip
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mnagt.errors import InputError

BLOCK = 1 << 20
LARGEST_FILE = 8 << 30
LARGEST_RATIO = 1000
"""Of a file's size to its compressed size, past ``RATIO_MATTERS`` bytes."""
RATIO_MATTERS = 256 << 20

_DAMAGED = (
    zipfile.BadZipFile,
    gzip.BadGzipFile,
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
            return [name for name in archive.namelist() if not name.startswith("__MACOSX/")]

    def label(self, name: str) -> str:
        """The file as messages name it."""
        name = name if name.isprintable() else ascii(name)
        return str(self.path / name) if self.path.is_dir() else f"{self.path}: {name}"

    def blocks(self, name: str) -> Iterator[bytes]:
        """The file piece by piece; while one is looked at, the next is read."""
        is_gz = name.endswith(".gz")
        where, what = (self.label(name), "gzip file") if is_gz else (str(self.path), "zip")
        with ExitStack() as opened:
            with _reading(str(self.path), "zip"):
                file, size = self._open(name, opened)
            if is_gz:
                file = opened.enter_context(gzip.GzipFile(fileobj=file))
            pool = opened.enter_context(ThreadPoolExecutor(max_workers=1))
            ahead, total = pool.submit(file.read, BLOCK), 0
            while True:
                with _reading(where, what):
                    block = ahead.result()
                if not block:
                    return
                total += len(block)
                if is_gz:
                    self._check_growth(name, size, total)
                ahead = pool.submit(file.read, BLOCK)
                yield block

    def _open(self, name: str, opened: ExitStack) -> tuple[IO[bytes], int]:
        """The file, and its size (as a ``.gz``, if it is one)."""
        if self.path.is_dir():
            file = opened.enter_context((self.path / name).open("rb"))
            return file, (self.path / name).stat().st_size
        archive = opened.enter_context(zipfile.ZipFile(self.path))
        info = archive.getinfo(name)
        self._check_growth(name, info.compress_size, info.file_size)
        return opened.enter_context(archive.open(info)), info.file_size

    def _check_growth(self, name: str, before: int, after: int) -> None:
        if after > LARGEST_FILE or (after > RATIO_MATTERS and after > LARGEST_RATIO * before):
            raise InputError(
                f"{self.label(name)}: {before:,} bytes expand to {after:,}, more than a data set does; unpack it"
                " yourself if you trust it, and give the folder"
            )


@contextmanager
def _reading(where: str, what: str) -> Iterator[None]:
    """Whatever a damaged or unreadable file raises, told as an ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{where}: not a readable {what} ({reason}); fetch it again") from error
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error})") from error
