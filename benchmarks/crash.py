"""Kill -9, full disks and races: is what goes on afterwards what an undisturbed run gives?

Kills: ``mnagt train`` (MUTAG, and NCI1 where ``MNAGT_DATA`` has it) and ``mnagt trials`` run in processes of their own,
a checkpoint every step, and are killed: at a moment drawn from the time that an undisturbed run takes, or within a
phase (evaluation, checkpoint, cache, model, ledger) after a delay drawn from the time that the phase takes. The process
notes its phase in shared memory, so that it is known where a kill struck. After each kill every file is read; then the
run is resumed, and killed again, and in the end let through: weights bit for bit, figures, ledger and the list of files
are those of the undisturbed run. Full disks: the same runs with less room than they need, by a small tmpfs (where
mounting is allowed) and by a limit on the size of files; each says what it could not write, and with room is resumed.
Races: processes that read the same data into one cache, add the same trials to one ledger, run the same trials; in some
of them one process is killed.
"""

import argparse
import json
import mmap
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
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

import common

PHASES = ("other", "training", "evaluation", "checkpoint", "cache", "model", "ledger")
ENOUGH, PATIENCE = 50, 120.0
"""Kills asked for, and seconds after which a process counts as hung."""
PAGE = 4096
"""Bytes that a small disk gives at a time."""
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
    from mnagt.training import fit, run
    from mnagt.training.model_folder import Trained

    phases = Phases(place.mark, aim, times, reached)
    phases.watch(fit.Trainer, "run", "training")
    phases.watch(fit.Trainer, "save", "checkpoint")
    for module in (fit, run):
        phases.watch(module, "outputs", "evaluation")
    phases.watch(cache, "save_packed", "cache")
    phases.watch(Trained, "save", "model")
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
    from mnagt.data import load_dataset
    from mnagt.experiments.trials import fingerprint

    _wait_until(begin)
    digest.write_text(fingerprint(load_dataset(name))["digest"])


def append_at(place: "Place", begin: float, path: Path, seeds: Sequence[int]) -> None:
    """Add trials when the time has come."""
    _enter(place)
    from mnagt.experiments.ledger import Ledger
    from mnagt.training.config import RunConfig, TrainConfig
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
    """All that is in ``folder``, but for what cannot be the same twice: dates, seconds and what is made of them."""
    from mnagt.training.checkpoint import load_tensors

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
            found[name] = _timeless(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = path.name
    return found


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _timeless(value) for key, value in content.items() if key not in ("seconds", "date")}
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
    from mnagt.training.checkpoint import load_tensors

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


# --- kills ---


def kill_many(scenes: Sequence[Scene], kills: int, each: int, parent: Path, drawn: random.Random) -> Tally:
    """At least ``kills`` kills, no more than ``each`` of one run; counted by the phase that they struck."""
    from mnagt.files import SCRATCH

    tally, turn = Tally(), 0
    while sum(_by_phase(tally).values()) < kills:
        scene = scenes[turn % len(scenes)]
        with place_in(parent) as place:
            for _ in range(each):
                aim, times, delay = _aim(scene, tally, each, drawn)
                struck = scene.killed(place, aim, times, delay)
                if struck is None:
                    tally.counts["end before the kill"] += 1
                    break
                tally.counts[f"kill in {struck}"] += 1
                tally.counts[f"kill of {scene.name}"] += 1
                tally.counts["scratch folder left by a kill"] += len(list(place.folder.rglob(f".*{SCRATCH}")))
                tally.check(f"{scene.name}, killed in {struck}", unreadable(place))
            if code := scene.go(place):
                tally.check(scene.name, [f"could not go on ({code}): {place.said.read_text()[-300:]}"])
            else:
                tally.check(scene.name, differences(contents(place.folder), scene.expected))
        tally.counts["run compared"] += 1
        turn += 1
        print(f"{scene.name}: {sum(_by_phase(tally).values())} kills so far", file=sys.stderr, flush=True)
    return tally


def _by_phase(tally: Tally) -> dict[str, int]:
    return {phase: tally.counts[f"kill in {phase}"] for phase in PHASES}


def _aim(scene: Scene, tally: Tally, each: int, drawn: random.Random) -> tuple[str, int, float]:
    """Any moment, or the phase of this scene that was struck least so far; how often entered; and a delay."""
    if drawn.random() < 0.3:
        return "other", 1, drawn.uniform(0, scene.seconds)
    phase = min(scene.phases, key=lambda phase: (tally.counts[f"kill in {phase}"], drawn.random()))
    seconds = scene.phases[phase]
    return phase, drawn.randint(1, max(1, len(seconds) // each)), drawn.uniform(0, 0.8 * statistics.median(seconds))


# --- full disks ---


@contextmanager
def small_disk(parent: Path, size: int) -> Iterator[Path | None]:
    """A disk of ``size`` bytes; none where mounting is not allowed."""
    disk = Path(tempfile.mkdtemp(dir=parent))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill_disks(scene: Scene, times: int, parent: Path, drawn: random.Random) -> Tally:
    """The scene on a disk with less room than it needs, ``times`` times; then with room."""
    tally = Tally()
    for at in range(times):
        with small_disk(parent, 32 << 20) as disk, place_in(parent, disk) as place:
            if disk is None:
                tally.counts["no disk: mounting is not allowed here"] += 1
                break
            filler = disk / "filler"
            *before, last = (-(-size // PAGE) * PAGE for size in scene.sizes[: at % len(scene.sizes) + 1])
            room = sum(before) + int(drawn.random() * last)
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - room)
            _stop_and_go_on(scene, place, tally, r"No space left on device", "full disk", filler.unlink)
    return tally


def limit_files(scene: Scene, times: int, parent: Path, drawn: random.Random) -> Tally:
    """The same with files that may not grow as large as they would."""
    tally = Tally()
    for at in range(times):
        with place_in(parent) as free:
            largest = max(1000, int(drawn.random() * scene.sizes[at % len(scene.sizes)]))  # what is said must fit
            place = Place(free.folder, free.notes, largest)
            _stop_and_go_on(scene, place, tally, r"File too large", "limit on files", lambda: None, again=free)
    return tally


def _stop_and_go_on(
    scene: Scene, place: Place, tally: Tally, why: str, what: str, free: Callable[[], None], again: Place | None = None
) -> None:
    code, said = scene.go(place), place.said.read_text()
    if code not in (0, 2):
        tally.check(f"{scene.name}, {what}", [f"ended with {code}: {said[-300:]}"])
    if code == 2:
        told = re.search(rf"mnagt: error: cannot write (\S+): .*{why}.*; ", said)
        tally.check(f"{scene.name}, {what}", [] if told else [f"not clear: {said[-300:]}"])
        if told:
            tally.counts[f"{what}: stopped at {Path(told[1]).name}"] += 1
    elif why in said:
        tally.counts[f"{what}: went on without a cache"] += 1
    tally.check(f"{scene.name}, {what}", unreadable(place))
    free()
    place = again or place
    if code := scene.go(place):
        tally.check(f"{scene.name}, {what}", [f"could not go on ({code}): {place.said.read_text()[-300:]}"])
    wrong = differences(contents(place.folder), scene.expected)
    tally.check(f"{scene.name}, {what}", [each for each in wrong if not re.match("cache/packed/.* is gone", each)])


# --- races ---


def race_for_a_cache(name: str, racers: int, parent: Path, kill: float | None = None) -> Tally:
    """Processes that read ``name`` at once; one of them is killed after ``kill`` seconds, if that is given."""
    tally = Tally(Counter({"race for a cache": 1}))
    with place_in(parent) as place:
        digests = [place.notes / str(i) for i in range(racers)]
        _race(tally, [(read_at, name, digest) for digest in digests], place, kill)
        if len({path.read_text() for path in digests if path.exists()}) != 1:
            tally.check(name, ["the racers read different things"])
        ended(begun(read_at, place, 0.0, name, digests[0]))
        left = [str(path.relative_to(place.cache)) for path in place.cache.rglob("*") if path.parent != place.cache]
        if len(left) != 1 or not left[0].endswith(".safetensors"):
            tally.check(f"{name}: {racers} racers", [f"the cache holds {left}"])
    return tally


def race_for_a_ledger(trials: int, racers: int, parent: Path, drawn: random.Random, kill: float | None = None) -> Tally:
    """Processes that add the same trials at once, each in an order of its own."""
    tally = Tally(Counter({"race for a ledger": 1}))
    with place_in(parent) as place:
        orders = [drawn.sample(range(trials), trials) for _ in range(racers)]
        _race(tally, [(append_at, place.ledger, order) for order in orders], place, kill)
        seeds = sorted(json.loads(line)["config"]["train"]["seed"] for line in place.ledger.read_text().splitlines())
        if seeds != list(range(trials)):
            tally.check("ledger", [f"{racers} racers left {seeds} of {trials} trials"])
    return tally


def race_with_trials(scene: Scene, racers: int, parent: Path) -> Tally:
    """Processes that run the same trials on one ledger at once."""
    tally = Tally(Counter({"race with trials": 1}))
    with place_in(parent) as place:
        processes = [begun(command, place, scene.next_words(place), None, 0, None) for _ in range(racers)]
        codes = [ended(process) for process in processes]
        if any(codes):
            tally.check(scene.name, [f"racers ended with {codes}: {place.said.read_text()[-300:]}"])
        found, expected = (_sorted_by_seed(each) for each in (contents(place.folder), scene.expected))
        tally.check(f"{scene.name}, {racers} racers", differences(found, expected))
    return tally


def _sorted_by_seed(found: dict[str, Any]) -> dict[str, Any]:
    """Who comes first is open; what is there is not."""
    name = "results/trials.jsonl"
    return found | {name: sorted(found[name], key=lambda record: record["config"]["train"]["seed"])}


def _race(tally: Tally, work: list[tuple], place: Place, kill: float | None) -> None:
    begin = time.time() + 0.3
    processes = [begun(target, place, begin, *args) for target, *args in work]
    victim = None if kill is None else processes[0]
    if victim is not None:
        assert kill is not None
        time.sleep(max(0.0, begin + kill - time.time()))
        victim.kill()
    for process in processes:
        code = ended(process)
        if process is victim:
            tally.counts["racer killed"] += code == -signal.SIGKILL
        elif code:
            tally.check("race", [f"a racer ended with {code}: {place.said.read_text()[-300:]}"])


# --- all of it ---


def prepare() -> None:
    """Once, before the first child: what they have in common is imported in the process that they are forked from."""
    os.environ["OMP_NUM_THREADS"] = "1"
    FORKS.set_forkserver_preload(
        ["torch._dynamo", "mnagt.cli", "mnagt.experiments.trials", "mnagt.data.tu", "mnagt.training.answers"]
    )
    ended(begun(time.sleep, 0))


def mutag(epochs: int = 4, checkpoint_seconds: int = 0) -> Scene:
    words = ("train", "MUTAG", "--head-dim", "8", "--subtree-rows", "64", "--epochs", str(epochs), *SMALL)
    kind = "" if checkpoint_seconds == 0 else ", one checkpoint"
    return Scene(f"mnagt train MUTAG{kind}", (*words, "--checkpoint-seconds", str(checkpoint_seconds)))


def trials(parent: Path, seeds: int = 5, epochs: int = 2) -> Scene:
    recipe = parent / "recipe.toml"
    recipe.write_text(
        f'dataset = "MUTAG"\nmodel = "gin"\ndevice = "cpu"\n[settings]\ndim = 16\n[train]\nepochs = {epochs}\n'
    )
    return Scene("mnagt trials", ("trials", str(recipe), "--seeds", str(seeds)), is_run=False)


def nci1() -> Scene:
    words = ("train", str(common.data_file("NCI1.zip")), "--model", "gin", "--epochs", "1")
    return Scene("mnagt train NCI1", (*words, *SMALL, "--batch-size", "512", "--checkpoint-seconds", "0"))


def main() -> None:
    parser: argparse.ArgumentParser = common.parser(__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--disks", type=int, default=12, help="full disks, and limits on files, of each scene")
    parser.add_argument("--races", type=int, default=12, help="races of each kind")
    parser.add_argument("--racers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    drawn, has_nci1 = random.Random(options.seed), "MNAGT_DATA" in os.environ
    prepare()
    with tempfile.TemporaryDirectory() as made:
        parent = Path(made)
        scenes = [mutag(), trials(parent), *([nci1()] if has_nci1 else [])]
        for scene in scenes:
            scene.rehearse(parent)
            print(f"{scene.name}: {scene.seconds:.1f} s undisturbed", flush=True)
        figures: dict[str, Any] = {"scenes": {scene.name: {"seconds": round(scene.seconds, 2)} for scene in scenes}}
        killed = kill_many(scenes, options.kills, 6, parent, drawn)
        told = {"kills": killed, "full disks": Tally(), "races": Tally()}
        (once := mutag(epochs=2, checkpoint_seconds=1000)).rehearse(parent)
        for scene in (once, *scenes[:2]):
            for stop in (fill_disks, limit_files):
                _add(told["full disks"], stop(scene, options.disks, parent, drawn))
        for at in range(options.races):
            kill = drawn.uniform(0, 0.3) if at % 3 == 2 else None
            name = str(common.data_file("NCI1.zip")) if has_nci1 and at % 2 else "MUTAG"
            _add(told["races"], race_for_a_cache(name, options.racers, parent, kill))
            _add(told["races"], race_for_a_ledger(11, options.racers, parent, drawn, kill))
            _add(told["races"], race_with_trials(scenes[1], options.racers, parent))
    missed = [problem for tally in told.values() for problem in tally.wrong]
    by_phase = _by_phase(killed)
    if sum(by_phase.values()) < ENOUGH:
        missed.append(f"{sum(by_phase.values())} kills, and {ENOUGH} are asked for")
    missed += [f"no kill in {phase}" for phase, count in by_phase.items() if count == 0]
    for name, tally in told.items():
        figures[name] = {"wrong": tally.wrong, **dict(sorted(tally.counts.items()))}
        print(f"{name}: {json.dumps(figures[name], indent=2)}")
    common.write(options.out, figures | {"kills in all": sum(by_phase.values())})
    common.exit_if_missed(missed)


def _add(whole: Tally, part: Tally) -> None:
    whole.counts += part.counts
    whole.wrong += part.wrong


if __name__ == "__main__":
    main()
