"""Files are written whole or not at all, and read up to a size, which ``MNAGT_LARGEST_FILE`` can change."""

import csv
import errno
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from mnagt.errors import InputError, quote, suggest

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None

SCRATCH = ".mnagt-scratch"
"""How the names of scratch folders end."""
MAX_SMALL_FILE_BYTES = 64 << 20
"""Bytes of a file of settings, of a record or of Python source."""
DIGEST = "digest"
"""The key under which a record holds a digest of its other entries."""


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """A scratch path beside ``path``; it takes the place of ``path`` when the block ends, and is gone if it fails."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; choose another name")
    try:
        with scratch_path(path) as scratch:
            yield scratch
            with scratch.open("r+b") as file:
                os.fsync(file.fileno())
            scratch.chmod(0o644)
            scratch.replace(path)
    except OSError as error:
        raise write_error(path, error) from error


@contextmanager
def write_folder_atomically(path: Path) -> Iterator[Path]:
    """A scratch folder beside ``path``, which must not exist or be empty, and becomes it when the block ends."""
    try:
        with scratch_path(path) as scratch:
            scratch.mkdir()
            yield scratch
            scratch.rename(path)
    except OSError as error:
        raise write_error(path, error) from error


@contextmanager
def scratch_path(path: Path) -> Iterator[Path]:
    """Where ``path`` may be prepared: its name in a scratch folder beside it, which is gone afterwards.

    A folder, because writers make scratch files of their own (safetensors does). If the process is killed it stays, and
    goes when something is next written beside it.
    """
    make_folder(path.parent, wanted=path)
    clear_scratch(path.parent)
    folder, lock = _make_locked_folder(path)
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def clear_scratch(folder: Path) -> None:
    """Remove what killed writers left in ``folder``. A live one holds a lock, which ends with its process."""
    if fcntl is None:  # nobody can tell
        return
    for scratch in folder.glob(f".*{SCRATCH}"):
        with suppress(OSError):  # in use; or there are no locks, or it belongs to someone else
            lock = os.open(scratch, os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                lock_file(lock, is_waiting=False)
                shutil.rmtree(scratch)
            finally:
                os.close(lock)


def _make_locked_folder(path: Path) -> tuple[Path, int | None]:
    """A scratch folder for ``path``, and the lock on it."""
    while True:
        folder = Path(tempfile.mkdtemp(SCRATCH, f".{path.name}.", path.parent))
        if fcntl is None:
            return folder, None
        with suppress(FileNotFoundError):  # cleared away before it was locked
            lock = os.open(folder, os.O_DIRECTORY)
            with suppress(OSError):  # no locks on this file system; nor does anyone clear it then
                lock_file(lock)
            if folder.exists():
                return folder, lock
            os.close(lock)


def lock_file(file: IO[Any] | int, *, is_waiting: bool = True) -> None:
    """Lock an open file or folder until it is closed; wait while another process holds it, or else raise an error.

    On Windows nothing is locked: two processes must not write the same run, ledger or study there.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if is_waiting else fcntl.LOCK_NB))


@contextmanager
def hold_lock(path: Path, otherwise: str) -> Iterator[None]:
    """No other process holds ``path`` in such a block; the error if one does. Released by any end of the process."""
    with path.open("ab") as file:
        try:
            lock_file(file, is_waiting=False)
        except BlockingIOError:
            raise InputError(otherwise) from None
        except OSError:  # no locks on this file system
            pass
        yield


def make_folder(folder: Path, *, wanted: Path | None = None) -> None:
    """The folder is there, or else an error that says why not; ``wanted`` is the file that was to be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(wanted or folder, error) from error


def write_error(path: Path, error: OSError) -> InputError:
    """The error for the user when ``path`` was not written because of ``error``."""
    reason, remedy = error.strerror or error, "nothing was changed, choose another place"
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason, remedy = "there is a file where its folder would be", "choose another place"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "choose a place that can be written"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, None):  # safetensors gives no number
        remedy = "nothing was changed, free some space"
    return InputError(f"cannot write {path}: {reason}; {remedy}")


def suggest_file(path: Path) -> str:
    """The file in the same folder whose name is nearest to that of ``path``, as messages propose it."""
    try:
        names = [each.name for each in path.parent.iterdir()]
    except OSError:
        return ""
    return suggest(path.name, names).strip()


def write_text(path: Path, text: str) -> None:
    with write_atomically(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def csv_writer(file: IO[str], *, quotes_formulas: bool) -> Callable[[Iterable[Iterable[Any]]], None]:
    """A function that writes rows to ``file``; with ``quotes_formulas``, each cell as ``quote_formula`` gives it."""
    write = csv.writer(file).writerows
    return (lambda rows: write(map(quote_formula, row) for row in rows)) if quotes_formulas else write


def quote_formula(cell: Any) -> Any:
    """The cell, with ' before a text that a spreadsheet would take for a formula. Numbers stay as they are.

    >>> [quote_formula(cell) for cell in ("=1+1", " @SUM(A1)", "-3.5", -3.5, "a=b")]
    ["'=1+1", "' @SUM(A1)", '-3.5', -3.5, 'a=b']
    """
    if not isinstance(cell, str) or not cell.lstrip().startswith(("=", "+", "-", "@")):
        return cell
    with suppress(ValueError):
        if not math.isnan(float(cell)):
            return cell
    return f"'{cell}"


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write JSON with a digest, so that ``read_json`` notices damage."""
    write_json(path, add_digest(record))


def add_digest(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record, with a digest of it."""
    return {**record, DIGEST: _digest_record(record)}


def check_digest(record: Any, where: object) -> Any:
    """The record without its digest, or an error if it is another than was written. Records of 0.2 have no digest."""
    if not isinstance(record, dict) or DIGEST not in record:
        return record
    content = {name: value for name, value in record.items() if name != DIGEST}
    if record[DIGEST] != _digest_record(content):
        raise InputError(
            f"{where}: changed since it was written (its digest is another); restore it, or remove the digest if you "
            "changed it yourself"
        )
    return content


def _digest_record(record: Mapping[str, Any]) -> str:
    """Of what JSON keeps of it, in any order."""
    text = json.dumps(json.loads(json.dumps(record)), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def read_json(path: Path) -> Any:
    """The file's content without its digest, or an error that names the file and the line."""
    content = read_small_file(path)
    try:
        record = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, thousands of digits, nested too deeply
        raise InputError(f"{path}: not JSON ({error}); it is damaged or was written by something else") from None
    return check_digest(record, path)


def read_small_file(path: Path) -> bytes:
    """The bytes of a file of settings, of a record or of source, or an error that says why not."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: cannot be read (not a file)")
        check_file_size(path, status.st_size, MAX_SMALL_FILE_BYTES)
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def check_file_size(where: object, size: int, usual: int) -> None:
    """Refuse files that unpack to more than ``usual`` bytes, or MNAGT_LARGEST_FILE; ``where`` is for the message."""
    value = os.environ.get("MNAGT_LARGEST_FILE", "")
    if value and not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise InputError(f"MNAGT_LARGEST_FILE: expected a number of bytes, got {quote(value)}")
    if size > (largest := int(value or usual)):
        raise InputError(
            f"{where}: {size:,} bytes, and up to {largest:,} are read; if you trust it, set MNAGT_LARGEST_FILE=BYTES"
        )
