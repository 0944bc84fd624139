"""What jemalloc costs a training: processor seconds of ``mnagt train`` with it and with glibc's allocator, in turns.

``mnagt train`` on NCI1 (in the folder ``MNAGT_DATA``) for some epochs, with one thread: as it is, which takes jemalloc
where glibc is old and the library installed, and with ``MNAGT_ALLOCATOR=system``. Seconds are those of user and system,
start and imports included; what is compared are the medians of the rounds.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]

from mnagt.cli.allocator import CHOICE, OPTIONS, find_jemalloc

MOST_COST = 0.03
"""Share of the processor time with glibc that jemalloc may take in addition."""
EPOCHS = {"gin": 30, "mnagt": 6}
"""Epochs of a model: the start, which jemalloc makes longer, then counts for little."""
VARIANTS = {"glibc": {CHOICE: "system"}, "jemalloc": {}}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=EPOCHS, default=list(EPOCHS), help="[all]")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    options = parser.parse_args()
    if find_jemalloc() is None:
        sys.exit("jemalloc is not installed: apt install libjemalloc2")
    models, load = {}, os.getloadavg()[0]
    for model in options.models:
        seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
        mib = dict.fromkeys(VARIANTS, 0.0)
        for _ in range(options.rounds):
            for name, variables in VARIANTS.items():
                spent, most = run_training(model, EPOCHS[model], variables)
                seconds[name].append(spent)
                mib[name] = max(mib[name], most)
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        cost = medians["jemalloc"] / medians["glibc"] - 1
        models[model] = {"processor_seconds": seconds, "most_mib": mib, "cost": cost}
        for name in VARIANTS:
            print(f"{model}, {name}: {', '.join(f'{each:.2f}' for each in seconds[name])} s, {mib[name]:.0f} MiB")
        print(f"{model}: {100 * cost:+.1f} %", flush=True)
    settings = {"epochs": EPOCHS, "options": OPTIONS, "load before": load}
    common.write(options.out, settings | {"models": models})
    dear = {name: each["cost"] for name, each in models.items() if each["cost"] > MOST_COST}
    common.exit_if_missed([f"{name} takes {100 * cost:.1f} % more" for name, cost in dear.items()])


def run_training(model: str, epochs: int, variables: dict[str, str]) -> tuple[float, float]:
    """Processor seconds and the most MiB of a training."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "mnagt", "train", str(common.data_file("NCI1.zip")), "--model", model]
        command += ["--device", "cpu", "--epochs", str(epochs), "--out", str(Path(scratch) / "run")]
        environment = {name: value for name, value in os.environ.items() if name not in (CHOICE, "LD_PRELOAD")}
        environment |= {"OMP_NUM_THREADS": "1", "MNAGT_CACHE": str(Path(scratch) / "cache"), **variables}
        with (Path(scratch) / "said").open("wb") as said:
            actions = [(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)]
            process = os.posix_spawn(sys.executable, command, environment, file_actions=actions)
            _, status, usage = os.wait4(process, 0)
        if status:
            sys.exit(f"{' '.join(command)} failed: {(Path(scratch) / 'said').read_text()[-500:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
