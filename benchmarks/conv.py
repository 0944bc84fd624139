"""``MNAGTConv`` in the place of PyTorch Geometric's ``GPSConv``, in the model of its GraphGPS example.

The example's model (random-walk encodings, ten layers of width 64, sum over nodes, an MLP of three maps) on NCI1 in
place of ZINC: nodes have labels and edges have none, so that ``GINConv`` takes the place of ``GINEConv``. Batches come
from PyTorch Geometric's ``DataLoader``. The layers:

- ``gps``: ``GPSConv(64, GINConv(...), heads=4)``. Nothing is dropped: PyTorch then has its fused attention to offer.
- ``mnagt``: ``MNAGTConv`` with the same local branch, BatchNorm of x + GINConv(x), as its residual, and two kernels of
  two heads: as many heads, of the same width, as ``gps``.
- ``mnagt, 3 kernels``: the same with ``hops=2`` and four heads a kernel, which is three times the attention.

A step is forward, loss, backward and Adam. ``edge_index`` is a new tensor each time, so that making a ``GraphBatch`` of
it counts. Variants take turns on each batch; a figure is the sum of the medians over batches. Peak memory is that of a
process of its own: on a CPU how far a step raises the peak of its resident memory, after a step on two tiny graphs.
How well the first two learn is measured by ``conv_accuracy.py``.
"""

import argparse
import copy
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

import mnagt.nn as mnn
from mnagt.data.registry import load_dataset
from mnagt.devices import device_name, pick_device
from mnagt.graphs.convert import to_pyg
from mnagt.graphs.encodings import random_walk

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, at import
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, GPSConv, global_add_pool

CHANNELS, LAYERS, HEADS, WALK, ENCODED = 64, 10, 4, 20, 8
LABELS = 37
SEED, THREADS = 0, 2
BATCH_SIZES = {32: 6, 256: 2}
"""Graphs of a batch, and batches that are timed."""
SPEED_UP = {256: 2.0}
"""The time of ``gps`` over that of ``mnagt``, at least, on a CPU."""
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Local(nn.Module):
    """The local branch of ``GPSConv``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = make_gin(), nn.BatchNorm1d(CHANNELS)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.conv(x, edge_index) + x)


def make_gin() -> GINConv:
    return GINConv(nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, CHANNELS)))


def make_conv(heads: int, hops: int) -> nn.Module:
    width = CHANNELS // HEADS
    return mnn.MNAGTConv(CHANNELS, heads=heads, head_dim=width, hops=hops, residual=Local(), norm="batch")


VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "gps": lambda: GPSConv(CHANNELS, make_gin(), heads=HEADS, attn_type="multihead"),
    "mnagt": lambda: make_conv(heads=2, hops=1),
    "mnagt, 3 kernels": lambda: make_conv(heads=HEADS, hops=2),
}


class Example(nn.Module):
    """The model of PyTorch Geometric's ``examples/graph_gps.py``."""

    def __init__(self, variant: str, seed: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.node_emb = nn.Embedding(LABELS, CHANNELS - ENCODED)
        self.pe_norm, self.pe_lin = nn.BatchNorm1d(WALK), nn.Linear(WALK, ENCODED)
        self.convs = nn.ModuleList(VARIANTS[variant]() for _ in range(layers))
        half, quarter = CHANNELS // 2, CHANNELS // 4
        self.mlp = nn.Sequential(
            nn.Linear(CHANNELS, half), nn.ReLU(), nn.Linear(half, quarter), nn.ReLU(), nn.Linear(quarter, 2)
        )

    def forward(self, data: Any) -> Tensor:
        x = torch.cat([self.node_emb(data.x.view(-1)), self.pe_lin(self.pe_norm(data.pe))], dim=1)
        for conv in self.convs:
            x = conv(x, data.edge_index, data.batch)
        return self.mlp(global_add_pool(x, data.batch, data.num_graphs))


def read_graphs() -> list[Data]:
    """NCI1 as PyTorch Geometric keeps it, with random-walk encodings."""
    dataset = load_dataset(common.data_file("NCI1.zip"))
    batch = dataset.batch(torch.arange(len(dataset)))
    graphs: list[Any] = to_pyg(batch).to_data_list()
    for graph, rows in zip(graphs, random_walk(batch, WALK).split(batch.sizes.tolist()), strict=True):
        graph.x, graph.pe, graph.y = graph.x.long(), rows.float(), graph.y.long().view(1)
    return graphs


class Steps:
    """Training steps of a variant."""

    def __init__(self, variant: str, device: torch.device, seed: int = SEED, layers: int = LAYERS) -> None:
        self.model = Example(variant, seed, layers).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, weight_decay=1e-5)
        self.device = device

    def step(self, data: Any) -> None:
        data = copy.copy(data)
        data.edge_index = data.edge_index.clone()  # as from a loader: nothing is kept of it
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(data), data.y).backward()
        self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def accuracy(self, loader: DataLoader) -> float:
        self.model.eval()
        batches = [data.to(self.device) for data in loader]
        hits = sum(int((self.model(data).argmax(dim=1) == data.y).sum()) for data in batches)
        self.model.train()
        return hits / sum(data.num_graphs for data in batches)


def draw(graphs: list[Data], batch_size: int, batches: int) -> list[Any]:
    """The first batches of a shuffled loader."""
    generator = torch.Generator().manual_seed(SEED)
    loader = DataLoader(graphs, batch_size, shuffle=True, generator=generator)  # type: ignore[arg-type]
    return [data for data, _ in zip(loader, range(batches), strict=False)]


def time_steps(
    graphs: list[Data], batch_size: int, rounds: int, device: torch.device, clock: Callable[[], float]
) -> dict[str, Any]:
    variants = {name: Steps(name, device) for name in VARIANTS}
    totals = dict.fromkeys(VARIANTS, 0.0)
    batches = draw(graphs, batch_size, BATCH_SIZES[batch_size])
    for data in (data.to(device) for data in batches):
        steps = {name: lambda s=s, d=data: s.step(d) for name, s in variants.items()}
        took = common.medians(steps, rounds, warm_up=1, clock=clock)
        totals = {name: totals[name] + took[name] for name in VARIANTS}
    return {
        name: {"ms": 1000 * total / len(batches), "speed_up": totals["gps"] / total} for name, total in totals.items()
    }


def peak_kib() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].removesuffix("kB"))


def peak_mib(variant: str, batch_size: int, device: torch.device) -> float:
    """How far a step raises the peak memory of this process, or of its GPU."""
    graphs, steps = read_graphs(), Steps(variant, device)
    (data,) = draw(graphs, batch_size, 1)
    (tiny,) = draw(graphs[:2], 2, 1)
    steps.step(tiny.to(device))
    data = data.to(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps.step(data)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = peak_kib()
    steps.step(data)
    return (peak_kib() - before) / 2**10


def peak_mib_apart(variant: str, batch_size: int, device: str) -> float:
    command = [sys.executable, __file__, "--peak", variant, str(batch_size), "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"measuring the memory of {variant!r} failed:\n{done.stderr}")
    return float(done.stdout)


def measure(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    graphs, sizes = read_graphs(), {}
    for batch_size in BATCH_SIZES:
        rows = time_steps(graphs, batch_size, options.rounds, device, CLOCKS[options.clock])
        for name, row in rows.items():
            row["peak MiB"] = peak_mib_apart(name, batch_size, options.device)
            print(f"{name:18}batch {batch_size:4}{row['ms']:10.1f} ms{row['speed_up']:7.2f}x{row['peak MiB']:9.0f} MiB")
        sizes[str(batch_size)] = rows
    return {"steps": sizes}


def list_misses(figures: dict[str, Any]) -> list[str]:
    """A line for each target that these figures miss."""
    found = {size: figures["steps"][str(size)]["mnagt"]["speed_up"] for size in SPEED_UP}
    return [
        f"batch {size}: {found[size]:.2f}x, not {bound:.1f}x" for size, bound in SPEED_UP.items() if found[size] < bound
    ]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=THREADS, help="threads of a CPU")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: on a machine that does other work")
    parser.add_argument("--rounds", type=int, default=5, help="steps timed of each variant on each batch")
    parser.add_argument("--peak", nargs=2, metavar=("VARIANT", "BATCH"), help="print the peak memory of a step")
    options = parser.parse_args()
    device = pick_device(options.device)
    torch.set_num_threads(options.threads if device.type == "cpu" else torch.get_num_threads())
    if options.peak:
        print(peak_mib(options.peak[0], int(options.peak[1]), device))
        return
    figures = measure(options, device)
    settings = {"seed": SEED, "channels": CHANNELS, "layers": LAYERS, "heads": HEADS, "device": device_name(device)}
    common.write(options.out, {**settings, "clock": options.clock, "rounds": options.rounds, **figures})
    common.exit_if_missed(list_misses(figures) if device.type == "cpu" else [])


if __name__ == "__main__":
    main()
