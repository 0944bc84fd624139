"""``MNAGTConv`` in the place of PyTorch Geometric's ``GPSConv``, in the model of its GraphGPS example.

The example's model (random-walk encodings, ten layers of width 64, sum over nodes, an MLP of three maps) on NCI1 in
place of ZINC: nodes have labels and edges have none, so that ``GINConv`` takes the place of ``GINEConv``. Batches come
from PyTorch Geometric's ``DataLoader``. The layers:

- ``gps``: ``GPSConv(64, GINConv(...), heads=4)``. Nothing is dropped: PyTorch then has its fused attention to offer.
- ``mnagt``: ``MNAGTConv`` with the same local branch, BatchNorm of x + GINConv(x), as its residual, and two kernels of
  two heads: as many heads, of the same width, as ``gps``.
- ``mnagt, 3 kernels``: the same with ``hops=2`` and four heads a kernel, which is three times the attention.
- ``mnagt, no GIN``: ``mnagt`` with the residual of the paper, ÂX, in place of GIN. Hop kernels and residual then
  are all that it knows of edges; on a GPU alone.
- ``mnagt, checkpointed``: ``mnagt`` with layers that are computed again in the backward pass; on a GPU alone.
- ``..., captured``: the same with forward and backward in a CUDA graph, by ``mnn.CapturedBackward``; on a GPU alone.
  ``GPSConv`` cannot be captured: it waits for the GPU to learn the size of the largest graph.
- ``gps, compiled``: ``gps`` under ``torch.compile`` for any size; on a GPU, if asked for by ``--compile``.

A step is forward, loss, backward and Adam, eager unless said otherwise. ``edge_index`` is a new tensor each time, so
that making a ``GraphBatch`` of it counts, and so does padding. Variants take turns on each batch; a figure is the sum
of the medians over batches. Peak memory is how far a step raises it: on a GPU that of torch's allocator, after the
steps that were timed (where a step is captured the first, which takes the memory of the CUDA graph and of Adam); on a
CPU the resident memory of a process of its own, after a step on two tiny graphs. On a GPU all is measured with products
in fp32 and in tf32. How well they learn is measured by ``conv_accuracy.py``.
"""

import argparse
import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
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
BATCH_SIZES = {"cpu": {32: 6, 256: 2}, "cuda": {32: 4, 256: 2, 2048: 1}}
"""Graphs of a batch, and batches that are timed."""
JUDGED = {"cpu": "mnagt", "cuda": "mnagt, checkpointed, captured"}
"""The variant that has targets."""
SPEED_UP = {"cpu": {256: 2.0}, "cuda": {256: 3.0}}
"""The time of ``gps`` over its own, at least."""
MEMORY = {"cpu": {}, "cuda": {256: 0.5}}
"""Its peak memory over that of ``gps``, at most."""
PRECISIONS = {"cpu": {"fp32": "highest"}, "cuda": {"fp32": "highest", "tf32": "high"}}
"""How matrices are multiplied."""


class Local(nn.Module):
    """The local branch of ``GPSConv``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = make_gin(), nn.BatchNorm1d(CHANNELS)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.conv(x, edge_index) + x)


def make_gin() -> GINConv:
    return GINConv(nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, CHANNELS)))


def make_conv(heads: int, hops: int, residual: str | nn.Module, **settings: Any) -> nn.Module:
    settings |= {"head_dim": CHANNELS // HEADS, "norm": "batch"}
    return mnn.MNAGTConv(CHANNELS, heads=heads, hops=hops, residual=residual, **settings)


VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "gps": lambda: GPSConv(CHANNELS, make_gin(), heads=HEADS, attn_type="multihead"),
    "mnagt": lambda: make_conv(heads=2, hops=1, residual=Local()),
    "mnagt, 3 kernels": lambda: make_conv(heads=HEADS, hops=2, residual=Local()),
    "mnagt, no GIN": lambda: make_conv(heads=2, hops=1, residual="propagated"),
    "mnagt, checkpointed": lambda: make_conv(heads=2, hops=1, residual=Local(), activation_checkpointing=True),
}
CAPTURED, COMPILED = ", captured", ", compiled"
MEASURED = {
    "cpu": tuple(VARIANTS)[:3],
    "cuda": (*VARIANTS, *(name + CAPTURED for name in ("mnagt", "mnagt, no GIN", "mnagt, checkpointed"))),
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
        plain = variant.removesuffix(CAPTURED).removesuffix(COMPILED)
        self.model = Example(plain, seed, layers).to(device)
        is_fused = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, weight_decay=1e-5, fused=is_fused)
        self.device = device
        self.forward = torch.compile(self.model, dynamic=True) if variant.endswith(COMPILED) else self.model
        self.is_captured = variant.endswith(CAPTURED)
        self.backward = mnn.CapturedBackward(self.model, self.loss) if self.is_captured else self.run_eagerly

    def loss(self, data: Any) -> Tensor:
        return F.cross_entropy(self.forward(data)[: len(data.y)], data.y)

    def run_eagerly(self, data: Any) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(data)
        loss.backward()
        return loss

    def step(self, data: Any) -> None:
        data = copy.copy(data)
        data.edge_index = data.edge_index.clone()  # as from a loader: nothing is kept of it
        self.backward(data)
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
    graphs: list[Data], batch_size: int, names: Sequence[str], options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    variants, clock = {name: Steps(name, device) for name in names}, common.CLOCKS[options.clock]
    totals = dict.fromkeys(variants, 0.0)
    batches = [data.to(device) for data in draw(graphs, batch_size, BATCH_SIZES[device.type][batch_size])]
    for data in batches:
        steps = {name: lambda s=s, d=data: s.step(d) for name, s in variants.items()}
        took = common.medians(steps, options.rounds, warm_up=1, clock=clock)
        totals = {name: totals[name] + took[name] for name in variants}
    rows = {name: {"ms": 1000 * of / len(batches), "speed_up": totals["gps"] / of} for name, of in totals.items()}
    for name, row in rows.items():
        steps = Steps(name, device) if variants[name].is_captured else variants[name]
        on_gpu = device.type == "cuda"
        row["peak MiB"] = gpu_peak_mib(steps, batches[0]) if on_gpu else peak_mib_apart(name, batch_size)
    return rows


def gpu_peak_mib(steps: Steps, data: Any) -> float:
    """How far a step raises the peak of what torch's allocator has given away on the GPU."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    steps.step(data)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def peak_kib() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].removesuffix("kB"))


def peak_mib(variant: str, batch_size: int) -> float:
    """How far a step on the CPU raises the peak memory of this process."""
    graphs, steps = read_graphs(), Steps(variant, torch.device("cpu"))
    (data,) = draw(graphs, batch_size, 1)
    (tiny,) = draw(graphs[:2], 2, 1)
    steps.step(tiny)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = peak_kib()
    steps.step(data)
    return (peak_kib() - before) / 2**10


def peak_mib_apart(variant: str, batch_size: int) -> float:
    command = [sys.executable, __file__, "--peak", variant, str(batch_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"measuring the memory of {variant!r} failed:\n{done.stderr}")
    return float(done.stdout)


def measure(graphs: list[Data], options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    sizes, names = {}, MEASURED[device.type]
    names = (*names, "gps" + COMPILED) if options.compile else names
    for batch_size in options.sizes or BATCH_SIZES[device.type]:
        rows = time_steps(graphs, batch_size, names, options, device)
        for name, row in rows.items():
            print(
                f"{name:32}batch {batch_size:4}{row['ms']:10.1f} ms{row['speed_up']:7.2f}x{row['peak MiB']:9.1f} MiB",
                flush=True,
            )
        sizes[str(batch_size)] = rows
    return sizes


def list_misses(sizes: dict[str, Any], device: str) -> list[str]:
    """A line for each target that these figures miss."""
    missed, judged = [], JUDGED[device]
    measured = {int(size): rows for size, rows in sizes.items()}
    for size, bound in SPEED_UP[device].items():
        if size in measured and (found := measured[size][judged]["speed_up"]) < bound:
            missed.append(f"batch {size}: {found:.2f}x, not {bound:.1f}x")
    for size, bound in MEMORY[device].items():
        rows = measured.get(size)
        if rows and (found := rows[judged]["peak MiB"] / rows["gps"]["peak MiB"]) > bound:
            missed.append(f"batch {size}: {found:.2f} of the memory, not {bound:.1f}")
    return missed


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=THREADS, help="threads of a CPU")
    parser.add_argument(
        "--clock", choices=common.CLOCKS, default="wall", help="processor: on a machine that does other work"
    )
    parser.add_argument("--rounds", type=int, default=5, help="steps timed of each variant on each batch")
    parser.add_argument(
        "--sizes", nargs="+", type=int, choices=BATCH_SIZES["cuda"], help="graphs of a batch, if not all"
    )
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS["cuda"], help="of products on a GPU, if not all")
    parser.add_argument("--compile", action="store_true", help="measure GPSConv under torch.compile too, on a GPU")
    parser.add_argument("--peak", nargs=2, metavar=("VARIANT", "BATCH"), help="print the peak memory of a step")
    options = parser.parse_args()
    device = pick_device(options.device)
    torch.set_num_threads(options.threads if device.type == "cpu" else torch.get_num_threads())
    if options.peak:
        print(peak_mib(options.peak[0], int(options.peak[1])))
        return
    figures, missed, graphs = {}, [], read_graphs()
    for precision, of_torch in PRECISIONS[device.type].items():
        if precision not in (options.precisions or PRECISIONS[device.type]):
            continue
        print(f"{precision}, {device_name(device)}")
        torch.set_float32_matmul_precision(of_torch)
        sizes = measure(graphs, options, device)
        figures["steps" if precision == "fp32" else f"steps in {precision}"] = sizes
        missed += [f"{precision}, {line}" for line in list_misses(sizes, device.type)]
    settings = {"seed": SEED, "channels": CHANNELS, "layers": LAYERS, "heads": HEADS, "device": device_name(device)}
    common.write(options.out, {**settings, "clock": options.clock, "rounds": options.rounds, **figures})
    common.exit_if_missed(missed)


if __name__ == "__main__":
    main()
