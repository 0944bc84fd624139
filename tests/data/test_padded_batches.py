"""A batch of fixed shape holds the graphs asked for, then filling that keeps to itself."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import alone, assert_same, batches, random_batch

from mnagt.data.packed import PackedDataset
from mnagt.data.padded_batches import NO_GRAPH, PaddedBatches
from mnagt.graphs.padding import Shape
from mnagt.tasks import NO_CLASS, Regression, SingleLabel

anything = batches(
    is_directed=None, node_labels=None, node_values=None, edge_labels=None, edge_values=None, targets=True
)


def packed(batch) -> PackedDataset:
    task = Regression(tuple(f"t{i}" for i in range(batch.targets.shape[1])))
    return PackedDataset.from_batch("toys", task, batch)


@given(batch=anything, data=st.data())
def test_it_holds_the_graphs_and_then_filling(batch, data):
    dataset = packed(batch)
    graphs = torch.tensor(data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=5)))
    slots = torch.nn.functional.pad(graphs, (0, data.draw(st.integers(0, 3))), value=NO_GRAPH)
    fixed, needed = PaddedBatches(dataset), PaddedBatches(dataset).shape_of(slots)
    spare_edges = data.draw(st.integers(0, 50)) if len(dataset.source) else 0
    shape = Shape(len(slots), needed.nodes + data.draw(st.integers(1, 200)), needed.edges + spare_edges)
    assert shape.holds(needed)
    got, exact = fixed.batch(slots, shape), dataset.batch(graphs)

    assert (got.num_nodes, got.num_edges) == shape[1:]
    assert int(got.node_ptr[-1]) == shape.nodes
    assert int(got.in_ptr[-1]) == shape.edges
    assert (got.in_ptr.diff() >= 0).all()
    assert got.padding is not None
    assert [int(count) for count in got.padding[:3]] == [len(graphs), exact.num_nodes, exact.num_edges]
    assert got.max_num_nodes >= int(got.sizes.max())
    for g in range(len(graphs)):
        assert_same(alone(got, g), alone(exact, g))
    assert (got.sizes[len(graphs) : len(slots)] == 0).all()
    assert got.targets is not None
    assert got.targets[len(graphs) :].isnan().all()
    assert torch.equal(got.source[exact.num_edges :].long(), got.destination[exact.num_edges :])
    assert (got.source[exact.num_edges :] >= exact.num_nodes).all()


def test_a_missing_graph_has_no_class():
    batch = replace(random_batch([3, 2], 0.5, seed=0), targets=torch.tensor([1, 0]))
    dataset = PackedDataset.from_batch("toys", SingleLabel(("a", "b")), batch)
    got = PaddedBatches(dataset).batch(torch.tensor([1, NO_GRAPH]), Shape(2, 8, 8))
    assert got.targets is not None
    assert got.targets.tolist() == [0, NO_CLASS]


@pytest.mark.parametrize(
    ("room", "is_enough"), [((2, 6, 4), True), ((2, 5, 4), False), ((1, 6, 4), False), ((2, 6, 3), False)]
)
def test_a_shape_holds_what_is_smaller_and_one_node_more(room, is_enough):
    assert Shape(*room).holds(Shape(2, 5, 4)) == is_enough


def test_a_raised_shape_holds_what_it_was_raised_from():
    for shape in (Shape(1, 0, 0), Shape(3, 256, 512), Shape(3, 255, 513)):
        assert shape.round_up().holds(shape)
