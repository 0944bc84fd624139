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
import os
import random
import re
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import common  # type: ignore[import-not-found]
from reliability.scenes import (
    PHASES,
    SMALL,
    Place,
    Scene,
    Tally,
    append_at,
    begun,
    command,
    contents,
    differences,
    ended,
    mutag,
    place_in,
    prepare,
    read_at,
    trials,
    unreadable,
)

MIN_KILLS = 50
"""Kills that a run of this script must reach."""
PAGE = 4096
"""Bytes that a small disk gives at a time."""


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


def nci1() -> Scene:
    words = ("train", str(common.data_file("NCI1.zip")), "--model", "gin", "--epochs", "1")
    return Scene("mnagt train NCI1", (*words, *SMALL, "--batch-size", "512", "--checkpoint-seconds", "0"))


def main() -> None:
    parser: argparse.ArgumentParser = common.parser(__doc__)
    parser.add_argument("--kills", type=int, default=100, help="[100]")
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
    if sum(by_phase.values()) < MIN_KILLS:
        missed.append(f"{sum(by_phase.values())} kills, and {MIN_KILLS} are asked for")
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
