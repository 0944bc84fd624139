"""What a run leaves behind to be plotted: JSON lines, and TensorBoard if asked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnagt.errors import InputError
from mnagt.files import write_error, write_text
from mnagt.training.progress import Reporter

METRICS = "metrics.jsonl"


class RunLogs(Reporter):
    """Passes on what it is told to ``shown``, and writes a line an epoch to the run's folder."""

    def __init__(self, folder: Path | None, shown: Reporter, tensorboard: bool) -> None:
        self.folder, self.shown, self.tensorboard = folder, shown, tensorboard
        self._file: Any = None
        self._board: Any = None

    def __enter__(self) -> "RunLogs":
        if self.tensorboard and self.folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise InputError("TensorBoard is not installed: pip install 'mnagt[tensorboard]'") from None
            self._board = SummaryWriter(str(self.folder / "tensorboard"))
        return self

    def __exit__(self, *error: object) -> None:
        self.shown.end()
        for log in (self._file, self._board):
            if log is not None:
                log.close()

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        if self.folder is not None:
            path = self.folder / METRICS
            write_text(path, "".join(json.dumps(record) + "\n" for record in history))
            self._file = path.open("ab", buffering=0)
        self.shown.begin(epochs, steps, history)

    def step(self, step: int, graphs: int) -> None:
        self.shown.step(step, graphs)

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        if self._file is not None:
            self._write(json.dumps(dict(record)).encode() + b"\n")
        if self._board is not None:
            for name, value in record.items():
                self._board.add_scalar(name, value, int(record["epoch"]))
        self.shown.epoch(record, best)

    def _write(self, line: bytes) -> None:
        assert self.folder is not None
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise write_error(self.folder / METRICS, error) from error
