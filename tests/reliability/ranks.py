"""One process against two ranks of a thread each: gradients, throughput, and how evenly batches are dealt out.

``MNAGT_DATA`` names the folder that holds NCI1.zip and COLLAB.zip, of which some graphs are taken. The default model
trains, without chance, on the CPU. Gradients are those of the first batch, in single and in double precision; what
single precision itself costs one process stands beside them. Throughput is over the steps of an epoch but the first
two. One process and two ranks take turns, and the best round of each counts.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]
import torch
from torch import Tensor

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.data.splits import Split
from mnagt.inference.weights import load_tensors, save_tensors
from mnagt.models.registry import build_model, full_settings
from mnagt.runs.config import TrainConfig
from mnagt.training.distributed import Ranks, estimate_cost, join_ranks, partition
from mnagt.training.progress import Reporter
from mnagt.training.trainer import Interrupted, Trainer

SETS = {"NCI1": (3072, 256), "COLLAB": (2048, 64)}
"""Graphs taken of each data set, and of each batch."""
DOUBLE_GRADIENTS = 1e-6
"""The most that gradients in double precision may differ by, beside their norm: the loss is taken in fp32."""


def main() -> None:
    parser: argparse.ArgumentParser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--part", nargs=3, metavar=("SET", "DTYPE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return _part(*options.part)
    figures, missed = {}, []
    for name in options.sets:
        common.data_file(f"{name}.zip")
        figures[name] = figure = _figures(name, options.rounds)
        for dtype in ("float32", "float64"):
            print(f"{name}: gradients in {dtype} differ by {figure['gradients'][dtype]:.1e} of their norm")
        one, two = figure["graphs_per_second"]["1"], figure["graphs_per_second"]["2"]
        print(f"{name}: {one:.1f} graphs/s alone, {two:.1f} with two ranks, {two / one:.2f} times as many")
        for ranks, row in figure["busiest_beside_mean"].items():
            told = f"{row['by_cost']:.3f} of the mean, and {row['by_count']:.3f} if graphs were dealt by count"
            print(f"{name}: the busiest of {ranks} ranks does {told}")
        if figure["gradients"]["float64"] > DOUBLE_GRADIENTS:
            missed.append(f"{name}: gradients differ by {figure['gradients']['float64']:.1e}")
    common.write(options.out, {"threads_each": 1, "rounds": options.rounds, "figures": figures})
    common.exit_if_missed(missed)


def _figures(name: str, rounds: int) -> dict:
    told: dict[tuple[str, int], list[dict[str, Tensor]]] = {}
    for turn in range(rounds):
        for dtype in ("float32", "float64") if turn == 0 else ("float32",):
            for ranks in (1, 2):
                told.setdefault((dtype, ranks), []).append(_told_by(name, dtype, ranks))
    gradients = {dtype: _apart(told[dtype, 2][0], told[dtype, 1][0]) for dtype in ("float32", "float64")}
    speed = {str(n): max(float(each["speed"]) for each in told["float32", n]) for n in (1, 2)}
    graphs, batch_size = SETS[name]
    return {
        "graphs": graphs,
        "batch_size": batch_size,
        "gradients": {**gradients, "float32 of one process": _apart(told["float32", 1][0], told["float64", 1][0])},
        "graphs_per_second": speed,
        "busiest_beside_mean": {str(n): _balance(name, n) for n in (2, 4, 8)},
    }


def _told_by(name: str, dtype: str, ranks: int) -> dict[str, Tensor]:
    """What so many ranks find, each with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "found.safetensors")
        start = [
            sys.executable,
            *([] if ranks == 1 else f"-m torch.distributed.run --standalone --nproc-per-node {ranks}".split()),
        ]
        words = [*start, __file__, "--part", name, dtype, out]
        subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        return load_tensors(Path(out))[0]


class Clock(Reporter):
    def __init__(self) -> None:
        self.at: list[tuple[float, int]] = []

    def step(self, step: int, graphs: int) -> None:
        self.at.append((time.perf_counter(), graphs))


def _part(name: str, dtype: str, out: str) -> None:
    with join_ranks() as ranks:
        trainer, clock = _trainer(name, ranks), Clock()
        trainer.model.to(getattr(torch, dtype))
        gradients: dict[str, Tensor] = {}
        step = trainer.optimizer.step

        def watched(closure: None = None, *, loss: Tensor | None = None) -> None:
            for parameter, p in trainer.model.named_parameters():
                if p.grad is not None:
                    gradients.setdefault(f"gradient/{parameter}", p.grad.clone())
            step(closure, loss=loss)

        trainer.optimizer.step = watched  # type: ignore[method-assign]
        trainer.reporter, trainer.should_stop = clock, lambda: dtype == "float64"
        with suppress(Interrupted):
            trainer.run()
        steps = zip(clock.at[1:], clock.at[2:], strict=False)
        speeds = [graphs / (end - start) for (start, _), (end, graphs) in steps]
        if ranks.is_first:
            save_tensors(Path(out), {**gradients, "speed": torch.tensor(statistics.median(speeds or [0.0]))})


def _trainer(name: str, ranks: Ranks) -> Trainer:
    dataset, (graphs, batch_size) = _dataset(name), SETS[name]
    torch.manual_seed(0)
    still = {setting: 0.0 for setting in full_settings("mnagt", {}) if setting.endswith("dropout")}
    model = build_model("mnagt", still, dataset.features, dataset.task.num_outputs)
    dataset = with_encodings(dataset, model.encodings)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    split = Split(order[:graphs], order[-batch_size:-1], order[-1:])
    config = TrainConfig(epochs=1, batch_size=batch_size, checkpoint_seconds=1e9)
    return Trainer(model, dataset, split, dataset.task, config, ranks=ranks)


def _dataset(name: str) -> PackedDataset:
    return load_dataset(common.data_file(f"{name}.zip"))


def _apart(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Norm of the difference of all gradients, beside their norm."""
    names = sorted(name for name in right if name.startswith("gradient/"))
    one, other = (torch.cat([each[name].double().flatten() for name in names]) for each in (found, right))
    return float((one - other).norm() / other.norm())


def _balance(name: str, ranks: int) -> dict[str, float]:
    """What the busiest rank has to do beside the mean, by cost, on average over batches."""
    graphs, batch_size = SETS[name]
    sizes = _dataset(name).sizes
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(0))[:graphs]
    busiest: dict[str, list[float]] = {"by_cost": [], "by_count": []}
    for costs in estimate_cost(sizes[order]).split(batch_size):
        hands = {"by_cost": [costs[hand] for hand in partition(costs, ranks)], "by_count": list(costs.chunk(ranks))}
        for how, dealt_out in hands.items():
            busiest[how].append(max(float(hand.sum()) for hand in dealt_out) * ranks / float(costs.sum()))
    return {how: statistics.mean(each) for how, each in busiest.items()}


if __name__ == "__main__":
    main()
