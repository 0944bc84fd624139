"""Files from outside are not trusted: they are read up to a size, which ``MNAGT_LARGEST_FILE`` can change."""

import os
import stat
from pathlib import Path

from mnagt.errors import InputError, quote

MAX_SMALL_FILE_BYTES = 64 << 20
"""Bytes of a file of settings, of a record or of Python source."""


def max_file_bytes(usual: int) -> int:
    """Bytes of a file, unpacked, up to which it is read: what ``MNAGT_LARGEST_FILE`` says, else ``usual``."""
    value = os.environ.get("MNAGT_LARGEST_FILE", "")
    if value and not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise InputError(f"MNAGT_LARGEST_FILE: expected a number of bytes, got {quote(value)}")
    return int(value) if value else usual


def check_file_size(where: object, size: int, usual: int) -> None:
    """Refuse what is larger than such files are; ``where`` is for the message."""
    if size > (largest := max_file_bytes(usual)):
        raise InputError(
            f"{where}: {size:,} bytes, and up to {largest:,} are read; if you trust it, set MNAGT_LARGEST_FILE=BYTES"
        )


def read_small_file(path: Path) -> bytes:
    """The bytes of a file of settings, of a record or of source, or an error that says why not."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{path}: cannot be read (not a file)")
        check_file_size(path, about.st_size, MAX_SMALL_FILE_BYTES)
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
