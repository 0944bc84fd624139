"""How well models with ``MNAGTConv`` and with ``GPSConv`` learn NCI1: those of ``conv.py``, at equal width and depth.

All see the same graphs in the same order, from seeds that draw the split, the weights and the order. Validation
accuracy is kept after each epoch; nothing is chosen by it. The figure of a seed is the mean of the last three epochs.
With four layers in place of ten, three seeds and one thread, it takes ten minutes of a CPU; on a GPU ``--jobs`` trains
several models side by side, each in a process.
"""

import math
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import common
import conv
import torch
from torch_geometric.loader import DataLoader

from mnagt.data.splits import random_split
from mnagt.devices import device_name, pick_device

LAST = 3
"""Epochs that are averaged."""


def train(variant: str, seed: int, layers: int, epochs: int, device_name: str) -> list[float]:
    """Validation accuracy after each epoch."""
    torch.set_num_threads(1)
    graphs, device = conv.read_graphs(), pick_device(device_name)
    split, steps = random_split(len(graphs), seed), conv.Steps(variant, device, seed, layers)
    parts = [[graphs[g] for g in part.tolist()] for part in (split.train, split.valid)]
    torch.manual_seed(seed)
    loaders = [DataLoader(part, 32, shuffle=at == 0) for at, part in enumerate(parts)]  # type: ignore[arg-type]
    found = []
    for _ in range(epochs):
        for data in loaders[0]:
            steps.step(data.to(device))
        found.append(steps.accuracy(loaders[1]))
    print(f"{variant:30}seed {seed}: {', '.join(f'{each:.3f}' for each in found)}", flush=True)
    return found


def compare(accuracy: dict[str, list[float]], variant: str) -> dict[str, float | None]:
    """The mean difference from ``gps`` over seeds, and its standard error."""
    differences = [ours - theirs for ours, theirs in zip(accuracy[variant], accuracy["gps"], strict=True)]
    mean = statistics.mean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None
    each = ", ".join(f"{difference:+.3f}" for difference in differences)
    print(f"{variant} - gps: {each}; mean {mean:+.4f}, standard error {error}")
    return {"difference": mean, "standard error": error}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--variants", nargs="+", choices=conv.MEASURED["cuda"][1:], default=["mnagt"])
    options = parser.parse_args()
    variants = ["gps", *options.variants]
    tasks = [(variant, seed) for seed, variant in product(range(options.seeds), variants)]
    rest = [[each] * len(tasks) for each in (options.layers, options.epochs, options.device)]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        runs = dict(zip(tasks, pool.map(train, *zip(*tasks, strict=True), *rest), strict=True))
    by_epoch = {variant: [runs[variant, seed] for seed in range(options.seeds)] for variant in variants}
    accuracy = {variant: [statistics.mean(epochs[-LAST:]) for epochs in found] for variant, found in by_epoch.items()}
    compared = {variant: compare(accuracy, variant) for variant in options.variants}
    settings = {key: getattr(options, key) for key in ("seeds", "epochs", "layers", "jobs")}
    settings |= {"channels": conv.CHANNELS, "device": device_name(pick_device(options.device))}
    first = compared[options.variants[0]]["difference"]
    common.write(
        options.out,
        {**settings, "accuracy": accuracy, "difference": first, "compared": compared, "by_epoch": by_epoch},
    )


if __name__ == "__main__":
    main()
