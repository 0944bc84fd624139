"""One JSON line for each finished trial: what was run, where, and what it gave."""

import fcntl
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """A file of trials, each there once. Lines are added whole, under a lock; one cut short is passed over."""

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
            except (ValueError, RecursionError):
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
        keys = ((_key_of(record), record) for record in self.records())
        return {key: record for key, record in keys if key is not None}

    def append(self, config: RunConfig, result: Result, **beside: Any) -> dict[str, Any]:
        """Add a finished trial, with whatever else is known of it; the record that now stands.

        A trial is there once: if another process added it meanwhile, that record stands, and nothing is added.
        """
        record = {"config": resolved(config), "result": asdict(result), **beside, **circumstances()}
        with self._alone() as file:
            content = file.read()
            there = _find(config, content)
            if there is None:
                _add(file, content, json.dumps(record, sort_keys=True).encode() + b"\n")
        return there or record

    def check(self) -> None:
        """Refuse a ledger that could not be added to, before any trial is run."""
        with self._alone():
            pass

    @contextmanager
    def _alone(self) -> Iterator[IO[bytes]]:
        """The file; whoever else wants to add to it waits."""
        make_folder(self.path.parent, wanted=self.path)
        try:
            with self.path.open("ab+", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                yield file
        except OSError as error:
            raise InputError(
                f"cannot write {self.path}: {error.strerror}; free some space or choose another"
            ) from error


def _key_of(record: dict[str, Any]) -> str | None:
    """The key of a trial on record, worked out anew; none if it has a setting that is gone."""
    try:
        return trial_key(from_dict(RunConfig, record["config"], where="a ledger"))
    except InputError:
        return None


def _find(config: RunConfig, content: bytes) -> dict[str, Any] | None:
    """The record of the trial among these lines; one that cannot be read is not it."""
    key = trial_key(config)
    for line in content.splitlines():
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            record = json.loads(line)
            there = record["config"]
            is_like = (there["dataset"], there["model"]) == (config.dataset, config.model)
            if is_like and _key_of(record) == key:
                return record
    return None


def _add(file: IO[bytes], content: bytes, line: bytes) -> None:
    """Write ``line`` after the last whole line of the file's ``content``, or leave the file as it was."""
    end = _end_of_whole_lines(content)
    if end and content[end - 1 : end] != b"\n":
        line = b"\n" + line
    try:
        file.truncate(end)
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def _end_of_whole_lines(content: bytes) -> int:
    """Where the last whole line ends; what a crash left after it is no trial."""
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
