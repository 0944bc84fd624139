"""One JSON line for each finished trial: what was run, where, and what it gave."""

import errno
import fcntl
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch

from mnagt.errors import InputError
from mnagt.files import make_folder
from mnagt.models import full_settings
from mnagt.settings import from_dict
from mnagt.training.config import RunConfig
from mnagt.training.run import Result, settled
from mnagt.version import __version__


def resolved(config: RunConfig) -> dict[str, Any]:
    """The settings of a trial in full, the model's defaults written out."""
    return asdict(settled(config)) | {"settings": full_settings(config.model, config.settings)}


def trial_key(config: RunConfig) -> str:
    """The same for the same trial. The device is left out: it changes figures no more than rounding and chance do."""
    told = resolved(config)
    del told["device"], told["train"]["checkpoint_seconds"]
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=12).hexdigest()


class Ledger:
    """A file of trials. Lines are added whole, under a lock; a line cut short by a crash is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> Iterator[dict[str, Any]]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); choose another ledger") from None
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except ValueError:
                if number < len(lines):
                    raise InputError(f"{self.path}, line {number}: not JSON; remove the line") from None
                return
            if not isinstance(record, dict) or not {"config", "result"} <= record.keys():
                raise InputError(f"{self.path}, line {number}: not a trial; remove the line or choose another ledger")
            yield record

    def by_key(self) -> dict[str, dict[str, Any]]:
        """The records by trial.

        Keys are worked out anew from the settings on record, so that a setting that came later counts as what it is
        by default. A trial with a setting that is gone cannot be asked for, and is passed over.
        """
        found = {}
        for record in self.records():
            try:
                found[trial_key(from_dict(RunConfig, record["config"], where=str(self.path)))] = record
            except InputError:
                continue
        return found

    def append(self, config: RunConfig, result: Result, **beside: Any) -> dict[str, Any]:
        """Add a finished trial, with whatever else is known of it."""
        record = {"config": resolved(config), "result": asdict(result), **beside, **circumstances()}
        self._write(json.dumps(record, sort_keys=True) + "\n")
        return record

    def check(self) -> None:
        """Refuse a ledger that could not be added to, before any trial is run."""
        self._write("")

    def _write(self, line: str) -> None:
        make_folder(self.path.parent, wanted=self.path)
        try:
            with self.path.open("ab+", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                end = _end_of_whole_lines(file)
                try:
                    file.truncate(end)
                    if end and file.seek(end - 1) and file.read() != b"\n":
                        line = "\n" + line
                    if file.write(line.encode()) < len(line.encode()):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)
                    raise
        except OSError as error:
            raise InputError(
                f"cannot write {self.path}: {error.strerror}; free some space or choose another"
            ) from error


def _end_of_whole_lines(file: IO[bytes]) -> int:
    """Where the last whole line ends; what a crash left after it is no trial."""
    file.seek(0)
    content = file.read()
    start = content.rfind(b"\n") + 1
    try:
        json.loads(content[start:])
    except ValueError:
        return start
    return len(content)


def circumstances() -> dict[str, Any]:
    """When, where and with what."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
        "versions": {"mnagt": __version__, "torch": torch.__version__},
        "commit": _commit(),
    }


@cache
def _commit() -> str | None:
    """The commit of the code that runs: what ``MNAGT_COMMIT`` says, for copies that are no checkout, or git."""
    if told := os.environ.get("MNAGT_COMMIT"):
        return told
    here = Path(__file__).parent
    try:
        asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()
