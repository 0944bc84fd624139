"""Random small batches of graphs, and the two things that must not matter: names of nodes and company in a batch."""

import os
from dataclasses import replace

import torch
from hypothesis import settings
from hypothesis import strategies as st
from jaxtyping import Int
from torch import Tensor

from mnagt.graphs.batch import GraphBatch

EXAMPLES = int(os.environ.get("MNAGT_EXAMPLES", "20"))
"""Examples of each property; `make slow` tries more."""
settings.register_profile("mnagt", deadline=None, max_examples=EXAMPLES)  # the first call of a torch kernel is slow
settings.load_profile("mnagt")

NODE_LABELS, NODE_VALUES, EDGE_LABELS, EDGE_VALUES, TARGETS = 2, 3, 5, 7, 11
"""Columns of each kind: distinct primes, so that a swapped axis cannot pass."""
CATEGORIES = 13


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_batch(
    sizes: list[int],
    density: float,
    seed: int,
    *,
    is_directed: bool = False,
    node_labels: bool = False,
    node_values: bool = False,
    edge_labels: bool = False,
    edge_values: bool = False,
    targets: bool = False,
) -> GraphBatch:
    """Graphs of the given sizes in which each pair of nodes is joined with probability ``density``.

    An undirected edge has the same columns both ways.
    """
    g, nodes = generator(seed), sum(sizes)
    place = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.long))
    is_edge = (torch.rand(nodes, nodes, generator=g) < density) & (place[:, None] == place)
    is_edge.fill_diagonal_(False)
    if not is_directed:
        is_edge = is_edge.triu() | is_edge.triu().T
    source, destination = is_edge.nonzero().T
    low, high = (source, destination) if is_directed else (source.minimum(destination), source.maximum(destination))
    label = torch.randint(0, CATEGORIES, (nodes, nodes, EDGE_LABELS), generator=g)[low, high]
    value = torch.randn(nodes, nodes, EDGE_VALUES, generator=g)[low, high]
    return GraphBatch.from_edges(
        torch.stack([source, destination]),
        sizes,
        node_labels=torch.randint(0, CATEGORIES, (nodes, NODE_LABELS), generator=g) if node_labels else None,
        node_values=torch.randn(nodes, NODE_VALUES, generator=g) if node_values else None,
        edge_labels=label if edge_labels else None,
        edge_values=value if edge_values else None,
        targets=torch.randn(len(sizes), TARGETS, generator=g) if targets else None,
    )


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    min_graphs: int = 1,
    max_graphs: int = 5,
    max_nodes: int = 7,
    is_directed: bool | None = False,
    node_labels: bool | None = False,
    node_values: bool | None = False,
    edge_labels: bool | None = False,
    edge_values: bool | None = False,
    targets: bool | None = False,
) -> GraphBatch:
    """Small batches: single nodes, graphs without edges and isolated nodes come up often. None means either."""

    def either(flag: bool | None) -> bool:
        return draw(st.booleans()) if flag is None else flag

    return random_batch(
        draw(st.lists(st.integers(1, max_nodes), min_size=min_graphs, max_size=max_graphs)),
        draw(st.sampled_from([0.0, 0.2, 0.4, 1.0])),
        draw(st.integers(0, 2**16)),
        is_directed=either(is_directed),
        node_labels=either(node_labels),
        node_values=either(node_values),
        edge_labels=either(edge_labels),
        edge_values=either(edge_values),
        targets=either(targets),
    )


def order_within(batch: GraphBatch, seed: int) -> Int[Tensor, "nodes"]:
    """A random order of the nodes of each graph, for ``renamed``."""
    shuffled = torch.randperm(batch.num_nodes, generator=generator(seed))
    return shuffled[batch.graph_of_node[shuffled].argsort(stable=True)]


def renamed(batch: GraphBatch, order: Int[Tensor, "nodes"]) -> GraphBatch:
    """The same graphs; node i of the new batch is node ``order[i]`` of the old one, of the same graph."""
    new_name = order.argsort()
    return _rebuilt(batch, new_name[batch.edge_index], batch.sizes, order, slice(None), slice(None))


def alone(batch: GraphBatch, g: int) -> GraphBatch:
    """Graph ``g`` in a batch of its own."""
    nodes = slice(int(batch.node_ptr[g]), int(batch.node_ptr[g + 1]))
    edges = slice(int(batch.in_ptr[nodes.start]), int(batch.in_ptr[nodes.stop]))
    edge_index = batch.edge_index[:, edges] - nodes.start
    return _rebuilt(batch, edge_index, batch.sizes[g : g + 1], nodes, edges, slice(g, g + 1))


def assert_same(one: GraphBatch, other: GraphBatch) -> None:
    """Equal in every field, values to rounding."""
    assert one.is_symmetric == other.is_symmetric
    assert one.encodings.keys() == other.encodings.keys()
    for name in ("sizes", "node_ptr", "in_ptr", "source", *_NODE_COLUMNS, *_EDGE_COLUMNS, "targets"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")
    for name, encoding in one.encodings.items():
        torch.testing.assert_close(encoding, other.encodings[name])


_NODE_COLUMNS = ("node_labels", "node_values")
_EDGE_COLUMNS = ("edge_labels", "edge_values")


def _rebuilt(batch: GraphBatch, edge_index: Tensor, sizes: Tensor, nodes, edges, graphs) -> GraphBatch:
    """A batch with other edges and the given rows of the old one's columns."""
    rows = dict.fromkeys(_NODE_COLUMNS, nodes) | dict.fromkeys(_EDGE_COLUMNS, edges) | {"targets": graphs}
    columns = {name: None if (c := getattr(batch, name)) is None else c[which] for name, which in rows.items()}
    built = GraphBatch.from_edges(edge_index, sizes, **columns)
    return replace(built, encodings={name: encoding[nodes] for name, encoding in batch.encodings.items()})
