"""Broken inputs for every reader, 200,000 and more: files of each format, model folders, runs, code, requests.

Real files and small ones made by hand are broken byte by byte and by structure (``fuzzing.py``). Each must be
read consistently, or refused by an ``InputError`` of one line (over HTTP, a status of the 400s) within ``--seconds`` of
processor time; no other exception, no dead process, no input that takes over ``--mib`` more memory. Inputs are divided
among ``--processes``; one that dies or hangs is replaced, and what it was reading is a finding. An input is made from
its reader and number: ``--readers tu --first 812 --inputs 1`` does one again.
"""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import common  # type: ignore[import-not-found]

PATIENCE = 12
"""Times ``--seconds`` by the clock after which a process that does not even notice is killed."""
FINDINGS = 20
"""Of a kind that are kept."""


class TooSlowError(BaseException):
    """So that no reader takes it for an error of its own."""


def work(options: Any, slice_of: int, start: int) -> None:
    """Try the inputs of one slice, from place ``start`` on, and tell of each on standard output as it is done."""
    os.environ["MNAGT_CACHE"] = os.devnull + "/none"
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    import torch
    from reliability.fuzzing import READERS

    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, _too_slow)
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.readers:
            READERS[name].attempt(0, Path(scratch))  # what is read once and for all
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + (options.mib << 20),) * 2)
        for place, (name, number) in enumerate(planned(options)):
            if place < start or place % options.processes != slice_of:
                continue
            print(json.dumps({"place": place}), flush=True)
            began, before = time.perf_counter(), _mib()
            signal.setitimer(
                signal.ITIMER_PROF, options.seconds
            )  # so that what else the machine does counts for nothing
            wrong = None
            try:
                outcome = READERS[name].attempt(number, Path(scratch))
            except (Exception, TooSlowError) as error:
                outcome, wrong = "wrong", f"{type(error).__name__}: {error}"[:300] + _where(error)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            if (grown := _mib() - before) > options.mib:
                outcome, wrong = "wrong", f"took {grown:.0f} MiB"
            told = {"place": place, "outcome": outcome, "seconds": time.perf_counter() - began, "mib": _mib()}
            print(json.dumps(told | ({"wrong": wrong} if wrong else {})), flush=True)


def planned(options: Any) -> list[tuple[str, int]]:
    """Reader and number of every input."""
    from reliability.fuzzing import READERS

    first = options.first
    return [
        (name, number)
        for name in options.readers
        for number in range(first, first + (READERS[name].inputs if options.inputs is None else options.inputs))
    ]


def _too_slow(*_: Any) -> None:
    raise TooSlowError("it takes too long")


def _where(error: BaseException) -> str:
    """The last places in the package or its tests."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "mnagt" in f.filename or "fuzzing" in f.filename]
    return " at " + ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-3:])


def _mib() -> float:
    """The most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class Worker:
    """A process for one slice; begun anew after each input that ends it."""

    def __init__(self, options: Any, slice_of: int) -> None:
        self.options, self.slice_of, self.deaths, self.is_open = options, slice_of, 0, True
        self.log = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self._begin(0)

    def _begin(self, start: int) -> None:
        self.at, self.moved = start, time.monotonic() + 60  # it has to import first
        command = [sys.executable, __file__, "--slice", str(self.slice_of), "--start", str(start)]
        for name in ("processes", "seconds", "mib", "first", "inputs"):
            if getattr(self.options, name) is not None:
                command += [f"--{name}", str(getattr(self.options, name))]
        command += ["--readers", *self.options.readers]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.rest = b""

    def poll(self) -> list[dict[str, Any]]:
        """The inputs that were done since."""
        assert self.process.stdout is not None
        ended = self.process.poll() is not None
        *lines, self.rest = (self.rest + (self.process.stdout.read() or b"")).split(b"\n")
        told = [json.loads(line) for line in lines]
        if told:
            self.at, self.moved = told[-1]["place"], max(self.moved, time.monotonic())
        done = [each for each in told if "outcome" in each]
        if ended and not told:
            if self.process.returncode == 0:
                self.is_open = False
                return done
            return [*done, self._died(f"ended the process with status {self.process.returncode}")]
        if not ended and time.monotonic() - self.moved > PATIENCE * self.options.seconds:
            self.process.kill()
            self.process.wait()
            return [*done, self._died("hangs")]
        return done

    def _died(self, how: str) -> dict[str, Any]:
        self.deaths += 1
        if self.deaths > FINDINGS:
            self.log.seek(0)
            sys.exit(f"too many dead processes; the last said: {self.log.read()[-2000:].decode(errors='replace')}")
        wrong = {"place": self.at, "outcome": "wrong", "seconds": 0.0, "mib": 0.0, "wrong": how}
        self._begin(self.at + 1)
        return wrong


def main() -> None:
    from reliability.fuzzing import READERS

    parser = common.parser(__doc__)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS), metavar="NAME", help="[all]")
    parser.add_argument("--inputs", type=int, help="for each reader [as many as tests/reliability/fuzzing.py says]")
    parser.add_argument("--first", type=int, default=0, help="number of the first input [0]")
    parser.add_argument("--processes", type=int, default=2, help="[2]")
    parser.add_argument("--seconds", type=float, default=10, help="of processor time for an input [10]")
    parser.add_argument("--mib", type=int, default=2048, help="of memory for an input [2048]")
    for name in ("--slice", "--start"):
        parser.add_argument(name, type=int, help="of a process that this one starts")
    options = parser.parse_args()
    if options.slice is not None:
        work(options, options.slice, options.start)
        return
    began, inputs = time.monotonic(), planned(options)
    counts: dict[str, Counter[str]] = {name: Counter() for name in options.readers}
    slowest, most_mib, findings, spoken = dict.fromkeys(options.readers, 0.0), 0.0, [], time.monotonic()
    workers = [Worker(options, each) for each in range(options.processes)]
    while any(worker.is_open for worker in workers):
        time.sleep(0.2)
        for each in (each for worker in workers if worker.is_open for each in worker.poll()):
            name, number = inputs[each["place"]]
            counts[name][each["outcome"]] += 1
            slowest[name] = max(slowest[name], each["seconds"])
            most_mib = max(most_mib, each["mib"])
            if "wrong" in each:
                findings.append({"reader": name, "number": number, "wrong": each["wrong"]})
                print(f"{name} {number}: {each['wrong']}", flush=True)
        if time.monotonic() - spoken > 30:
            spoken = time.monotonic()
            print(f"{sum(map(Counter.total, counts.values())):,} of {len(inputs):,}", flush=True)
    rows = {
        name: {"inputs": count.total(), **count, "slowest_seconds": round(slowest[name], 3)}
        for name, count in counts.items()
    }
    for name, row in rows.items():
        print(f"{name:10} " + ", ".join(f"{key} {value:,}" for key, value in row.items()))
    done = sum(row["inputs"] for row in rows.values())
    print(f"{done:,} inputs in {time.monotonic() - began:.0f} s; at most {most_mib:.0f} MiB")
    figures = {"inputs": done, "seconds": round(time.monotonic() - began), "most_mib": round(most_mib)}
    common.write(options.out, figures | {"readers": rows, "findings": findings})
    common.exit_if_missed(
        [f"{len(findings)} inputs were neither read nor refused"] * bool(findings)
        + [f"{len(inputs) - done} inputs were not tried"] * (done != len(inputs))
    )


if __name__ == "__main__":
    main()
