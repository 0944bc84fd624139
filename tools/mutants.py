"""Mutation testing: small faults are put into the code one at a time, and some test must fail for each.

    python tools/mutants.py                                # all, which takes hours; begun again, it goes on
    python tools/mutants.py --sample 200 --seed 1          # 200 drawn at random
    python tools/mutants.py --only 'mnagt.data.splits.*'   # those of one module

mutmut makes and runs them as ``[tool.mutmut]`` in pyproject.toml says, each with the tests that call its function. They
lie in ``mutants/``. ``mutants/survivors.txt`` shows each mutant that no test noticed. One that cannot be noticed, since
it computes the same, belongs in ``tools/equivalent_mutants.txt`` with the reason; it is not counted then.
"""

import argparse
import fnmatch
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from mutmut import __main__ as mutmut
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

ROOT = Path(__file__).parents[1]
SURVIVORS = Path("mutants", "survivors.txt")
EQUIVALENT = Path("tools", "equivalent_mutants.txt")
UNNOTICED = {"survived", "no tests"}


def generate_mutants() -> None:
    """Write the mutants of all files that changed; results of functions that did not change stay."""
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(os.cpu_count() or 1)


def read_results() -> dict[str, str | None]:
    """The status of each mutant by its name: None of one that has not been run."""
    results: dict[str, str | None] = {}
    for path in sorted(Path("mutants", "src").rglob("*.meta")):
        for name, code in json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"].items():
            results[name] = None if code is None else status_by_exit_code[code]
    return results


def choose_mutants(names: list[str], only: str, sample: int, seed: int) -> list[str]:
    """Those whose name matches, or so many of them; a larger sample with the same seed contains a smaller one."""
    chosen = fnmatch.filter(names, only)
    random.Random(seed).shuffle(chosen)
    return sorted(chosen[: sample or None])


def run_mutants(names: list[str], jobs: int) -> None:
    """Run these mutants, a hundred at a time, so that little is lost when it is interrupted."""
    for first in range(0, len(names), 100):
        command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names[first : first + 100]]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


def read_changes(name: str) -> tuple[str, list[str]]:
    """The mutant as a diff, and the lines that it adds."""
    diff = get_diff_for_mutant(name)
    lines = [line[1:].strip() for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    return diff, lines


def write_survivors(results: dict[str, str | None], names: list[str]) -> Counter[str]:
    """List the mutants among ``names`` that no test noticed, and count all by their status."""
    equivalent = {line.strip() for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    counts, shown = Counter[str](), []
    for name in names:
        status = results[name] or "not run"
        if status in UNNOTICED:
            diff, added = read_changes(name)
            if equivalent.issuperset(added):
                status = "equivalent"
            else:
                shown.append(f"# {name}: {status}\n{diff}\n")
        counts[status] += 1
    SURVIVORS.write_text("\n".join(shown), encoding="utf-8")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="*", help="those whose name matches, such as 'mnagt.metrics.*'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants run at once")
    parser.add_argument("--most", type=float, default=5, help="survivors allowed, in per cent")
    options = parser.parse_args()
    os.chdir(ROOT)
    generate_mutants()
    results = read_results()
    names = choose_mutants(list(results), options.only, options.sample, options.seed)
    print(f"{len(names)} of {len(results)} mutants")
    run_mutants([name for name in names if results[name] is None], options.jobs)
    counts = write_survivors(read_results(), names)
    survivors = sum(counts[status] for status in UNNOTICED)
    share = 100 * survivors / max(len(names) - counts["equivalent"], 1)
    print(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    print(f"{share:.1f} % survive; {SURVIVORS} shows them")
    return int(share > options.most)


if __name__ == "__main__":
    sys.exit(main())
