"""How well models with ``MNAGTConv`` and with ``GPSConv`` learn NCI1: the two of ``conv.py``, at equal width and depth.

Both see the same graphs in the same order, from three seeds that draw the split, the weights and the order. Validation
accuracy is kept after each epoch; nothing is chosen by it. The figure of a seed is the mean of the last three epochs.
With four layers in place of ten, and one thread, all of it takes ten minutes of a CPU.
"""

import statistics
from typing import Any

import common
import conv
import torch
from torch_geometric.loader import DataLoader

from mnagt.data.splits import random_split
from mnagt.devices import device_name, pick_device

LAST = 3
"""Epochs that are averaged."""


def train(variant: str, graphs: list[Any], seed: int, layers: int, epochs: int, device: torch.device) -> list[float]:
    """Validation accuracy after each epoch."""
    split, steps = random_split(len(graphs), seed), conv.Steps(variant, device, seed, layers)
    parts = [[graphs[g] for g in part.tolist()] for part in (split.train, split.valid)]
    torch.manual_seed(seed)
    loaders = [DataLoader(part, 32, shuffle=at == 0) for at, part in enumerate(parts)]  # type: ignore[arg-type]
    found = []
    for _ in range(epochs):
        for data in loaders[0]:
            steps.step(data.to(device))
        found.append(steps.accuracy(loaders[1]))
    return found


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    device, graphs = pick_device(options.device), conv.read_graphs()
    torch.set_num_threads(1)
    by_epoch: dict[str, list[list[float]]] = {"gps": [], "mnagt": []}
    for seed in range(options.seeds):
        for variant, found in by_epoch.items():
            found.append(train(variant, graphs, seed, options.layers, options.epochs, device))
            print(f"{variant:8}seed {seed}: {', '.join(f'{each:.3f}' for each in found[-1])}", flush=True)
    accuracy = {variant: [statistics.mean(epochs[-LAST:]) for epochs in found] for variant, found in by_epoch.items()}
    differences = [ours - theirs for ours, theirs in zip(accuracy["mnagt"], accuracy["gps"], strict=True)]
    print(f"mnagt - gps: {', '.join(f'{each:+.3f}' for each in differences)}; mean {statistics.mean(differences):+.4f}")
    settings = {key: getattr(options, key) for key in ("seeds", "epochs", "layers")}
    figures = {"accuracy": accuracy, "difference": statistics.mean(differences), "by_epoch": by_epoch}
    common.write(options.out, {**settings, "channels": conv.CHANNELS, "device": device_name(device), **figures})


if __name__ == "__main__":
    main()
