"""Random graphs with the columns that a model reads, to trace, check or measure it."""

from collections.abc import Sequence

import torch

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features


def random_graphs(features: Features, sizes: Sequence[int], density: float = 0.3, seed: int = 0) -> GraphBatch:
    """Directed graphs of these ``sizes``, in which each pair of nodes has an edge with probability ``density``.

    >>> random_graphs(Features(), [5, 1, 4]).num_graphs
    3
    """
    generator = torch.Generator().manual_seed(seed)
    pairs, first = [], 0
    for size in sizes:
        pairs.append((torch.rand(size, size, generator=generator) < density).nonzero() + first)
        first += size
    edge_index, columns = torch.cat(pairs).T, {}
    for kind, rows, has in (("node", first, features.nodes), ("edge", edge_index.shape[1], features.edges)):
        if has.labels:
            labels = [torch.randint(-1, count, (rows,), generator=generator) for count in has.labels]
            columns[f"{kind}_labels"] = torch.stack(labels, dim=1)
        if has.values:
            columns[f"{kind}_values"] = torch.randn(rows, has.values, generator=generator)
    return GraphBatch.from_edges(edge_index, list(sizes), **columns)
