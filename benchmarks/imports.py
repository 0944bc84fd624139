"""CPU seconds to import torch, the package, the whole library, to show help, and to predict twelve molecules.

Each is the median of fresh processes, with their children, less nothing: the interpreter's own start counts for all
alike. The model is what ``mnagt train`` makes of some of the amines in ``examples/``, after one epoch.
"""

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import common

from mnagt.cli import COMMANDS

IMPORTS = {
    "import torch": ["-c", "import torch"],
    "import mnagt": ["-c", "import mnagt"],
    "from mnagt import train": ["-c", "from mnagt import train"],
}
HELP = [["-m", "mnagt", "--help"], *(["-m", "mnagt", name, "--help"] for name in COMMANDS)]
SLOWEST_HELP = "mnagt COMMAND --help, the slowest"
PREDICT = "mnagt predict, 12 molecules"
AMINES = Path(__file__).parents[1] / "examples" / "amines.csv"
OVER_TORCH = 2.0
"""Importing the whole library over importing torch, less than."""
HELP_SECONDS = 0.5
"""Less than, for every command."""
PREDICT_SECONDS = 2.5
"""Less than."""


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def prepare_prediction(folder: Path) -> list[str]:
    """Train a model in ``folder``, and return what predicts twelve molecules with it."""
    os.environ["MNAGT_CACHE"] = str(folder / "cache")
    head, *rows = AMINES.read_text(encoding="utf-8").splitlines(keepends=True)
    some, few, run = folder / "some.csv", folder / "few.csv", str(folder / "run")
    some.write_text("".join([head, *rows[::4]]), encoding="utf-8")
    few.write_text("".join([head, *rows[:12]]), encoding="utf-8")
    words = ["--target", "amine", "--split", "stratified", "--epochs", "1", "--device", "cpu", "--out", run]
    cpu_seconds(["-m", "mnagt", "train", str(some), *words])
    return ["-m", "mnagt", "predict", run, str(few), "--device", "cpu", "--out", str(folder / "predictions.csv")]


def find_slow(seconds: dict[str, float]) -> list[str]:
    """The commands that take too long, as they are reported."""
    limits = {SLOWEST_HELP: HELP_SECONDS, PREDICT: PREDICT_SECONDS}
    return [f"{name}: {seconds[name]:.2f} s, not under {s}" for name, s in limits.items() if seconds[name] >= s]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    options = parser.parse_args()

    with TemporaryDirectory() as folder:
        helps = {" ".join(words): words for words in HELP}
        commands = {**IMPORTS, **helps, PREDICT: prepare_prediction(Path(folder))}
        for arguments in commands.values():  # fills the caches of files and of compiled modules
            cpu_seconds(arguments)
        taken = [{name: cpu_seconds(arguments) for name, arguments in commands.items()} for _ in range(options.rounds)]
    seconds = {name: statistics.median(turn[name] for turn in taken) for name in commands}
    seconds[SLOWEST_HELP] = max(seconds.pop(name) for name in helps)
    over_torch = {name: took / seconds["import torch"] for name, took in seconds.items()}

    print(f"{'':36}{'CPU s':>8}{'/ torch':>9}")
    for name, took in seconds.items():
        print(f"{name:36}{took:8.2f}{over_torch[name]:9.2f}")
    common.write(options.out, {"rounds": options.rounds, "cpu_seconds": seconds, "over_torch": over_torch})
    missed = [
        f"{name} costs {over_torch[name]:.2f} times torch, not under {OVER_TORCH}"
        for name in ("import mnagt", "from mnagt import train")
        if over_torch[name] >= OVER_TORCH
    ]
    common.exit_if_missed([*missed, *find_slow(seconds)])


if __name__ == "__main__":
    main()
