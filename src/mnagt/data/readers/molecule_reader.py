"""RDKit in a process of its own: it reads molecules while other work is done, and may die of one."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from typing import Any, Self

from mnagt.data.readers import rdkit_worker
from mnagt.errors import InputError, explain_missing

_DEATHS = (EOFError, OSError, ValueError)
"""What one sees of a process that has died."""


_IDLE: list["MoleculeReader"] = []


@contextmanager
def shared_reader() -> Iterator["MoleculeReader"]:
    """A reader that is free, or a new one; it stays for the next such block, until ``close_readers`` or the end."""
    if not _IDLE:
        Finalize(None, close_readers, exitpriority=0)  # processes of a pool call nothing else at their end
        _IDLE.append(MoleculeReader())
    reader = _IDLE.pop()
    try:
        yield reader
    except BaseException:
        reader.close()  # it may hold an answer that nobody has received
        raise
    _IDLE.append(reader)


def close_readers() -> None:
    """End the processes of readers that are free."""
    while _IDLE:
        _IDLE.pop().close()


class MoleculeReader:
    """A process that reads SMILES: ``send`` some, and ``receive`` them when other work is done.

    >>> with MoleculeReader() as reader:
    ...     reader.send(["CCO", "C1CC"])
    ...     [part["sizes"].tolist() for part in reader.receive()]
    [[3, 0]]
    """

    def __init__(self) -> None:
        rdkit_version()
        self._worker, self._sent, self._function = start_worker(), [], "graph_rows"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._worker.kill()
        self._worker.communicate()

    def send(self, smiles: Sequence[str], function: str = "graph_rows") -> None:
        """Have these read by a function of ``rdkit_worker``. What was sent before has been received."""
        self._sent, self._function = list(smiles), function
        with suppress(*_DEATHS):  # which is found out when they are received
            self._request(self._sent)

    def receive(self) -> list[dict[str, Any]]:
        """Parts of what the function returns, in order. A molecule that ends the process is refused as others are."""
        try:
            return [self._receive()]
        except _DEATHS:
            self._restart()
            return self._read_surely(self._sent)

    def _read_surely(self, smiles: list[str]) -> list[dict[str, Any]]:
        """The molecules read by halves, down to those that end the process."""
        try:
            self._request(smiles)
            return [self._receive()]
        except _DEATHS:
            status = self._restart()
        if smiles == [""]:
            raise InputError(f"RDKit's process ends whatever it reads, with status {status}; install RDKit anew")
        if len(smiles) == 1:
            (refused,) = self._read_surely([""])
            return [{**refused, "reasons": [(0, f"RDKit's process ended on it, with status {status}")]}]
        half = len(smiles) // 2
        return self._read_surely(smiles[:half]) + self._read_surely(smiles[half:])

    def _request(self, smiles: list[str]) -> None:
        assert self._worker.stdin is not None
        rdkit_worker.send(self._worker.stdin, {"function": self._function, "smiles": smiles})

    def _receive(self) -> dict[str, Any]:
        assert self._worker.stdout is not None
        return rdkit_worker.receive(self._worker.stdout)

    def _restart(self) -> int:
        """A new process in place of one that has died; the status of that."""
        self.close()
        status, self._worker = self._worker.returncode, start_worker()
        return status


def rdkit_version() -> str:
    """The version of RDKit, or an error that says how to get it."""
    with explain_missing("reading molecules", "molecules"):
        from rdkit import __version__
    return __version__


def start_worker() -> subprocess.Popen[bytes]:
    """A plain process: one of ``multiprocessing`` would run the user's script once more, or fork PyTorch.

    A Ctrl-C is not for it; it ends when its pipe is closed.
    """
    command = [sys.executable, "-P", rdkit_worker.__file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
