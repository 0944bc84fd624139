"""Files are written whole or not at all."""

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mnagt.errors import InputError


@contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """A scratch path beside ``path``; it takes the place of ``path`` when the block ends, and is gone if it fails."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; choose another name")
    make_folder(path.parent, wanted=path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _not_written(path, error) from error
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        scratch.chmod(0o644)
        scratch.replace(path)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        scratch.unlink(missing_ok=True)


def make_folder(folder: Path, *, wanted: Path | None = None) -> None:
    """The folder is there, or else an error that says why not; ``wanted`` is the file that was to be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(wanted or folder, error) from error


def _not_written(path: Path, error: OSError) -> InputError:
    match error:
        case FileExistsError() | NotADirectoryError():
            return InputError(f"cannot write {path}: there is a file where its folder would be; choose another place")
        case OSError(errno=errno.EACCES | errno.EPERM | errno.EROFS):
            return InputError(f"cannot write {path}: {error.strerror}; choose a place that can be written")
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return InputError(f"cannot write {path}: {error.strerror}; nothing was changed, free some space")
    remedy = "free some space" if error.errno is None else "choose another place"  # safetensors gives no number
    return InputError(f"cannot write {path}: {error.strerror or error}; nothing was changed, {remedy}")


def write_text(path: Path, text: str) -> None:
    with written_atomically(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The file's content, or an error that names the file and the line."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error}); it is damaged or was written by something else") from None
