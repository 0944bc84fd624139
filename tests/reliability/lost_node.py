"""A Ray cluster that loses a node: trials run twice, ledger lines, seconds.

Two nodes of one CPU each, on this machine, share trials of a small GIN on MUTAG. Then the same again, and when a third
of the trials is over one node is killed in the middle of another (kill -9 of its raylet and its workers). Then the same
without Ray, in two processes, for the figures to be compared with. All trials have to end, each has to be in the ledger
once, and the figures of all three have to be the same.

``noticed_s`` is the time from the kill until the lost trial was begun anew. ``lost_s`` is how much longer the rest took
than the trials that were left, one after the other, at the speed that trials had then: what is trained twice, and the
handling of the loss. It can be negative, for the trial on the node that stays had begun before.
"""

import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]

from mnagt.experiments.config import RayConfig
from mnagt.experiments.executors import RAY_ENVIRONMENT
from mnagt.experiments.ledger import Ledger
from mnagt.experiments.trials import run_trials, with_seed
from mnagt.runs.config import RunConfig, TrainConfig


class Losses(logging.Handler):
    """When trials were begun anew."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.times: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.times.append(time.monotonic())


def kill_node(node: Any) -> list[str]:
    """As a machine that loses power; returns the command lines of the workers that died."""
    raylet = node.all_processes["raylet"][0].process.pid
    children = list(map(int, Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()))
    commands = [Path(f"/proc/{process}/cmdline").read_text() for process in children]
    for process in [raylet, *children]:
        os.kill(process, signal.SIGKILL)
    return commands


def on_two_nodes(configs: Sequence[RunConfig], ledger: Path, kill_after: int | None = None) -> dict[str, float]:
    """Run these on a new cluster, one of whose nodes is lost after so many trials."""
    from ray.cluster_utils import Cluster

    size: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 2**27}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    other, losses, over = cluster.add_node(**size), Losses(), []
    logging.getLogger("mnagt.experiments.executors").addHandler(losses)
    killed = 0.0

    def kill() -> None:
        nonlocal killed
        kill_node(other)
        killed = time.monotonic()

    def told(config: RunConfig, record: dict[str, Any]) -> None:
        over.append((time.monotonic(), record["result"]["seconds"]))
        if len(over) == kill_after:
            Timer(record["result"]["seconds"] / 2, kill).start()

    start = time.monotonic()
    run_trials(configs, Ledger(ledger), ray=RayConfig(cluster.address), on_trial=told)
    figures = {"wall_s": over[-1][0] - start, "retried": float(len(losses.times))}
    if kill_after is not None:
        common.exit_if_missed(["no trial was under way on the node that was killed"] * (not losses.times))
        left = [seconds for at, seconds in over if at > killed]
        figures |= {
            "killed_at_s": killed - start,
            "noticed_s": losses.times[0] - killed,
            "trials_left": len(left),
        }
        figures |= {"trial_s": sum(left) / len(left), "lost_s": over[-1][0] - killed - sum(left)}
    logging.getLogger("mnagt.experiments.executors").removeHandler(losses)
    cluster.shutdown()
    return figures


def figures_of(ledger: Path) -> dict[int, Any]:
    """Test and validation scores by seed; a seed that is there twice has both."""
    found: dict[int, list[Any]] = {}
    for record in map(json.loads, ledger.read_text().splitlines()):
        scores = (record["result"]["test"], record["result"]["valid"], record["curves"])
        found.setdefault(record["config"]["train"]["seed"], []).append(scores)
    return found


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    os.environ.update(RAY_ENVIRONMENT)
    train = TrainConfig(epochs=options.epochs, batch_size=64)
    config = RunConfig("MUTAG", "gin", {"dim": 16, "depth": 2}, train, device="cpu")
    configs = [with_seed(config, seed) for seed in range(options.trials)]
    with tempfile.TemporaryDirectory() as scratch:
        ledgers = {name: Path(scratch) / f"{name}.jsonl" for name in ("undisturbed", "disturbed", "alone")}
        whole = on_two_nodes(configs, ledgers["undisturbed"])
        print(f"two nodes: {options.trials} trials in {whole['wall_s']:.1f} s")
        hurt = on_two_nodes(configs, ledgers["disturbed"], kill_after=options.trials // 3)
        print(
            f"one killed after {hurt['killed_at_s']:.1f} s: {hurt['wall_s']:.1f} s, noticed in {hurt['noticed_s']:.2f} "
            f"s, {hurt['retried']:.0f} begun anew, {hurt['lost_s']:+.1f} s beside {hurt['trials_left']} trials of "
            f"{hurt['trial_s']:.1f} s"
        )
        run_trials(configs, Ledger(ledgers["alone"]), jobs=2)
        found = {name: figures_of(path) for name, path in ledgers.items()}
    once = {name: all(len(each) == 1 for each in by_seed.values()) for name, by_seed in found.items()}
    same = found["undisturbed"] == found["disturbed"] == found["alone"]
    lines = {name: sum(map(len, by_seed.values())) for name, by_seed in found.items()}
    print(f"ledger lines: {lines}; figures {'the same' if same else 'DIFFERENT'}")
    setting = {"trials": options.trials, "epochs": options.epochs}
    common.write(
        options.out, {**setting, "undisturbed": whole, "disturbed": hurt, "ledger_lines": lines, "same_figures": same}
    )
    common.exit_if_missed(
        [f"{name}: {lines[name]} lines" for name in lines if not once[name] or lines[name] != options.trials]
        + ["figures differ"] * (not same)
    )


if __name__ == "__main__":
    main()
