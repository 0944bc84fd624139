"""Counters and histograms in Prometheus's text format."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self.counts, self.total = [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def to_lines(self) -> list[str]:
        lines, cumulative = [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} histogram"], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            cumulative += count
            lines.append(f'{self.name}_bucket{{le="{bound}"}} {cumulative}')
        return [*lines, f"{self.name}_sum {self.total:.6f}", f"{self.name}_count {cumulative}"]


class Metrics:
    """Counters of one process since its start."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        self.graphs = 0
        self.seconds = Histogram("mnagt_request_seconds", "Time from request to response.", SECONDS)
        self.batch = Histogram("mnagt_batch_requests", "Requests in a batch.", SIZES)

    def to_text(self) -> str:
        lines = ["# HELP mnagt_requests_total Requests, by path and status.", "# TYPE mnagt_requests_total counter"]
        lines += [
            f'mnagt_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        lines += ["# HELP mnagt_graphs_total Graphs predicted.", "# TYPE mnagt_graphs_total counter"]
        lines += [f"mnagt_graphs_total {self.graphs}", *self.seconds.to_lines(), *self.batch.to_lines()]
        return "\n".join(lines) + "\n"
