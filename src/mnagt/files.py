"""Files are written whole or not at all."""

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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose a place that can be written") from error
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        scratch.chmod(0o644)
        scratch.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot write {path}: {reason}; nothing was changed, free some space") from error
    finally:
        scratch.unlink(missing_ok=True)


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
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error}); it is damaged or was written by something else") from None
