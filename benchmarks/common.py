"""What the benchmarks share: data, interleaved timing, a description of the machine, and the file of figures."""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mnagt.version import __version__

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
"""What seconds are counted by; the processor's where other work runs on the machine."""


def parser(description: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--out", type=Path, help="write the figures to this JSON file")
    return options


def data_file(name: str) -> Path:
    """``name`` in the folder that ``MNAGT_DATA`` names."""
    path = Path(os.environ.get("MNAGT_DATA", ".")) / name
    if not path.exists():
        sys.exit(f"{path} is not there; set MNAGT_DATA to the folder that holds it")
    return path


def take_turns(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each variant in each round. They take turns, so that what else the machine does hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for at in range(-warm_up, rounds):
        turn = at % len(names)
        for name in names[turn:] + names[:turn]:
            start = clock()
            result = variants[name]()
            took = clock() - start
            del result
            if at >= 0:
                seconds[name].append(took)
    return seconds


def medians(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each variant, which take turns."""
    return {name: statistics.median(taken) for name, taken in take_turns(variants, rounds, warm_up, clock).items()}


def machine() -> dict[str, Any]:
    from mnagt.experiments.ledger import describe_environment  # some benchmarks time imports

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "platform": platform.platform(),
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "torch_geometric", "numpy")},
        "mnagt": __version__,
        "commit": describe_environment()["commit"],
    }


def write(out: Path | None, figures: Mapping[str, Any]) -> None:
    """The figures, and the machine they are of, as JSON."""
    if out:
        content = {**figures, "machine": machine(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def exit_if_missed(missed: list[str]) -> None:
    """Leaves with status 1, naming the targets that were missed, if any were."""
    if missed:
        sys.exit("missed: " + "; ".join(missed))
