"""One training epoch of every model on NCI1, batch 256: seconds and peak memory.

Each model is measured in a process of its own, at its default size and the number of threads given: a first epoch warms
up, the next ones are timed, and the figure is their median. Peak memory is that of the whole process, the interpreter,
torch and the data set included. Beside some stands PyTorch Geometric's own implementation of the same model (its
``nn.models`` with BatchNorm and a sum over nodes, ``GPSConv``, ``Set2Set``), at the same width and depth, over its
``DataLoader``; the two take turns in one process, ours with what its batches cost, too.
"""

import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.data.splits import random_split
from mnagt.graphs.convert import to_pyg
from mnagt.models.registry import MODELS, build_model, full_settings
from mnagt.runs.config import TrainConfig
from mnagt.training.trainer import Trainer

SEED, BATCH = 0, 256


def ours(name: str, dataset: PackedDataset) -> Callable[[], None]:
    """An epoch of our model by our loop, without validation."""
    torch.manual_seed(SEED)
    model = build_model(name, {}, dataset.features, dataset.task.num_outputs)
    split = random_split(len(dataset), SEED)
    config = TrainConfig(batch_size=BATCH, checkpoint_seconds=1e9)
    trainer = Trainer(model, with_encodings(dataset, model.encodings), split, dataset.task, config)

    def epoch() -> None:
        trainer._train_epoch()
        trainer.at.step, trainer.at.epoch = 0, trainer.at.epoch + 1

    return epoch


def peer(name: str, dataset: PackedDataset) -> Callable[[], None] | None:
    """An epoch of PyTorch Geometric's model of that name, if it has one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, at import
        from torch_geometric.loader import DataLoader

    net = peer_model(name, dataset.features.nodes.labels[0])
    if net is None:
        return None
    split = random_split(len(dataset), SEED)
    graphs: list[Any] = to_pyg(dataset.batch(split.train)).to_data_list()
    for graph in graphs:
        graph.x = F.one_hot(graph.x[:, 0].long(), dataset.features.nodes.labels[0]).float()
    loader = DataLoader(graphs, batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def epoch() -> None:
        net.train()
        for batch in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(batch.x, batch.edge_index, batch.batch), batch.y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

    return epoch


def peer_model(name: str, labels: int) -> nn.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric import nn as pyg
        from torch_geometric.nn import global_add_pool

    settings = full_settings(name, {})
    dim, depth = settings.get("dim", 64), settings.get("depth", 4)

    class Net(nn.Module):
        """A stack, what reads it, and a head."""

        def __init__(self, stack: nn.Module, read: Callable[..., Tensor], width: int) -> None:
            super().__init__()
            self.stack, self.read = stack, read
            self.head = nn.Sequential(nn.Linear(width, dim), nn.ReLU(), nn.Linear(dim, 2))

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.head(self.read(self.stack(x, edge_index, batch=batch), batch))

    class Gps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(labels, dim)

            def conv() -> pyg.GINConv:
                return pyg.GINConv(nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)))

            self.layers = nn.ModuleList(pyg.GPSConv(dim, conv(), heads=settings["heads"]) for _ in range(depth))

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.encode(x)
            for layer in self.layers:
                x = layer(x, edge_index, batch)
            return x

    stacks = {"gcn": pyg.GCN, "gat": pyg.GAT, "sage": pyg.GraphSAGE, "gin": pyg.GIN, "set2set": pyg.GIN}
    if name == "gps":
        return Net(Gps(), global_add_pool, dim)
    if name not in stacks:
        return None
    heads = {"heads": settings["heads"]} if name == "gat" else {}
    stack = stacks[name](labels, dim, depth, norm="batch_norm", **heads)
    if name == "set2set":
        return Net(stack, pyg.Set2Set(dim, processing_steps=settings["steps"]), 2 * dim)
    return Net(stack, global_add_pool, dim)


def peak_mib() -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].removesuffix("kB")) / 2**10


def measure(name: str, rounds: int) -> dict[str, float]:
    """Seconds of an epoch and, before a peer is built, peak memory."""
    dataset = load_dataset(common.data_file("NCI1.zip"))
    epochs = {"ours": ours(name, dataset)}
    epochs["ours"]()
    row = {"peak, MiB": peak_mib()}
    if (theirs := peer(name, dataset)) is not None:
        epochs["peer"] = theirs
        theirs()
    took: dict[str, list[float]] = {who: [] for who in epochs}
    for _ in range(rounds):
        for who, epoch in epochs.items():
            start = time.perf_counter()
            epoch()
            took[who].append(time.perf_counter() - start)
    return row | {f"{who}, s": statistics.median(each) for who, each in took.items()}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="epochs timed of each")
    parser.add_argument("--threads", type=int, default=2)
    trained = [name for name, entry in MODELS.items() if not entry.is_fitted_by_sklearn]
    parser.add_argument("--models", nargs="*", choices=trained, default=trained, help="which [all]")
    parser.add_argument("--one", choices=trained, help="measure this one here and print it as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measure(options.one, options.rounds)))
        return
    rows, slower = {}, []
    print(f"{'':14}{'ours, s':>9}{'peak, MiB':>11}{'PyG, s':>9}{'':>7}")
    for name in options.models:
        command = [sys.executable, __file__, "--one", name, "--rounds", str(options.rounds)]
        command += ["--threads", str(options.threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"measuring {name!r} failed:\n{done.stderr}")
        row = rows[name] = json.loads(done.stdout)
        theirs = f"{row['peer, s']:9.2f}{row['peer, s'] / row['ours, s']:6.2f}x" if "peer, s" in row else ""
        print(f"{name:14}{row['ours, s']:9.2f}{row['peak, MiB']:11.0f}{theirs}", flush=True)
        if row.get("peer, s", float("inf")) < row["ours, s"]:
            slower.append(f"{name} is slower than PyTorch Geometric's")
    settings = {"seed": SEED, "threads": options.threads, "rounds": options.rounds, "batch_size": BATCH}
    common.write(options.out, {**settings, "models": rows})
    common.exit_if_missed(slower)


if __name__ == "__main__":
    main()
