"""Made-up graphs whose targets depend on nodes that are far apart: what message passing of few layers cannot see."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.dense import dense_blocks
from mnagt.tasks import Regression, SingleLabel

GRAPHS = 5000
"""In each data set: 8:1:1 for training, validation and test."""
TREE_DEPTH, RING_SIZES, RING_CLASSES, CYCLE_NODES = 4, (10, 20), 5, (12, 24)


def tree_neighbours_match(generator: torch.Generator) -> PackedDataset:
    """Binary trees: the class is that of the leaf with the root's key (Alon and Yahav, 2021).

    Nodes have two labels, key and class; inner nodes have neither. Keys and classes of the leaves are permutations.
    """
    leaves = 2**TREE_DEPTH
    nodes = 2 * leaves - 1
    child = torch.arange(1, nodes)
    keys, classes = (torch.rand(GRAPHS, leaves, generator=generator).argsort(dim=1) for _ in range(2))
    chosen = torch.randint(leaves, (GRAPHS, 1), generator=generator)
    labels = torch.full((GRAPHS, nodes, 2), -1)
    labels[:, leaves - 1 :] = torch.stack([keys, classes], dim=2)
    labels[:, 0, 0] = keys.gather(1, chosen)[:, 0]
    edges = torch.stack([(child - 1) // 2, child])
    batch = GraphBatch.from_edges(
        _repeat(torch.cat([edges, edges.flip(0)], dim=1), nodes),
        [nodes] * GRAPHS,
        node_labels=labels.flatten(0, 1),
        targets=classes.gather(1, chosen)[:, 0],
    )
    return _pack("tree-neighbours-match", SingleLabel(tuple(map(str, range(leaves)))), batch)


def ring_transfer(generator: torch.Generator) -> PackedDataset:
    """Rings: the class is that of the node opposite the marked one (after Bodnar et al., 2021).

    Nodes have two labels: a class, drawn for every node, and whether it is the marked one.
    """
    low, high = RING_SIZES
    sizes = 2 * torch.randint(low // 2, high // 2 + 1, (GRAPHS,), generator=generator)
    start = sizes.cumsum(0) - sizes
    graph = torch.repeat_interleave(torch.arange(GRAPHS), sizes)
    position = torch.arange(int(sizes.sum())) - start[graph]
    following = start[graph] + (position + 1) % sizes[graph]
    marked = (torch.rand(GRAPHS, generator=generator) * sizes).long()
    classes = torch.randint(RING_CLASSES, (len(graph),), generator=generator)
    edges = torch.stack([torch.arange(len(graph)), following])
    batch = GraphBatch.from_edges(
        torch.cat([edges, edges.flip(0)], dim=1),
        sizes,
        node_labels=torch.stack([classes, (position == marked[graph]).long()], dim=1),
        targets=classes[start + (marked + sizes // 2) % sizes],
    )
    return _pack("ring-transfer", SingleLabel(tuple(map(str, range(RING_CLASSES)))), batch)


def cycle_count(generator: torch.Generator) -> PackedDataset:
    """Random graphs of mean degree three, without labels: the target is the number of cycles of four nodes."""
    low, high = CYCLE_NODES
    sizes = torch.randint(low, high + 1, (GRAPHS,), generator=generator)
    pairs, start = [], 0
    for size in sizes.tolist():
        is_edge = (torch.rand(size, size, generator=generator) < 3 / (size - 1)).triu(1)
        pairs.append(is_edge.nonzero() + start)
        start += size
    edges = torch.cat(pairs).T
    batch = GraphBatch.from_edges(torch.cat([edges, edges.flip(0)], dim=1), sizes)
    targets = torch.zeros(GRAPHS, 1)
    for block in dense_blocks(batch):
        shared = block.adjacency @ block.adjacency  # neighbours that two nodes share
        pairs_of_paths = (shared * (shared - 1) / 2).triu(1).sum(dim=(1, 2))
        targets[block.graphs, 0] = pairs_of_paths / 2  # each cycle has two diagonals
    return _pack("cycle-count", Regression(("cycles",)), replace(batch, targets=targets))


SYNTHETIC: dict[str, Callable[[torch.Generator], PackedDataset]] = {
    "tree-neighbours-match": tree_neighbours_match,
    "ring-transfer": ring_transfer,
    "cycle-count": cycle_count,
}


def make_synthetic(name: str) -> PackedDataset:
    """The data set called ``name``: the same graphs and split every time.

    >>> make_synthetic("ring-transfer").task.num_outputs
    5
    """
    return SYNTHETIC[name](torch.Generator().manual_seed(0))


def _repeat(edges: Int[Tensor, "2 edges"], nodes: int) -> Int[Tensor, "2 all_edges"]:
    """The edges of ``GRAPHS`` graphs that have these edges and so many nodes each."""
    first = nodes * torch.arange(GRAPHS)
    return (edges[:, None] + first[:, None]).flatten(1)


def _pack(name: str, task: SingleLabel | Regression, batch: GraphBatch) -> PackedDataset:
    tenth = GRAPHS // 10
    official = torch.repeat_interleave(torch.arange(3), torch.tensor([8 * tenth, tenth, tenth]))
    return replace(PackedDataset.from_batch(name, task, batch), official=official)
