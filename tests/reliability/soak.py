"""An hour of training and of serving: memory stays flat, every good request is answered.

Two processes side by side for ``--minutes``: ``mnagt train --model mnagt`` on NCI1 (in the folder ``MNAGT_DATA``) with
a checkpoint every few seconds, which is then asked to stop and has to save and say so; and ``mnagt serve`` under steady
load, every tenth request malformed. Resident memory of both is read every few seconds. What grows is the line fitted
through the readings after the first third (by then allocators have settled), over the rest of the time; it may be
``GROWTH`` of where they stood at most.

glibc before 2.38 seldom gives an aligned block again that was freed, and torch asks for no others. ``mnagt train`` then
starts itself again with jemalloc; ``MNAGT_ALLOCATOR=system`` keeps glibc's. The figures name the allocator that each
process had, and its options.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]
import numpy as np
from serving import (  # type: ignore[import-not-found]
    DRUGS,
    generate_malformed,
    resident,
    save_untrained,
    service,
)

SETTLED = 1 / 3
"""Share of the time after which memory has to be flat."""
GROWTH = 0.1
"""Share that memory may grow by after that."""
READ_EVERY = 5.0
"""Seconds between two readings of memory."""


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long [60]")
    parser.add_argument("--per-second", type=float, default=10, help="requests [10]")
    options = parser.parse_args()
    seconds = 60 * options.minutes
    with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "said").open("w+b") as said:
        folder, run = Path(scratch) / "model", Path(scratch) / "run"
        save_untrained(folder)
        with service(folder) as (address, server):
            trainer = _train(run, said)
            processes = {"training": trainer, "serving": server}
            readings, answers = asyncio.run(_watch(processes, address, seconds, options.per_second))
            allocators = {name: _read_allocator(process) for name, process in processes.items()}
        trainer.send_signal(signal.SIGTERM)
        trainer.wait()
        last = (Path(scratch) / "said").read_text(errors="replace").splitlines()[-1:]
        epochs = len((run / "metrics.jsonl").read_text().splitlines())
        ended_well = trainer.returncode == 130 and (run / "last.safetensors").exists()
    memory = {name: growth(np.array(each)) for name, each in readings.items()}
    wrong = sum(count for answer, count in answers.items() if answer.endswith("wrong"))
    for name, each in memory.items():
        print(
            f"{name}: {each['settled_mib']:.0f} MiB, {each['growth_mib']:+.1f} MiB since, most {each['most_mib']:.0f}"
        )
    print(f"training: {epochs} epochs, " + ("stopped and saved when asked" if ended_well else f"ended badly: {last}"))
    print(f"serving: {dict(answers)}")
    print("; ".join(f"{name}: {each['name']} {each['options'] or ''}" for name, each in allocators.items()))
    figures = {"minutes": options.minutes, "epochs": epochs, "answers": dict(answers), "memory": memory}
    common.write(options.out, figures | {"allocators": allocators})
    grown = {n: each["growth_mib"] for n, each in memory.items() if each["growth_mib"] > GROWTH * each["settled_mib"]}
    common.exit_if_missed(
        [f"{name} grew by {mib:.0f} MiB" for name, mib in grown.items()]
        + [f"{wrong} wrong answers"] * bool(wrong)
        + ["training did not stop as asked"] * (not ended_well)
    )


def growth(readings: np.ndarray) -> dict[str, float]:
    """From rows of (seconds, MiB): what the fitted line rises by after things have settled."""
    late = readings[readings[:, 0] >= SETTLED * readings[-1, 0]]
    slope, start = np.polynomial.polynomial.polyfit(late[:, 0] - late[0, 0], late[:, 1], 1)[::-1]
    rise = slope * (late[-1, 0] - late[0, 0])
    return {"settled_mib": float(start), "growth_mib": float(rise), "most_mib": float(readings[:, 1].max())}


def _read_allocator(process: "subprocess.Popen[bytes]") -> dict[str, str | None]:
    folder = Path("/proc") / str(process.pid)
    variables = dict(each.split("=", 1) for each in (folder / "environ").read_text().split("\0") if "=" in each)
    name = "jemalloc" if "jemalloc" in (folder / "maps").read_text() else "glibc"
    return {"name": name, "options": variables.get("MALLOC_CONF")}


def _train(run: Path, said: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Training that would go on for days."""
    command = [sys.executable, "-m", "mnagt", "train", str(common.data_file("NCI1.zip")), "--model", "mnagt"]
    command += ["--device", "cpu", "--epochs", "1000000", "--checkpoint-seconds", "5", "--out", str(run)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=one_thread, stdout=subprocess.DEVNULL, stderr=said)


async def _watch(
    processes: dict[str, "subprocess.Popen[bytes]"], address: str, seconds: float, per_second: float
) -> tuple[dict[str, list[tuple[float, float]]], Counter[str]]:
    """Memory of the processes over time, and what the service answered."""
    import httpx

    readings: dict[str, list[tuple[float, float]]] = {name: [] for name in processes}
    answers: Counter[str] = Counter()
    good, bad = itertools.cycle(DRUGS), generate_malformed()
    start = time.monotonic()
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:

        async def ask(number: int) -> None:
            try:
                await send(number)
            except httpx.HTTPError as error:
                answers[f"{type(error).__name__} wrong"] += 1

        async def send(number: int) -> None:
            if number % 10:
                answer = await client.post("/predict", json={"smiles": [next(good)]})
                right = answer.status_code == 200
            else:
                request = next(bad)
                answer = await client.post(request.path, content=request.body, headers={"Content-Type": request.kind})
                right = answer.status_code == 200 if request.is_good else 400 <= answer.status_code < 500
            answers[f"{answer.status_code}{'' if right else ' wrong'}"] += 1

        async def read() -> None:
            while (now := time.monotonic() - start) < seconds:
                for name, process in processes.items():
                    if process.poll() is not None:
                        sys.exit(f"{name} ended by itself after {now:.0f} s, with status {process.returncode}")
                    readings[name].append((now, resident(process)))
                await asyncio.sleep(READ_EVERY)

        reading = asyncio.create_task(read())
        asked: set[asyncio.Task[None]] = set()
        for number in range(int(seconds * per_second)):
            await asyncio.sleep(start + number / per_second - time.monotonic())
            task = asyncio.create_task(ask(number))
            asked.add(task)
            task.add_done_callback(asked.discard)
        await asyncio.gather(reading, *asked)
    return readings, answers


if __name__ == "__main__":
    main()
