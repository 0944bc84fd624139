"""What is shown while a model trains: a live line on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO


class Reporter:
    """Says nothing. The other reporters are told the same things."""

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        """Training of ``epochs`` epochs of ``steps`` steps starts, or goes on after ``history``."""

    def step(self, step: int, graphs: int) -> None:
        """Step ``step`` of the epoch is done; it took ``graphs`` graphs."""

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        """An epoch is done."""

    def end(self) -> None:
        """Training is over."""


class Lines(Reporter):
    """A line an epoch, or every few seconds when epochs are short."""

    def __init__(self, stream: TextIO | None = None, every: float = 2.0) -> None:
        self.stream, self.every = stream or sys.stderr, every

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        self.epochs, self.first = epochs, len(history)
        self.started = self.spoken = time.monotonic()
        self.graphs = 0
        if history:
            print(f"going on after epoch {len(history)} of {epochs}", file=self.stream)

    def step(self, step: int, graphs: int) -> None:
        self.graphs += graphs

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        now, done = time.monotonic(), int(record["epoch"])
        if now - self.spoken < self.every and done < self.epochs:
            return
        self.spoken = now
        print(f"epoch {done}/{self.epochs}  {self.summary(record, best)}", file=self.stream, flush=True)

    def summary(self, record: Mapping[str, float], best: float | None) -> str:
        """Loss, scores, speed and time left."""
        elapsed = time.monotonic() - self.started
        done = int(record["epoch"])
        left = elapsed / max(1, done - self.first) * (self.epochs - done)
        scores = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in record.items() if "valid" in name)
        top = "" if best is None else f" (best mean {best:.4f})"
        return f"loss {record['loss']:.4f}  {scores}{top}  {clock(left)} left  {self.graphs / elapsed:,.0f} graphs/s"


class Live(Lines):
    """A bar that moves, on a terminal."""

    bar: Any = None

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        super().begin(epochs, steps, history)
        words = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        columns = MofNCompleteColumn(table_column=Column(no_wrap=True)), BarColumn(12), words
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
        self.task, self.steps, self.done = (
            self.bar.add_task("", total=epochs, completed=len(history)),
            steps,
            len(history),
        )
        self.bar.start()

    def step(self, step: int, graphs: int) -> None:
        super().step(step, graphs)
        if time.monotonic() - self.spoken > 0.1:
            self.spoken = time.monotonic()
            self.bar.update(self.task, completed=self.done + step / self.steps)

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        self.done = int(record["epoch"])
        self.bar.update(self.task, completed=self.done, description=self.summary(record, best))

    def end(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def clock(seconds: float) -> str:
    """Seconds as a person says them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def reporter() -> Reporter:
    """The one that fits where the program runs."""
    return Live() if sys.stderr.isatty() else Lines()
