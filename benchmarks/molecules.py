"""Molecules a second in training: the default model, four layers wide, against GPS over PyTorch Geometric's batches.

Both read the nine atom and three bond columns of OGB's molecules, have the same width and depth, and train by the same
optimiser on the same batches of real molecules; batches are built, then forward, loss, backward, clipping and AdamW:
all of it counts. Ours attends through two kernels a layer and takes two message-passing steps, GPS attends once after
one step; the model as printed, which has the kernels and no message passing, is timed too. They take turns, an
epoch each; a figure is the median.

Rows of bf16 matrices must be aligned to be multiplied fast: the width is a multiple of 8.
"""

from dataclasses import replace
from typing import Any

import common
import torch
from epoch import SEED, Memory, Ours, Peer, draw_batches, time_epoch
from peers import global_add_pool, plain
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, GPSConv

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.devices import device_name, pick_device
from mnagt.graphs.convert import to_pyg
from mnagt.models.registry import build_model
from mnagt.nn.graph_model import make_head
from mnagt.runs.config import TrainConfig

TARGETS = {"molecules_per_second": 100_000.0, "gps": 10.0}
"""Ours at least, and GPS's time over ours, on a GPU."""


class Columns(nn.Module):
    """The sum of one embedding a column, as OGB's encoders of atoms and bonds."""

    def __init__(self, sizes: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)

    def forward(self, labels: Tensor) -> Tensor:
        return torch.stack([table(labels[:, i]) for i, table in enumerate(self.tables)]).sum(dim=0)


class MoleculeGps(nn.Module):
    """``GPSConv`` around ``GINEConv``, as GraphGPS has it on molecules."""

    def __init__(self, dataset: PackedDataset, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.atoms = Columns(dataset.features.nodes.labels, dim)
        self.bonds = Columns(dataset.features.edges.labels, dim)

        def layer() -> GPSConv:
            mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
            return GPSConv(dim, GINEConv(mlp), heads=heads, attn_type="multihead")

        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.head = plain(make_head("mlp", dim, dim, dataset.task.num_outputs))

    def forward(self, data: Any) -> Tensor:
        x, edges = self.atoms(data.x), self.bonds(data.edge_attr)
        for layer in self.layers:
            x = layer(x, data.edge_index, data.batch, edge_attr=edges)
        return self.head(global_add_pool(x, data.batch, data.num_graphs))


def measure(options: Any, device: str) -> dict[str, Any]:
    dataset, split = draw_batches(load_dataset(common.data_file("ogbg_molhiv")), options.batch_size, options.batches)
    config = TrainConfig(epochs=99, batch_size=options.batch_size, precision="tf32", seed=SEED, checkpoint_seconds=1e9)
    torch.manual_seed(SEED)
    size = {
        "dim": options.dim,
        "depth": options.depth,
        "max_hop": options.max_hop,
        "heads": options.heads,
        "head_dim": options.dim // options.heads,
    }
    models = {
        name: build_model(name, {**size, **extra}, dataset.features, dataset.task.num_outputs)
        for name, extra in {"mnagt": {"wl_iterations": 0, "dropout": 0.0}, "mnagt-paper": {"dropout": 0.0}}.items()
    }
    graphs: list[Any] = to_pyg(dataset.batch(split.train)).to_data_list()  # type: ignore[assignment]
    for graph in graphs:
        graph.x, graph.edge_attr, graph.y = graph.x.long(), graph.edge_attr.long(), graph.y.view(1, -1)
    rows: dict[str, dict[str, Any]] = {}
    epochs = {}
    for name in (*models, "gps"):
        before = Memory(device)
        if name in models:
            precision = "bf16" if device != "cpu" else "fp32"
            variant = Ours(models[name], dataset, split, replace(config, precision=precision), device)
        else:
            peer = MoleculeGps(dataset, options.dim, options.depth, options.heads)
            variant = Peer(peer, graphs, dataset.task, config, device, options.workers)
        epochs[name] = time_epoch(variant, device)
        epochs[name]()
        rows[name] = before.measure()
    seconds = common.medians(epochs, options.rounds, warm_up=1)
    steps = len(split.train) // options.batch_size
    for name, took in seconds.items():
        rows[name] |= {"ms": 1000 * took / steps, "molecules_per_second": len(split.train) / took}
    return {**size, "batch_size": options.batch_size, "steps": steps, "variants": rows}


def list_misses(rows: dict[str, dict[str, float]]) -> list[str]:
    """A line for each target that is missed."""
    rate, times = rows["mnagt"]["molecules_per_second"], rows["gps"]["ms"] / rows["mnagt"]["ms"]
    out = []
    if rate < TARGETS["molecules_per_second"]:
        out.append(f"{rate:,.0f} molecules a second, not {TARGETS['molecules_per_second']:,.0f}")
    if times < TARGETS["gps"]:
        out.append(f"{times:.1f}x gps, not {TARGETS['gps']:.0f}x")
    return out


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument("--dim", type=int, default=304, help="width of nodes")
    parser.add_argument("--depth", type=int, default=4, help="layers")
    parser.add_argument("--max-hop", type=int, default=1, help="hops of the farthest kernel")
    parser.add_argument("--heads", type=int, default=4, help="heads of each kernel")
    parser.add_argument("--batch-size", type=int, default=1024, help="molecules in a batch")
    parser.add_argument("--batches", type=int, default=20, help="batches an epoch")
    parser.add_argument("--rounds", type=int, default=3, help="epochs timed of each")
    parser.add_argument("--workers", type=int, default=0, help="processes of the DataLoader")
    options = parser.parse_args()
    device = pick_device(options.device)
    torch.set_float32_matmul_precision("high")
    figures = measure(options, str(device))
    print(f"{device_name(device)}; {figures['steps']} batches of {figures['batch_size']}, width {options.dim}")
    for name, row in figures["variants"].items():
        print(f"  {name:12}" + "".join(f"  {key} {value:,.1f}" for key, value in row.items()))
    common.write(options.out, {"seed": SEED, "device": device_name(device), **figures})
    if device.type != "cpu":
        common.exit_if_missed(list_misses(figures["variants"]))


if __name__ == "__main__":
    main()
