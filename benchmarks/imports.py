"""CPU seconds to import torch, the package, the whole library, and to show the command line's help.

Each is the median of fresh processes, less nothing: the interpreter's own start counts for all alike.
"""

import resource
import statistics
import subprocess
import sys

import common

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import mnagt": ["-c", "import mnagt"],
    "from mnagt import train": ["-c", "from mnagt import train"],
    "mnagt --help": ["-m", "mnagt", "--help"],
}
OVER_TORCH = 2.0
"""Importing the whole library over importing torch, less than."""
HELP_SECONDS = 1.5
"""Less than."""


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    options = parser.parse_args()

    for arguments in COMMANDS.values():  # fills the caches of files and of compiled modules
        cpu_seconds(arguments)
    taken = [{name: cpu_seconds(arguments) for name, arguments in COMMANDS.items()} for _ in range(options.rounds)]
    seconds = {name: statistics.median(turn[name] for turn in taken) for name in COMMANDS}
    over_torch = {name: took / seconds["import torch"] for name, took in seconds.items()}

    print(f"{'':26}{'CPU s':>8}{'/ torch':>9}")
    for name, took in seconds.items():
        print(f"{name:26}{took:8.2f}{over_torch[name]:9.2f}")
    common.write(options.out, {"rounds": options.rounds, "cpu_seconds": seconds, "over_torch": over_torch})
    missed = [
        f"{name} costs {over_torch[name]:.2f} times torch, not under {OVER_TORCH}"
        for name in ("import mnagt", "from mnagt import train")
        if over_torch[name] >= OVER_TORCH
    ]
    if seconds["mnagt --help"] >= HELP_SECONDS:
        missed.append(f"--help takes {seconds['mnagt --help']:.2f} s, not under {HELP_SECONDS}")
    common.exit_if_missed(missed)


if __name__ == "__main__":
    main()
