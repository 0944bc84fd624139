"""Commands of ``mnagt`` in processes of their own that can be killed, and comparison of what they leave.

The process notes its phase (evaluation, checkpoint, cache, ...) in shared memory: it is known where a kill struck.
"""

import json
import mmap
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PHASES = ("other", "training", "evaluation", "checkpoint", "cache", "model", "ledger")
PATIENCE = 120.0
"""Seconds after which a process counts as hung."""
SMALL = ("--batch-size", "32", "--dim", "16", "--depth", "2", "--dropout", "0.3", "--device", "cpu")

FORKS = multiprocessing.get_context("forkserver")
"""Children are forked from a process that has imported everything and done nothing: they begin work at once."""


# --- in the child ---


class Phases:
    """Notes in ``mark`` which phase the process is in, and sends a byte when it enters the phase aimed at."""

    def __init__(self, mark: Path, aim: str | None, times: int, reached: Connection) -> None:
        with mark.open("r+b") as file:
            self.now = mmap.mmap(file.fileno(), 1)
        self.aim, self.left, self.reached = aim, times, reached
        self.seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}

    def watch(self, owner: Any, name: str, phase: str) -> None:
        """Whoever calls ``owner.name`` is in ``phase`` until it returns."""
        whole = getattr(owner, name)

        @wraps(whole)
        def noted(*args: Any, **named: Any) -> Any:
            before, start = self.now[0], time.perf_counter()
            self.now[0] = PHASES.index(phase)
            self._tell(phase)
            try:
                return whole(*args, **named)
            finally:
                self.now[0] = before
                self.seconds[phase].append(time.perf_counter() - start)

        setattr(owner, name, noted)

    def _tell(self, phase: str) -> None:
        self.left -= phase == self.aim
        if phase == self.aim and self.left == 0:
            self.reached.send_bytes(b"!")


def command(place: "Place", words: Sequence[str], aim: str | None, times: int, reached: Connection) -> None:
    """``mnagt WORDS`` in ``place``."""
    _enter(place)
    from mnagt.cli import main
    from mnagt.data import cache
    from mnagt.experiments.ledger import Ledger
    from mnagt.inference.model_folder import TrainedModel
    from mnagt.training import trainer
    from mnagt.training.distributed import Ranks

    phases = Phases(place.mark, aim, times, reached)
    phases.watch(trainer.Trainer, "run", "training")
    phases.watch(trainer.Trainer, "save", "checkpoint")
    phases.watch(Ranks, "outputs", "evaluation")
    phases.watch(cache, "save_packed", "cache")
    phases.watch(TrainedModel, "save", "model")
    phases.watch(Ledger, "append", "ledger")
    if aim == "other":
        phases._tell("other")
    code = main(words)
    if place.times is not None:
        place.times.write_text(json.dumps(phases.seconds))
    sys.exit(code)


def read_at(place: "Place", begin: float, name: str, digest: Path) -> None:
    """Read a data set when the time has come."""
    _enter(place)
    from mnagt.data.registry import load_dataset
    from mnagt.runs.fingerprint import dataset_fingerprint

    _wait_until(begin)
    digest.write_text(dataset_fingerprint(load_dataset(name))["digest"])


def append_at(place: "Place", begin: float, path: Path, seeds: Sequence[int]) -> None:
    """Add trials when the time has come."""
    _enter(place)
    from mnagt.experiments.ledger import Ledger
    from mnagt.runs.config import RunConfig, TrainConfig
    from mnagt.training.run import Result

    result = Result("accuracy", 1, 0.5, {"accuracy": 0.5}, 7, 0.1, "a CPU")
    _wait_until(begin)
    for seed in seeds:
        Ledger(path).append(RunConfig("MUTAG", "gin", train=TrainConfig(seed=seed)), result)


def _wait_until(begin: float) -> None:
    while time.time() < begin:
        pass


def _enter(place: "Place") -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["MNAGT_CACHE"] = str(place.cache)
    for stream in (1, 2):
        os.dup2(os.open(place.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if place.largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (place.largest, place.largest))


# --- outside ---


@dataclass(frozen=True)
class Place:
    """Where a process works: what it writes that counts is in ``folder``, what is noted of it beside that."""

    folder: Path
    notes: Path
    largest: int | None = None
    """Bytes that a file may have."""
    times: Path | None = None
    """Where the seconds of each phase are written."""

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def ledger(self) -> Path:
        return self.folder / "results" / "trials.jsonl"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def mark(self) -> Path:
        return self.notes / "mark"

    @property
    def said(self) -> Path:
        return self.notes / "said"


@contextmanager
def place_in(parent: Path, folder: Path | None = None, times: Path | None = None) -> Iterator[Place]:
    """A new place, cleared away afterwards."""
    notes = Path(tempfile.mkdtemp(dir=parent))
    place = Place(folder or notes / "work", notes, times=times)
    place.folder.mkdir(exist_ok=True)
    place.mark.write_bytes(b"\0")
    try:
        yield place
    finally:
        shutil.rmtree(notes)


def begun(target: Callable[..., None], *args: Any) -> Any:
    process = FORKS.Process(target=target, args=args)
    process.start()
    return process


def ended(process: Any) -> int:
    """How it ended."""
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"a process hung for {PATIENCE} s")
    return process.exitcode


@dataclass
class Scene:
    """A command, and how to go on with it."""

    name: str
    words: tuple[str, ...]
    is_run: bool = True
    """It trains one model into a folder; otherwise trials into a ledger."""
    seconds: float = 0.0
    """Time that it takes undisturbed."""
    phases: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each phase, each time."""
    expected: dict[str, Any] = field(default_factory=dict)
    """What it leaves."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of each file of that, in the order in which they were written."""

    def next_words(self, place: Place) -> list[str]:
        """Begin, or go on."""
        if not self.is_run:
            return [*self.words, "--ledger", str(place.ledger)]
        if (place.run / "run.json").exists():
            return ["train", "--resume", str(place.run)]
        return [*self.words, "--out", str(place.run)]

    def go(self, place: Place) -> int:
        """Run or resume it to the end, undisturbed."""
        return ended(begun(command, place, self.next_words(place), None, 0, None))

    def rehearse(self, parent: Path) -> None:
        """Run it undisturbed, twice, and note what it takes and what it leaves."""
        with place_in(parent) as place:
            self.go(place)
        with place_in(parent, times=parent / "times.json") as place:
            start = time.monotonic()
            if self.go(place):
                raise RuntimeError(f"{self.name}: failed undisturbed: {place.said.read_text()[-400:]}")
            self.seconds, self.expected = time.monotonic() - start, contents(place.folder)
            files = [path.stat() for path in place.folder.rglob("*") if path.is_file()]
            self.sizes = [file.st_size for file in sorted(files, key=lambda file: file.st_mtime_ns)]
            times = json.loads((parent / "times.json").read_text())
            self.phases = {phase: each for phase, each in times.items() if sum(each) > 1e-3}

    def killed(self, place: Place, aim: str, times: int, delay: float) -> str | None:
        """Start or resume it; kill it ``delay`` seconds after it enters ``aim`` the given number of times.

        The phase that the kill struck; none if the process was done before.
        """
        place.mark.write_bytes(b"\0")
        here, there = FORKS.Pipe(duplex=False)
        process = begun(command, place, self.next_words(place), aim, times, there)
        there.close()
        happened = wait([here, process.sentinel], PATIENCE)
        if here in happened:
            process.join(delay)
        process.kill()
        if not happened:
            raise TimeoutError(f"{self.name}: hung for {PATIENCE} s")
        code = ended(process)
        here.close()
        if code not in (0, -signal.SIGKILL):
            raise RuntimeError(f"{self.name}: ended with {code}: {place.said.read_text()[-400:]}")
        return None if code == 0 else PHASES[place.mark.read_bytes()[0]]


def contents(folder: Path) -> dict[str, Any]:
    """All that is in ``folder``, but for what cannot be the same twice: ``CHANGING``, and what is made of it."""
    from mnagt.files import check_digest, read_json
    from mnagt.inference.weights import load_tensors

    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found[name] = None
        elif path.parent.name == "packed":
            found[name] = path.read_bytes()
        elif path.suffix == ".safetensors":
            tensors, note = load_tensors(path)
            kept = {key: (str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for key, t in tensors.items()}
            found[name] = kept, _timeless(note) if path.stem == "last" else None
        elif path.suffix == ".json":
            found[name] = _timeless(read_json(path))
        elif path.suffix == ".jsonl":
            found[name] = [_timeless(check_digest(json.loads(line), path)) for line in path.read_text().splitlines()]
        else:
            found[name] = path.name
    return found


CHANGING = ("seconds", "date", "peak_memory_mb")


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _timeless(value) for key, value in content.items() if key not in CHANGING}
    return [_timeless(each) for each in content] if isinstance(content, list) else content


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Files that one has and the other has not, or that are not alike."""
    return sorted(
        f"{name} {'differs' if name in found and name in expected else 'is left over' if name in found else 'is gone'}"
        for name in found.keys() | expected.keys()
        if name not in found or name not in expected or found[name] != expected[name]
    )


def unreadable(place: Place) -> list[str]:
    """Files in sight that are not whole. What is under a scratch name is out of sight."""
    from mnagt.data.cache import load_packed
    from mnagt.errors import InputError
    from mnagt.experiments.ledger import Ledger
    from mnagt.files import read_json
    from mnagt.inference.weights import load_tensors

    readers = {".json": read_json, ".safetensors": load_tensors, ".jsonl": lambda path: list(Ledger(path).records())}
    wrong = []
    for path in place.folder.rglob("*"):
        inner = path.relative_to(place.folder).parts
        if not path.is_file() or path.name == "metrics.jsonl" or any(part.startswith(".") for part in inner):
            continue
        try:
            (load_packed if path.parent.name == "packed" else readers.get(path.suffix, Path.read_bytes))(path)
        except InputError as error:
            wrong.append(str(error))
    return wrong


@dataclass
class Tally:
    """What was done, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def check(self, what: str, problems: list[str]) -> None:
        self.wrong += [f"{what}: {problem}" for problem in problems]


# --- scenes ---


def prepare() -> None:
    """Once, before the first child: what they have in common is imported in the process that they are forked from."""
    os.environ["OMP_NUM_THREADS"] = "1"
    FORKS.set_forkserver_preload(
        ["torch._dynamo", "mnagt.cli", "mnagt.experiments.trials", "mnagt.data.readers.tu", "mnagt.inference.predict"]
    )
    ended(begun(time.sleep, 0))


def mutag(epochs: int = 4, checkpoint_seconds: int = 0) -> Scene:
    words = ("train", "MUTAG", "--head-dim", "8", "--wl-vocabulary-size", "64", "--epochs", str(epochs), *SMALL)
    kind = "" if checkpoint_seconds == 0 else ", one checkpoint"
    return Scene(f"mnagt train MUTAG{kind}", (*words, "--checkpoint-seconds", str(checkpoint_seconds)))


def trials(parent: Path, seeds: int = 5, epochs: int = 2) -> Scene:
    recipe = parent / "recipe.toml"
    recipe.write_text(
        f'dataset = "MUTAG"\nmodel = "gin"\ndevice = "cpu"\n[settings]\ndim = 16\n[train]\nepochs = {epochs}\n'
    )
    return Scene("mnagt trials", ("trials", str(recipe), "--seeds", str(seeds)), is_run=False)
