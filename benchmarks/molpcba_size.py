"""Trains on a stand-in of ogbg-molpcba's size: it must fit into 8 GiB, batch, train and score.

437,929 graphs with molpcba's means of nodes and bonds and its largest molecule, the columns of OGB's featuriser, and
128 binary labels of which two fifths are missing and one in seventy is 1. Labels depend on what elements a
molecule has, so that there is something to learn; scores mean nothing else.
"""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import common
import numpy as np
import torch
from numpy.typing import NDArray

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.ogb import ATOMS, BONDS, Links, pack_molecules
from mnagt.data.splits import official_split
from mnagt.inference.outputs import compute_outputs, matmul_precision
from mnagt.models.registry import MODELS, build_model
from mnagt.runs.config import TrainConfig
from mnagt.tasks import MultiLabel
from mnagt.training.trainer import Trainer

GRAPHS, NODES, BONDS_A_GRAPH, LARGEST = 437_929, 25.97, 28.11, 332
PARTS = (350_343, 43_793, 43_793)
LABELS, MISSING, POSITIVE = 128, 0.39, 0.014
ELEMENTS = {5: 0.73, 6: 0.12, 7: 0.11, 15: 0.02, 8: 0.01, 16: 0.01}
"""Carbon, nitrogen, oxygen, sulphur, fluorine, chlorine, as OGB numbers them."""
RING = 5
"""A bond this far back closes a ring of six."""
MEMORY_GIB = 8.0


def stand_in(graphs: int, seed: int = 0) -> PackedDataset:
    """Chains with side branches and rings of six."""
    random = np.random.default_rng(seed)
    sizes = random.gamma(9.0, NODES / 9.0, graphs).round().clip(1, LARGEST).astype(np.int64)
    sizes[0] = LARGEST
    nodes, first = int(sizes.sum()), np.cumsum(sizes) - sizes
    position = np.arange(nodes) - np.repeat(first, sizes)
    graph = np.repeat(np.arange(graphs, dtype=np.int32), sizes)
    backbone = np.flatnonzero(position > 0)
    back = random.choice([1, 2, 3], p=[0.8, 0.15, 0.05], size=len(backbone)).clip(max=position[backbone])
    rings = np.flatnonzero(position >= RING)
    rings = rings[random.random(len(rings)) < (BONDS_A_GRAPH * graphs - len(backbone)) / len(rings)]
    node = np.concatenate([backbone, rings])
    ends = np.column_stack([position[node], position[node] - np.concatenate([back, np.full(len(rings), RING)])])
    order = graph[node].argsort(kind="stable")
    atoms = np.column_stack([_draw_categories(random, nodes, count) for count in ATOMS])
    atoms[:, 0] = random.choice(list(ELEMENTS), p=list(ELEMENTS.values()), size=nodes)
    bonds = np.column_stack([_draw_categories(random, len(node), count) for count in BONDS])
    links = Links(ends[order].astype(np.int32), np.bincount(graph[node], minlength=graphs), bonds, bonds)
    return replace(
        pack_molecules("molpcba-size", sizes, atoms, links),
        task=MultiLabel(tuple(f"q{i}" for i in range(LABELS)), "ap"),
        targets=torch.from_numpy(_draw_labels(random, atoms[:, 0], graph, graphs)),
        official=torch.from_numpy(random.permuted(np.repeat(np.arange(3, dtype=np.int8), PARTS))[:graphs]),
    )


def _draw_categories(random: np.random.Generator, rows: int, count: int) -> NDArray[np.int8]:
    """Small numbers often, large ones seldom."""
    return random.geometric(0.6, rows).clip(max=count).astype(np.int8) - 1


def _draw_labels(
    random: np.random.Generator, element: NDArray[np.int8], graph: NDArray[np.int32], graphs: int
) -> NDArray[np.float32]:
    amounts = np.column_stack([np.bincount(graph, element == which, graphs) for which in ELEMENTS]).astype(np.float32)
    labels = amounts @ random.standard_normal((len(ELEMENTS), LABELS), dtype=np.float32)
    labels += random.standard_normal(labels.shape, dtype=np.float32)
    limit = np.quantile(labels[random.integers(0, graphs, 10_000)], 1 - POSITIVE, axis=0)
    np.greater(labels, limit, out=labels, casting="unsafe")
    for some in np.array_split(labels, 64):
        some[random.random(some.shape) < MISSING] = np.nan
    return labels


def peak_gib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="gin", choices=MODELS)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--steps", type=int, default=0, help="so many steps instead of an epoch")
    parser.add_argument("--graphs", type=int, default=GRAPHS, help="a smaller stand-in, for a look")
    options = parser.parse_args()

    seconds: dict[str, float] = {}

    @contextmanager
    def measure(what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[what] = time.perf_counter() - start
        print(f"{what:32}{seconds[what]:9.1f} s   peak {peak_gib():.2f} GiB", flush=True)

    with measure("made"):
        dataset = stand_in(options.graphs)
    assert dataset.official is not None
    split, task = official_split(dataset.official), dataset.task
    print(
        f"{len(dataset):,} graphs, {int(dataset.node_ptr[-1]):,} nodes, {len(dataset.source) // 2:,} bonds, parts"
        f" {len(split.train):,} / {len(split.valid):,} / {len(split.test):,}"
    )
    if options.steps:
        split = replace(split, train=split.train[: options.steps * options.batch_size])
    settings = {"dim": options.dim, "depth": options.depth}
    model = build_model(options.model, settings, dataset.features, task.num_outputs)
    with measure("encodings"):
        dataset = with_encodings(dataset, model.encodings)
    config = TrainConfig(epochs=1, batch_size=options.batch_size, precision=options.precision)
    trainer = Trainer(model, dataset, split, task, config, device=options.device)
    with measure("an epoch, with its validation"):
        trainer.run()
    with measure("outputs of the test part"), matmul_precision(trainer.device, config.precision):
        output = compute_outputs(model, trainer.dataset, split.test, config.batch_size)
        target = trainer.dataset.targets[split.test.to(trainer.dataset.device)]
    with measure("scores of the test part"):
        scores = task.scores(output, target)
    print(
        f"{options.model}, {model.parameter_count:,} parameters: "
        + ", ".join(f"{k} {v:.4f}" for k, v in scores.items())
    )
    figures = {"graphs": len(dataset), "trained": len(split.train), "seconds": seconds, "peak_gib": peak_gib()}
    if trainer.device.type == "cuda":
        figures["peak_gpu_gib"] = torch.cuda.max_memory_allocated(trainer.device) / 2**30
        print(f"peak on the GPU {figures['peak_gpu_gib']:.2f} GiB")
    common.write(options.out, figures | {"model": options.model, **settings, "device": str(trainer.device), **scores})
    common.exit_if_missed([f"{MEMORY_GIB} GiB of memory"] if peak_gib() > MEMORY_GIB else [])


if __name__ == "__main__":
    main()
