"""One JSON line for each finished trial: what was run, where, and what it gave."""

import fcntl
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from mnagt.errors import InputError
from mnagt.training.config import RunConfig
from mnagt.training.run import Result
from mnagt.version import __version__


def trial_key(config: RunConfig) -> str:
    """The same for the same trial: everything that can change its figures, the device left out."""
    told = asdict(config)
    del told["device"], told["train"]["checkpoint_seconds"]
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=12).hexdigest()


class Ledger:
    """A file of trials. Lines are added whole, under a lock; a line cut short by a crash is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                if number < len(lines):
                    raise InputError(f"{self.path}, line {number}: not JSON; remove the line") from None

    def find(self, config: RunConfig) -> dict[str, Any] | None:
        """The record of this trial, if it was run."""
        key = trial_key(config)
        return next((record for record in self.records() if record["key"] == key), None)

    def append(self, config: RunConfig, result: Result) -> dict[str, Any]:
        """Add a finished trial."""
        record = {"key": trial_key(config), "config": asdict(config), "result": asdict(result), **circumstances()}
        line = json.dumps(record, sort_keys=True) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read())[1] != b"\n":
                    line = "\n" + line
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error
        return record


def circumstances() -> dict[str, Any]:
    """When, where and with what."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
        "versions": {"mnagt": __version__, "torch": torch.__version__},
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the code that runs, where it runs from a checkout."""
    here = Path(__file__).parent
    try:
        told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("MNAGT_COMMIT")
    return told.stdout.strip()
