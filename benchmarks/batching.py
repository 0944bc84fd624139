"""Shuffled batches of real graphs: ours against PyTorch Geometric's ``DataLoader``, one thread, no workers.

PyTorch Geometric keeps graphs as its ``TUDataset`` does, in an ``InMemoryDataset``: node labels one-hot (NCI1), or
none, to which its own benchmarks add one-hot degrees as each graph is taken (COLLAB). That is the peer, warm: an
``InMemoryDataset`` keeps each graph it has cut out, so its first pass, shown beside it, is slower. Ours carries labels
and degrees as numbers, which an embedding reads. Also shown, and not the peer: 'lean', a plain list of graphs without
node columns beyond ours, which nobody has to keep but could.

'used' adds what a training step then asks of a batch: its pointers, degrees, and one sum over neighbours. The variants
take turns of a few batches in a row; 'one at a time' takes turns of one, so that each finds the processor's caches full
of what the others left.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import common
import torch
import torch.nn.functional as F

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.graphs.batch import GraphBatch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, at import
    from torch_geometric.data import Data, InMemoryDataset
    from torch_geometric.loader import DataLoader
    from torch_geometric.transforms import OneHotDegree

Batch = TypeVar("Batch")

BATCH_SIZES = {"NCI1": 256, "COLLAB": 64}
SPEED_UP = 20.0
"""The peer's time over ours, at least."""
WIDTH = 64
"""Of the features summed over neighbours."""
TURN = 16
"""Batches made in a row: a pass over NCI1."""
SEED = 0


class Stored(InMemoryDataset):
    """Graphs collated as ``TUDataset`` has them."""

    def __init__(self, graphs: list[Data], transform: Callable[[Data], Data] | None) -> None:
        super().__init__(transform=transform)
        self.data, self.slices = self.collate(graphs)

    def forget(self) -> None:
        """Back to how it was before its first pass."""
        self._data_list = None


def lean(dataset: PackedDataset) -> list[Data]:
    """The graphs with the columns that ours have."""
    graphs = []
    for g in range(len(dataset)):
        one = dataset.batch(torch.tensor([g]))
        columns = {} if one.node_labels is None else {"x": one.node_labels}
        graphs.append(Data(edge_index=one.edge_index, y=one.targets, num_nodes=one.num_nodes, **columns))
    return graphs


def as_kept(graph: Data, labels: tuple[int, ...]) -> Data:
    """The graph with its node labels one-hot, as ``TUDataset`` reads it."""
    graph = graph.clone()
    if labels and graph.x is not None:
        graph.x = F.one_hot(graph.x[:, 0].long(), labels[0]).float()
    return graph


def forever(passes: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
    """Batches, pass after pass."""
    while True:
        yield from passes()


def turn(batches: Iterator[object]) -> Callable[[], None]:
    """Makes ``TURN`` batches, and keeps none."""

    def run() -> None:
        for _ in range(TURN):
            next(batches)

    return run


def ours(dataset: PackedDataset, batch_size: int) -> Iterator[GraphBatch]:
    generator, everything = torch.Generator().manual_seed(SEED), torch.arange(len(dataset))
    everything = everything[: len(dataset) // batch_size * batch_size]
    return forever(lambda: (batch for _, batch in dataset.batches(everything, batch_size, generator)))


def used(batch: GraphBatch, x: torch.Tensor) -> torch.Tensor:
    assert len(batch.in_ptr) == batch.num_nodes + 1
    assert len(batch.in_degree) == batch.num_nodes
    return batch.neighbours @ x[: batch.num_nodes]


def measure(name: str, rounds: int) -> dict[str, float]:
    dataset, batch_size = load_dataset(common.data_file(f"{name}.zip")), BATCH_SIZES[name]
    graphs = lean(dataset)
    kept = [as_kept(graph, dataset.features.nodes.labels) for graph in graphs]
    degrees = None if dataset.features.nodes else OneHotDegree(int(dataset.in_degree.max()))
    fresh, stored = Stored(kept, degrees), Stored(kept, degrees)

    def loader(kept: Stored | list[Data]) -> DataLoader:
        generator = torch.Generator().manual_seed(SEED)
        return DataLoader(kept, batch_size, shuffle=True, drop_last=True, generator=generator)  # type: ignore[arg-type]

    def first_pass() -> Iterator[object]:
        fresh.forget()
        return iter(loader(fresh))

    for _ in loader(stored):  # its first pass
        pass
    x = torch.randn(int(dataset.sizes.max()) * batch_size, WIDTH)
    streams: dict[str, Iterator[object]] = {
        "pyg, first pass": forever(first_pass),
        "pyg": forever(lambda: iter(loader(stored))),
        "pyg, lean": forever(lambda: iter(loader(graphs))),
        "mnagt": ours(dataset, batch_size),
        "mnagt, used": (used(batch, x) for batch in ours(dataset, batch_size)),
    }
    seconds = common.medians({row: turn(batches) for row, batches in streams.items()}, rounds)
    alone = common.medians({row: batches.__next__ for row, batches in streams.items()}, rounds)
    figures = {row: took / TURN for row, took in seconds.items()}
    figures |= {f"{row}, one at a time": alone[row] for row in ("pyg", "mnagt", "mnagt, used")}
    ratios = {"speed_up": figures["pyg"] / figures["mnagt"], "over lean": figures["pyg, lean"] / figures["mnagt"]}
    return {**{f"{row}, ms": 1000 * s for row, s in figures.items()}, **ratios}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="turns of each variant")
    options = parser.parse_args()
    torch.set_num_threads(1)

    figures = {name: measure(name, options.rounds) for name in BATCH_SIZES}
    print(f"{'ms a batch':32}" + "".join(f"{f'{name}, {size}':>14}" for name, size in BATCH_SIZES.items()))
    for row in figures["NCI1"]:
        print(f"{row.removesuffix(', ms'):32}" + "".join(f"{of[row]:14.3f}" for of in figures.values()))
    common.write(options.out, {"seed": SEED, "threads": 1, "rounds": options.rounds, "batches": figures})
    common.exit_if_missed(
        [
            f"{name} {of['speed_up']:.1f}x, not {SPEED_UP:.0f}x"
            for name, of in figures.items()
            if of["speed_up"] < SPEED_UP
        ]
    )


if __name__ == "__main__":
    main()
