"""Whole training epochs of the default model, at four layers and three kernels, against what people write today.

Batches are built, then forward, loss, backward, clipping and AdamW: all of it counts. Ours trains by its ``Trainer``;
the peers (``peers.py`` says what they are) by a loop that does the same over PyTorch Geometric's ``DataLoader``, with
the same optimiser, learning rates and batches of graphs. The graphs are real: all of NCI1 but for the few that fill no
batch, and as many batches of COLLAB as ``--batches`` says, drawn once and shuffled anew every epoch. The variants take
turns, an epoch each; a figure is the median.

'padded' is the same model with the same weights at the start. Before anything is timed, both train for a few steps on
small batches, with nothing dropped and in double precision on a CPU, and the losses are compared: they are the same
training. (In single precision rounding pulls them apart within steps, as it does our own runs with graphs in another
order.) On a machine that does other work ``--clock processor --threads 1`` counts processor time.

On a GPU ours trains in bf16, and in tf32 beside it; the peers in ``--precision``, by default tf32, in which they are
faster than in bf16. Peak memory is that of a process of its own for each, from before it is built to the end of its
first epoch, with what cuBLAS works in and, for ours, the graphs, which lie on the GPU: 'MiB' is what tensors took,
'reserved' what PyTorch took from the device for it. What ``--out`` holds of other data sets stays.
"""

import copy
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import common
import torch
from peers import DEPTH, MAX_HOP, PEERS, Padded, pyg_list
from torch import nn
from torch.utils.data import Sampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from mnagt.attention.attend import active_backend
from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.data.splits import Split
from mnagt.devices import device_name, pick_device
from mnagt.inference.outputs import autocast
from mnagt.models.registry import build_model
from mnagt.runs.config import TrainConfig
from mnagt.tasks import Task
from mnagt.training.optim import ClippedAdamW, decay_groups, learning_rate
from mnagt.training.trainer import Trainer

BATCH_SIZES = {"NCI1": 256, "COLLAB": 64}
BATCHES = {"cpu": {"COLLAB": 4}, "cuda": {"COLLAB": 24}}
"""Batches in an epoch where it is not the whole data set."""
SPEED_UP = {
    "cpu": {"NCI1": {"padded": 2.0}, "COLLAB": {"padded": 4.0}},
    "cuda": {"NCI1": {"padded": 20.0, "gps": 10.0}, "COLLAB": {"padded": 20.0, "gps": 10.0}},
}
"""The peer's time over ours, at least."""
MEMORY = 0.2
"""The peak of ours, recomputed, over the twin's on a GPU, at most."""
OURS: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {"mnagt": {}},
    "cuda": {
        "mnagt": {"precision": "bf16"},
        "in tf32": {},
        "recomputed": {"precision": "bf16", "activation_checkpointing": True},
    },
}
"""How ours trains; the last works layers out again in the backward pass, to save memory."""
LOSS_APART = 1e-6
"""The twin's loss from ours in double precision, relative to it, at most."""
SEED, THREADS = 0, 2
WARM_UP = {"cpu": 0, "cuda": 2}
"""Epochs before any is timed, beside the first."""


class Ours:
    """Epochs of our ``Trainer``, without its validation."""

    def __init__(
        self, model: nn.Module, dataset: PackedDataset, split: Split, config: TrainConfig, device: str
    ) -> None:
        self.trainer = Trainer(model, dataset, split, dataset.task, config, device=device)

    def epoch(self) -> float:
        loss, at = self.trainer._train_epoch(), self.trainer.at
        at.epoch, at.step, at.loss = at.epoch + 1, 0, 0.0
        return loss


class Shuffled(Sampler[list[int]]):
    """The batches of each epoch as the ``Trainer`` draws them."""

    def __init__(self, graphs: int, batch_size: int) -> None:
        self.graphs, self.batch_size, self.at = graphs, batch_size, 0

    def __len__(self) -> int:
        return -(-self.graphs // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + self.at)
        self.at += 1
        yield from (part.tolist() for part in torch.randperm(self.graphs, generator=generator).split(self.batch_size))


class Peer:
    """Epochs of a model on PyTorch Geometric's batches."""

    def __init__(
        self, model: nn.Module, graphs: list[Data], task: Task, config: TrainConfig, device: str, workers: int
    ) -> None:
        self.device, self.task, self.config = torch.device(device), task, config
        self.model, self.graphs, self.step = model.to(self.device), len(graphs), 0
        self.loader = DataLoader(
            graphs,  # type: ignore[arg-type]
            batch_sampler=Shuffled(len(graphs), config.batch_size),
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
        )
        self.optimizer = ClippedAdamW(decay_groups(model, config.weight_decay), lr=config.lr, clip=config.clip)

    def epoch(self) -> float:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.model.train()
        batch: Any
        for batch in self.loader:
            batch = batch.to(self.device, non_blocking=True)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.step, self.config.epochs * len(self.loader), self.config)
            with autocast(self.device, self.config.precision):
                output = self.model(batch)
            loss = self.task.loss(output.float(), batch.y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach() * batch.num_graphs
            self.step += 1
        return total.item() / self.graphs


def draw_batches(dataset: PackedDataset, batch_size: int, batches: int | None) -> tuple[PackedDataset, Split]:
    """Graphs for whole batches to train on, and two that validate and test, which nobody times."""
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(SEED))
    train = min(batches or len(order), (len(order) - 2) // batch_size) * batch_size
    graphs, counts = dataset.batch(order[: train + 2]), dataset.label_counts
    cut = PackedDataset.from_batch(dataset.name, dataset.task, graphs, label_counts=counts)
    return cut, Split(*torch.arange(train + 2).split([train, 1, 1]))


class Contest:
    """Ours and its peers on the same graphs, from weights drawn with the same seed."""

    def __init__(
        self,
        dataset: PackedDataset,
        split: Split,
        config: TrainConfig,
        device: str,
        *,
        workers: int = 0,
        settings: Mapping[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(SEED)
        settings = {"depth": DEPTH, "max_hop": MAX_HOP, "dropout": 0.0, **(settings or {})}
        self.model = build_model("mnagt", settings, dataset.features, dataset.task.num_outputs).to(dtype)
        self.dataset = with_encodings(dataset, self.model.encodings)
        self.split, self.config, self.device, self.workers = split, config, device, workers

    def variant(self, name: str) -> Ours | Peer:
        ours = OURS[torch.device(self.device).type]
        if name in ours:
            config = replace(self.config, **ours[name])
            return Ours(copy.deepcopy(self.model), self.dataset, self.split, config, self.device)
        task, labels = self.dataset.task, sum(self.dataset.features.nodes.labels)
        torch.manual_seed(SEED)
        model = Padded(copy.deepcopy(self.model)) if name == "padded" else PEERS[name](labels, task.num_outputs)
        graphs = pyg_list(self.dataset, self.split.train, model.reads)
        return Peer(model, graphs, task, self.config, self.device, self.workers)


def compare_losses(dataset: PackedDataset, device: str, precision: Literal["fp32", "tf32", "bf16"]) -> float:
    """How far the losses of ours and of its twin get apart in a few steps, relative to them."""
    config = TrainConfig(epochs=2, batch_size=16, precision=precision, seed=SEED)
    dataset, split = draw_batches(dataset, config.batch_size, 4)
    dtype = torch.float64 if device == "cpu" else torch.float32
    contest = Contest(dataset, split, config, device, settings={"wl_dropout": 0.0}, dtype=dtype)
    ours, twin = contest.variant("mnagt"), contest.variant("padded")
    losses = [(ours.epoch(), twin.epoch()) for _ in range(config.epochs)]
    return max(abs(a - b) / abs(a) for a, b in losses)


class Memory:
    """What a variant takes of a GPU, MiB; nothing is known on a CPU."""

    def __init__(self, device: str) -> None:
        self.is_known = device != "cpu"
        if self.is_known:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def measure(self) -> dict[str, float]:
        if not self.is_known:
            return {}
        allocated, reserved = self.before
        return {
            "MiB": (torch.cuda.max_memory_allocated() - allocated) / 2**20,
            "reserved MiB": (torch.cuda.max_memory_reserved() - reserved) / 2**20,
        }


def time_epoch(variant: Ours | Peer, device: str) -> Callable[[], float]:
    """An epoch, with all that was asked of the device done; its loss."""

    def run() -> float:
        loss = variant.epoch()
        if device != "cpu":
            torch.cuda.synchronize()
        return loss

    return run


def make_contest(name: str, options: Any) -> Contest:
    """The contest that ``options`` ask for."""
    kind = torch.device(options.device).type
    dataset = load_dataset(common.data_file(f"{name}.zip"))
    dataset, split = draw_batches(dataset, BATCH_SIZES[name], options.batches or BATCHES[kind].get(name))
    config = TrainConfig(
        epochs=1 + WARM_UP[kind] + options.rounds,
        batch_size=BATCH_SIZES[name],
        precision=options.precision,
        seed=SEED,
        checkpoint_seconds=1e9,
    )
    torch.set_float32_matmul_precision("highest" if options.precision == "fp32" else "high")
    return Contest(dataset, split, config, options.device, workers=options.workers)


def measure_memory(row: str, name: str, options: Any) -> dict[str, float]:
    """What a variant takes, alone in its process."""
    contest = make_contest(name, options)
    before = Memory(options.device)
    time_epoch(contest.variant(row), options.device)()
    return before.measure()


def measure(name: str, options: Any, kind: str) -> dict[str, Any]:
    rows = [*OURS[kind], *options.peers]
    memory: dict[str, dict[str, float]] = {row: {} for row in rows}
    if kind != "cpu":
        with ProcessPoolExecutor(len(rows), multiprocessing.get_context("spawn")) as pool:
            memory = dict(zip(rows, pool.map(partial(measure_memory, name=name, options=options), rows), strict=True))
    apart = compare_losses(load_dataset(common.data_file(f"{name}.zip")), options.device, options.precision)
    contest = make_contest(name, options)
    epochs = {row: time_epoch(contest.variant(row), options.device) for row in rows}
    for epoch in epochs.values():
        epoch()
    seconds = common.medians(epochs, options.rounds, WARM_UP[kind], common.CLOCKS[options.clock])
    steps = len(contest.split.train) // BATCH_SIZES[name]
    variants = {
        row: {"ms": 1000 * took / steps, "speed_up": took / seconds["mnagt"], **memory[row]}
        for row, took in seconds.items()
    }
    return {"batch_size": BATCH_SIZES[name], "steps": steps, "loss_apart": apart, "variants": variants}


def format_table(name: str, figures: dict[str, Any]) -> str:
    """The table of a data set."""
    rows = figures["variants"]
    columns = list(rows["mnagt"])
    titles = {"ms": "ms a step", "speed_up": "to ours"}
    lines = [
        f"{name}, {figures['steps']} batches of {figures['batch_size']}",
        f"{'':12}" + "".join(f"{titles.get(column, column):>14}" for column in columns),
        *(f"{row:12}" + "".join(f"{of[column]:14.2f}" for column in columns) for row, of in rows.items()),
        f"losses of mnagt and padded apart by {figures['loss_apart']:.1e}",
    ]
    return "\n".join(lines) + "\n"


def list_misses(name: str, figures: dict[str, Any], kind: str) -> list[str]:
    """A line for each target that these figures miss."""
    rows, out = figures["variants"], []
    for peer, target in SPEED_UP[kind][name].items():
        if peer in rows and rows[peer]["speed_up"] < target:
            out.append(f"{name} {rows[peer]['speed_up']:.2f}x {peer}, not {target:.0f}x")
    if "padded" in rows and "MiB" in rows["padded"]:
        share = rows["recomputed"]["MiB"] / rows["padded"]["MiB"]
        if share > MEMORY:
            out.append(f"{name}, recomputed, takes {share:.2f} of the memory of padded, not {MEMORY}")
    if kind == "cpu" and figures["loss_apart"] > LOSS_APART:
        out.append(f"{name} loss {figures['loss_apart']:.1e} from that of padded, not {LOSS_APART:.0e}")
    return out


def main() -> None:
    everyone = ["padded", *PEERS]
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--precision", choices=("fp32", "tf32", "bf16"), help="of products; bf16 by autocast [fp32; tf32 on a GPU]"
    )
    parser.add_argument("--data", nargs="+", default=list(BATCH_SIZES), choices=list(BATCH_SIZES), help="data sets")
    parser.add_argument("--peers", nargs="+", default=everyone, choices=everyone, help="whom to run beside ours")
    parser.add_argument("--batches", type=int, help="batches an epoch, at most [all; of COLLAB 4, 24 on a GPU]")
    parser.add_argument("--rounds", type=int, default=3, help="epochs timed of each")
    parser.add_argument("--workers", type=int, default=0, help="processes of each DataLoader")
    parser.add_argument("--threads", type=int, default=THREADS, help="threads of a CPU")
    parser.add_argument(
        "--clock", choices=common.CLOCKS, default="wall", help="processor: on a machine that does other work"
    )
    options = parser.parse_args()
    device = pick_device(options.device)
    options.device = str(device)
    options.precision = options.precision or ("fp32" if device.type == "cpu" else "tf32")
    torch.set_num_threads(options.threads if device.type == "cpu" else torch.get_num_threads())

    print(f"{device_name(device)}; attention: {active_backend(device)}\n")
    settings = {
        "seed": SEED,
        "depth": DEPTH,
        "max_hop": MAX_HOP,
        "device": device_name(device),
        "attention": active_backend(device),
    }
    counts = {name: getattr(options, name) for name in ("precision", "clock", "threads", "rounds", "workers")}
    figures = {} if options.out is None or not options.out.exists() else json.loads(options.out.read_text())["epochs"]
    for name in options.data:
        figures[name] = measure(name, options, device.type)
        print(format_table(name, figures[name]), flush=True)
        common.write(options.out, {**settings, **counts, "epochs": figures})
    misses = [list_misses(name, figures[name], device.type) for name in options.data]
    common.exit_if_missed([line for lines in misses for line in lines])


if __name__ == "__main__":
    main()
