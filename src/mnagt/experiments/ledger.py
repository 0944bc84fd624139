"""One JSON line for each finished trial: what was run, where, and what it gave."""

import hashlib
import json
import logging
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch

from mnagt.data.registry import is_molecule_table
from mnagt.errors import InputError
from mnagt.files import add_digest, check_digest, lock_file, make_folder
from mnagt.models.registry import full_settings
from mnagt.runs.config import RunConfig
from mnagt.runs.split import resolve_split_kind
from mnagt.settings import from_dict
from mnagt.training.run import Result
from mnagt.version import __version__

_log = logging.getLogger(__name__)


def resolve_config(config: RunConfig) -> dict[str, Any]:
    """The settings of a trial in full: defaults of the model are written out, and an automatic split has its kind."""
    return asdict(resolve_split_kind(config)) | {"settings": full_settings(config.model, config.settings)}


def read_recorded_config(values: Mapping[str, Any], *, where: str) -> RunConfig:
    """The settings that ``resolve_config`` wrote; only 0.1 wrote 'auto' for a table of molecules: a random split."""
    config = from_dict(RunConfig, values, where=where)
    if config.split.kind == "auto" and is_molecule_table(config.dataset):
        return replace(config, split=replace(config.split, kind="random"))
    return config


def comparable_settings(config: RunConfig) -> dict[str, Any]:
    """The settings in full, without those that change figures no more than rounding and chance do."""
    settings = resolve_config(config)
    del settings["device"], settings["train"]["checkpoint_seconds"]
    return settings


def trial_key(config: RunConfig, *, is_validation_only: bool = False) -> str:
    """A digest of the settings; the device is left out."""
    settings = json.dumps(comparable_settings(config), sort_keys=True).encode()
    digest = hashlib.blake2b(settings, digest_size=12).hexdigest()
    return f"{digest}, validation only" if is_validation_only else digest


class Ledger:
    """A file of trials, one JSON line each, and each trial once.

    Lines are added whole, under a lock. A last line that a crash cut short is skipped, and removed by the next write.

    Args:
        path: The file; it need not be there.

    >>> from pathlib import Path
    >>> from mnagt import Ledger
    >>> list(Ledger(Path("no-trials-yet.jsonl")).records())
    []
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of the file, parsed; an error names the number of a line that is no trial, or has changed."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); choose another ledger") from None
        lines = content.splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                if number < len(lines) or content.endswith(b"\n"):
                    raise InputError(f"{self.path}, line {number}: not JSON; remove the line") from None
                _log.warning("%s, line %d was cut short; that trial is not counted", self.path, number)
                return
            if not isinstance(record, dict) or "config" not in record or not isinstance(record.get("result"), dict):
                raise InputError(f"{self.path}, line {number}: not a trial; remove the line or choose another ledger")
            yield check_digest(record, f"{self.path}, line {number}")

    def by_key(self) -> dict[str, dict[str, Any]]:
        """The records by ``trial_key``.

        Keys are computed anew from the recorded settings, so that a setting which did not exist then counts as its
        default. A trial with a setting that no longer exists is skipped.
        """
        keys = ((_record_key(record), record) for record in self.records())
        return {key: record for key, record in keys if key is not None}

    def append(self, config: RunConfig, result: Result, **notes: Any) -> dict[str, Any]:
        """Add a finished trial, and return its record.

        If another process added the same trial meanwhile, nothing is added and that record is returned.
        """
        record = {"config": resolve_config(config), "result": asdict(result), **notes, **describe_environment()}
        with self._lock() as file:
            content = file.read()
            existing = _find(record, content)
            if existing is None:
                _add(file, content, json.dumps(add_digest(record), sort_keys=True).encode() + b"\n")
        return existing or record

    def check(self) -> None:
        """Refuse a ledger that could not be added to, before any trial is run."""
        with self._lock():
            pass

    @contextmanager
    def _lock(self) -> Iterator[IO[bytes]]:
        """The open file; other processes that want to write wait."""
        make_folder(self.path.parent, wanted=self.path)
        try:
            with self.path.open("ab+", buffering=0) as file:
                lock_file(file)
                file.seek(0)
                yield file
        except OSError as error:
            raise InputError(
                f"cannot write {self.path}: {error.strerror}; free some space or choose another"
            ) from error


def _record_key(record: dict[str, Any]) -> str | None:
    """The key of a recorded trial; none if it has a setting that no longer exists."""
    try:
        config = read_recorded_config(record["config"], where="a ledger")
        return trial_key(config, is_validation_only=not record["result"].get("test"))
    except InputError:
        return None


def _find(wanted: dict[str, Any], content: bytes) -> dict[str, Any] | None:
    """The record of the same trial among these lines; a line that cannot be read is not it."""
    key, config = _record_key(wanted), wanted["config"]
    for line in content.splitlines():
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            record = json.loads(line)
            other = record["config"]
            is_similar = (other["dataset"], other["model"]) == (config["dataset"], config["model"])
            if is_similar and _record_key(record) == key:
                return check_digest(record, "a ledger")
    return None


def _add(file: IO[bytes], content: bytes, line: bytes) -> None:
    """Write ``line`` after the last whole line of ``content``. If that fails, the file stays as it was."""
    end = content.rfind(b"\n") + 1
    with suppress(ValueError):  # what a crash cut short is written over
        json.loads(content[end:])
        end, line = len(content), b"\n" + line
    try:
        file.truncate(end)
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def describe_environment() -> dict[str, Any]:
    """Date, machine, versions and commit."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
        "versions": {"mnagt": __version__, "torch": torch.__version__},
        "commit": _commit(),
    }


@cache
def _commit() -> str | None:
    """The commit of the running code: ``MNAGT_COMMIT``, for copies that are no checkout, or what git says."""
    if commit := os.environ.get("MNAGT_COMMIT"):
        return commit
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
