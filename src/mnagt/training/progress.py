"""What is shown while a model trains (a live line on a terminal, plain lines elsewhere), and what a run logs."""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from mnagt.errors import explain_missing
from mnagt.files import write_error, write_text

METRICS = "metrics.jsonl"
NAMES = {
    "rocauc": "ROC-AUC",
    "ap": "average precision",
    "f1": "F1",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
    "mcc": "MCC",
}
"""Metrics as papers call them, where that is another word."""


class Reporter:
    """Is called with the progress of a training; this one shows nothing."""

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        """Training of ``epochs`` epochs of ``steps`` steps starts, or goes on after ``history``."""

    def step(self, step: int, graphs: int) -> None:
        """Step ``step`` of the epoch is done; it took ``graphs`` graphs."""

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        """An epoch is done."""

    def end(self) -> None:
        """Training is over."""


class Lines(Reporter):
    """A line every few seconds, and ever fewer: some twenty for a training of some minutes, then one a minute."""

    def __init__(self, stream: TextIO | None = None, every: float = 2.0) -> None:
        self.stream, self.every = stream or sys.stderr, every

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        self.epochs, self.first = epochs, len(history)
        self.best: float | None = None
        self.best_words = ""
        self.started = self.shown = time.monotonic()
        if history:
            print(f"going on after epoch {len(history)} of {epochs}", file=self.stream)

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        now, done, words = time.monotonic(), int(record["epoch"]), self.summary(record, best)
        pause = min(60.0, max(self.every, (now - self.started) / 5)) if self.every else 0.0
        if now - self.shown >= pause or done >= self.epochs:
            self.shown = now
            print(f"epoch {done}/{self.epochs}, {words}", file=self.stream, flush=True)

    def summary(self, record: Mapping[str, float], best: float | None) -> str:
        """Validation score, the score of the epoch that is kept so far, and time left.

        ``best`` is a mean over several epochs; when it changes, this epoch is kept.
        """
        elapsed, done = time.monotonic() - self.started, int(record["epoch"])
        left = elapsed / max(1, done - self.first) * (self.epochs - done)
        name, score = next((name, value) for name, value in record.items() if "valid" in name)  # the one that chooses
        metric = name.removeprefix("valid_")
        if best != self.best:
            is_resumed = self.first > 0 and self.best is None  # which epoch it was is not known here
            self.best, self.best_words = best, "" if is_resumed else f", epoch {done} is kept ({score:.3f})"
        metric = NAMES.get(metric, metric.replace("_", " "))
        parts = f"validation {metric} {score:.3f}{self.best_words}"
        return f"{parts}, {clock(left)} left" if done < self.epochs else parts


class Live(Lines):
    """A bar that moves, on a terminal."""

    bar: Any = None

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        super().begin(epochs, steps, history)
        words = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        done = TextColumn("epoch"), MofNCompleteColumn(table_column=Column(no_wrap=True))
        self.bar = Progress(*done, BarColumn(8), words, console=Console(stderr=True), transient=True, expand=True)
        self.steps, self.done = steps, len(history)
        self.task = self.bar.add_task("", total=epochs, completed=self.done)
        self.bar.start()

    def step(self, step: int, graphs: int) -> None:
        super().step(step, graphs)
        if time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            self.bar.update(self.task, completed=self.done + step / self.steps)

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        self.done = int(record["epoch"])
        self.bar.update(self.task, completed=self.done, description=self.summary(record, best))

    def end(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class RunLogs(ExitStack, Reporter):
    """Calls ``shown``, and logs each epoch in ``folder``: a line of JSON and, if wanted, TensorBoard's scalars."""

    def __init__(self, folder: Path | None, shown: Reporter, tensorboard: bool) -> None:
        super().__init__()
        self.folder, self.shown, self._file, self._board = folder, shown, None, None
        if tensorboard and folder is not None:
            with explain_missing("a log for TensorBoard", "tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self._board = SummaryWriter(str(folder / "tensorboard"))
            self.callback(self._board.close)
        self.callback(shown.end)

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        if self.folder is not None:
            write_text(self.folder / METRICS, "".join(json.dumps(record) + "\n" for record in history))
            self._file = self.enter_context((self.folder / METRICS).open("ab", buffering=0))
        self.shown.begin(epochs, steps, history)

    def step(self, step: int, graphs: int) -> None:
        self.shown.step(step, graphs)

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        if self.folder is not None and self._file is not None:
            line = json.dumps(dict(record)).encode() + b"\n"
            try:
                while line:
                    line = line[self._file.write(line) :]
            except OSError as error:
                raise write_error(self.folder / METRICS, error) from error
        if self._board is not None:
            for name, value in record.items():
                self._board.add_scalar(name, value, int(record["epoch"]))
        self.shown.epoch(record, best)


def clock(seconds: float) -> str:
    """Seconds as a person says them: 59 s, 3 min 00 s, 1 h 30 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def pick_reporter() -> Reporter:
    """A live line on a terminal, plain lines elsewhere."""
    return Live() if sys.stderr.isatty() else Lines()
