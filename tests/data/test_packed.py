from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import CATEGORIES, TARGETS, alone, assert_same, batches, generator, random_batch

import mnagt.data.graph_rows as module
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import get_smiles, read_smiles
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns
from mnagt.tasks import Regression

TASK = Regression(tuple(f"t{i}" for i in range(TARGETS)))
COLUMNS = ("node_labels", "node_values", "edge_labels", "edge_values")
anything = batches(
    is_directed=None, node_labels=None, node_values=None, edge_labels=None, edge_values=None, targets=True
)


def packed(batch: GraphBatch) -> PackedDataset:
    """The graphs of ``batch`` as a data set, with an encoding that numbers the nodes."""
    counts = {name: (CATEGORIES,) * c.shape[1] for name in COLUMNS[::2] if (c := getattr(batch, name)) is not None}
    numbered = replace(batch, encodings={"number": torch.arange(float(batch.num_nodes))[:, None]})
    return PackedDataset.from_batch("toys", TASK, numbered, label_counts=counts)


def picked(batch: GraphBatch, indices: list[int]) -> GraphBatch:
    """The slow twin of ``PackedDataset.batch``: graphs taken out one by one and laid end to end."""
    numbered = replace(batch, encodings={"number": torch.arange(float(batch.num_nodes))[:, None]})
    graphs = [alone(numbered, g) for g in indices]
    first = [sum(graph.num_nodes for graph in graphs[:i]) for i in range(len(graphs))]

    def together(name: str) -> Any:
        columns = [getattr(graph, name) for graph in graphs]
        return None if columns[0] is None else torch.cat(columns)

    built = GraphBatch.from_edges(
        torch.cat([graph.edge_index + start for graph, start in zip(graphs, first, strict=True)], dim=1),
        [graph.num_nodes for graph in graphs],
        **{name: together(name) for name in (*COLUMNS, "targets")},
    )
    encodings = {"number": torch.cat([graph.encodings["number"] for graph in graphs])}
    return replace(built, encodings=encodings, is_symmetric=batch.is_symmetric)


@pytest.mark.parametrize("long_graph", [0, module.LONG_GRAPH], ids=["slices", "picked"])
@given(batch=anything, data=st.data())
def test_a_batch_holds_the_graphs_asked_for_in_any_order_and_repeated(batch, data, long_graph):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG_GRAPH", long_graph)
        indices = data.draw(st.lists(st.integers(0, batch.num_graphs - 1), min_size=1, max_size=7))
        assert_same(packed(batch).batch(torch.tensor(indices)), picked(batch, indices))


@given(anything)
def test_all_graphs_in_order_are_what_went_in(batch):
    again = packed(batch).batch(torch.arange(batch.num_graphs))
    assert_same(replace(again, encodings={}), batch)


def test_no_graphs_make_an_empty_batch():
    batch = packed(random_batch([3, 1], 0.5, seed=0, targets=True)).batch(torch.tensor([], dtype=torch.long))
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (0, 0, 0)


@pytest.mark.parametrize("indices", [[0, 2], [-1]])
def test_a_graph_that_does_not_exist_is_refused(indices):
    with pytest.raises(InputError, match="toys has graphs 0 to 1"):
        packed(random_batch([3, 1], 0.5, seed=0, targets=True)).batch(torch.tensor(indices))


@given(anything, st.integers(1, 4), st.booleans(), st.data())
def test_batches_cover_every_graph_once(batch, batch_size, is_shuffled, data):
    dataset = packed(batch)
    some = torch.tensor(data.draw(st.lists(st.integers(0, len(dataset) - 1), unique=True)), dtype=torch.long)
    pieces = list(dataset.batches(some, batch_size, generator(0) if is_shuffled else None))
    assert sorted(g for indices, _ in pieces for g in indices.tolist()) == sorted(some.tolist())
    assert len(pieces) == -(-len(some) // batch_size)
    for indices, piece in pieces:
        assert 0 < len(indices) <= batch_size
        assert_same(piece, dataset.batch(indices))
        assert piece.sizes.tolist() == sorted(piece.sizes.tolist())


def test_without_a_generator_batches_come_in_order_of_size():
    dataset = packed(random_batch([5, 1, 3, 2, 7, 1], 0.5, seed=0, targets=True))
    sizes = [n for _, batch in dataset.batches(torch.arange(6), 2) for n in batch.sizes.tolist()]
    assert sizes == [1, 1, 2, 3, 5, 7]


def test_batches_can_start_in_the_middle():
    dataset = packed(random_batch([3, 1, 2, 5, 1], 0.5, seed=0, targets=True))
    whole = [indices.tolist() for indices, _ in dataset.batches(torch.arange(5), 2, generator(0))]
    for start in range(4):
        rest = [indices.tolist() for indices, _ in dataset.batches(torch.arange(5), 2, generator(0), start=start)]
        assert rest == whole[start:]


def test_shuffling_follows_the_generator():
    dataset = packed(random_batch([2] * 31, 0.5, seed=0, targets=True))

    def drawn(seed: int) -> list[list[int]]:
        return [indices.tolist() for indices, _ in dataset.batches(torch.arange(31), 5, generator(seed))]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


@given(anything)
def test_moving_to_where_it_is_changes_nothing(batch):
    dataset = packed(batch)
    everything = torch.arange(len(dataset))
    assert_same(dataset.to("cpu").batch(everything), dataset.batch(everything))


def test_features_say_which_columns_there_are():
    bare = packed(random_batch([3], 0.5, seed=0, targets=True))
    rich = packed(random_batch([3], 0.5, seed=0, targets=True, node_labels=True, edge_labels=True, edge_values=True))
    assert not bare.features.nodes
    assert rich.features.nodes == Columns((CATEGORIES,) * 2, 0)
    assert rich.features.edges == Columns((CATEGORIES,) * 5, 7)


def test_targets_must_be_as_many_as_graphs():
    graphs = replace(random_batch([1, 1], 0.0, seed=0), targets=torch.zeros(3))
    with pytest.raises(InputError, match="toys: 3 targets for 2 graphs"):
        PackedDataset.from_batch("toys", TASK, graphs)


def test_categories_not_counted_are_those_seen():
    graphs = random_batch([3, 2], 1.0, seed=0, node_labels=True, targets=True)
    assert graphs.node_labels is not None
    seen = tuple((graphs.node_labels.amax(dim=0) + 1).tolist())
    assert PackedDataset.from_batch("toys", TASK, graphs).features.nodes.labels == seen
    with pytest.raises(InputError, match="node_labels has"):
        PackedDataset.from_batch("toys", TASK, graphs, label_counts={"node_labels": (1, 1)})


def test_values_must_be_finite():
    graphs = random_batch([3, 2], 1.0, seed=0, node_values=True, targets=True)
    assert graphs.node_values is not None
    graphs.node_values[1, 0] = torch.nan
    with pytest.raises(InputError, match="node_values holds values that are not finite"):
        PackedDataset.from_batch("toys", TASK, graphs)


def test_selected_graphs_keep_what_belongs_to_them():
    dataset = read_smiles(["CCO", "c1ccccc1", "CN"]).graphs
    dataset = replace(dataset, groups=torch.tensor([5, 6, 7]), official=torch.tensor([0, 1, 2]))
    part = dataset.select(torch.tensor([2, 0]))
    assert part.groups is not None
    assert part.official is not None
    assert get_smiles(part) == ["CN", "CCO"]
    assert (part.sizes.tolist(), part.groups.tolist(), part.official.tolist()) == ([2, 3], [7, 5], [2, 0])
    assert part.features == dataset.features
    assert_same(part.batch(torch.arange(2)), dataset.batch(torch.tensor([2, 0])))
