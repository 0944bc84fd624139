"""Counters, gauges and histograms in Prometheus's text format, summed over the worker processes of a service."""

import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mnagt.graphs.memory import resident_memory

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
FAMILIES = {
    "mnagt_requests_total": ("counter", "Requests, by path and status."),
    "mnagt_caller_requests_total": ("counter", "Predictions and explanations, by caller and status."),
    "mnagt_graphs_total": ("counter", "Graphs predicted."),
    "mnagt_unread_total": ("counter", "SMILES that could not be read, in requests that were answered."),
    "mnagt_request_seconds": ("histogram", "Time from request to response, by model."),
    "mnagt_graphs_outside_total": ("counter", "Graphs with a distance above 1 from the training graphs."),
    "mnagt_graphs_by_bin_total": ("counter", "Graphs in each bin of a feature (mnagt monitor)."),
    "mnagt_drift_psi": ("gauge", "Drift of a feature since the start: its population stability index."),
    "mnagt_batch_requests": ("histogram", "Requests in a batch."),
    "mnagt_waiting_requests": ("gauge", "Requests that wait or are computed."),
    "mnagt_workers": ("gauge", "Worker processes."),
    "process_resident_memory_bytes": ("gauge", "Resident memory of all worker processes."),
}

_log = logging.getLogger(__name__)


class Metrics:
    """Samples of one process since its start, by name and labels.

    With a ``folder``, that worker processes share, each keeps a file of its samples there, and the text sums them.
    ``derive`` computes more samples from the sums.
    """

    def __init__(
        self,
        folder: Path | None = None,
        count_waiting: Callable[[], int] = lambda: 0,
        derive: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda total: {},
    ) -> None:
        self.samples: dict[str, float] = defaultdict(float)
        self._folder, self._count_waiting, self._derive = folder, count_waiting, derive
        self._has_failed = False

    def count(self, sample: str, by: float = 1) -> None:
        """Add to a counter, such as ``mnagt_requests_total{path="/predict",status="200"}``."""
        self.samples[sample] += by

    def observe(self, name: str, value: float, bounds: Sequence[float], labels: str = "") -> None:
        """Add a value to a histogram."""
        for bound in (*bounds, "+Inf"):
            is_within = bound == "+Inf" or value <= float(bound)
            self.samples[f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}}'] += is_within
        in_braces = f"{{{labels}}}" if labels else ""
        self.samples[f"{name}_sum{in_braces}"] += value
        self.samples[f"{name}_count{in_braces}"] += 1

    def forget(self, labels: str) -> None:
        """Drop the counts in bins of a model that is no longer served; another's bins have other bounds."""
        for name in [name for name in dict(self.samples) if name.startswith(f"mnagt_graphs_by_bin_total{{{labels},")]:
            del self.samples[name]

    def save(self) -> None:
        """Let the other worker processes know the samples of this one; if the disk is full, a second later."""
        if self._folder is not None:
            scratch = self._folder / f"{os.getpid()}.scratch"
            try:
                scratch.write_text(json.dumps([dict(self.samples), self._gauges()]))
                scratch.replace(self._folder / f"{os.getpid()}.json")
            except OSError as error:
                if not self._has_failed:
                    _log.warning("metrics of the worker processes are not written (%s)", error)
                self._has_failed = True

    def to_text(self) -> str:
        """The samples of all worker processes; those of others are up to a second old."""
        total: dict[str, float] = defaultdict(float)
        for samples in self._of_all():
            for name, value in samples.items():
                total[name] += value
        total |= self._derive(total)
        lines = []
        for family, (kind, text) in FAMILIES.items():
            lines += [f"# HELP {family} {text}", f"# TYPE {family} {kind}"]
            lines += [f"{name} {value:.10g}" for name, value in total.items() if _family(name) == family]
        return "\n".join(lines) + "\n"

    def _gauges(self) -> dict[str, float]:
        return {
            "mnagt_waiting_requests": self._count_waiting(),
            "mnagt_workers": 1,
            "process_resident_memory_bytes": resident_memory(),
        }

    def _of_all(self) -> Iterator[Mapping[str, float]]:
        yield dict(self.samples)  # other threads add to them
        yield self._gauges()
        for path in sorted(self._folder.glob("*.json")) if self._folder is not None else ():
            if path.stem != str(os.getpid()):
                samples, gauges = json.loads(path.read_text())
                yield samples
                if not Path("/proc/self").exists() or Path("/proc", path.stem).exists():  # else it has ended
                    yield gauges


def _family(sample: str) -> str:
    name = sample.partition("{")[0]
    return name if name in FAMILIES else name.rpartition("_")[0]
