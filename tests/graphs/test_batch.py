from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import alone, assert_same, batches, generator, order_within, random_batch, renamed

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns

ANY: dict[str, Any] = {
    "is_directed": None,
    "node_labels": None,
    "node_values": None,
    "edge_labels": None,
    "edge_values": None,
}


@given(batches(**ANY, targets=None), st.integers(0, 99))
def test_the_order_in_which_edges_are_given_does_not_matter(batch, seed):
    order = torch.randperm(batch.num_edges, generator=generator(seed))
    shuffled = GraphBatch.from_edges(
        batch.edge_index[:, order],
        batch.sizes,
        node_labels=batch.node_labels,
        node_values=batch.node_values,
        edge_labels=None if batch.edge_labels is None else batch.edge_labels[order],
        edge_values=None if batch.edge_values is None else batch.edge_values[order],
        targets=batch.targets,
    )
    assert_same(shuffled, batch)


@given(batches(is_directed=None))
def test_edges_are_sorted_by_destination_then_source(batch):
    pairs = batch.edge_index.flip(0).T.tolist()
    assert pairs == sorted(pairs)
    for v in range(batch.num_nodes):
        assert batch.destination[batch.in_ptr[v] : batch.in_ptr[v + 1]].tolist() == [v] * int(batch.in_degree[v])


@given(batches(is_directed=None))
def test_a_batch_is_symmetric_when_every_edge_runs_both_ways(batch):
    pairs = {tuple(pair) for pair in batch.edge_index.T.tolist()}
    assert batch.is_symmetric == all((v, u) in pairs for u, v in pairs)


def test_an_edge_given_twice_one_way_is_not_symmetric():
    assert not GraphBatch.from_edges(torch.tensor([[0, 0, 1], [1, 1, 0]]), [2]).is_symmetric


@given(batches(is_directed=None))
def test_edge_columns_stay_with_their_edges(batch):
    given_order = torch.arange(batch.num_edges).flip(0)
    number = torch.arange(batch.num_edges)[:, None]
    rebuilt = GraphBatch.from_edges(batch.edge_index[:, given_order], batch.sizes, edge_labels=number)
    assert rebuilt.edge_labels is not None
    torch.testing.assert_close(batch.edge_index[:, given_order][:, rebuilt.edge_labels[:, 0]], rebuilt.edge_index)


@given(batches(is_directed=None))
def test_every_incidence_is_the_matrix_it_says(batch):
    nodes, edges, graphs = torch.eye(batch.num_nodes), torch.eye(batch.num_edges), torch.eye(batch.num_graphs)
    adjacency = torch.zeros(batch.num_nodes, batch.num_nodes)
    adjacency[batch.destination, batch.source] = 1
    torch.testing.assert_close(batch.neighbours @ nodes, adjacency)
    torch.testing.assert_close(batch.neighbours.transposed @ nodes, adjacency.T)
    torch.testing.assert_close(batch.edges_into @ edges, nodes[batch.destination].T)
    torch.testing.assert_close(batch.edge_sources @ nodes, nodes[batch.source])
    torch.testing.assert_close(batch.graph_of @ graphs, graphs[batch.graph_of_node])
    torch.testing.assert_close(batch.nodes_of @ nodes, graphs[batch.graph_of_node].T)
    for name in ("edges_into", "edge_sources", "graph_of", "nodes_of"):
        matrix = getattr(batch, name)
        dense = matrix @ torch.eye(matrix.columns)
        torch.testing.assert_close(matrix.transposed @ torch.eye(len(dense)), dense.T)


@given(batches(max_graphs=7))
def test_pointers_cut_the_batch_at_its_graphs(batch):
    sizes = batch.sizes.tolist()
    assert batch.node_ptr.diff().tolist() == sizes
    assert batch.pair_ptr.diff().tolist() == [n * n for n in sizes]
    assert batch.graph_of_node.tolist() == [g for g, n in enumerate(sizes) for _ in range(n)]


def test_a_batch_may_hold_no_graph():
    batch = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [])
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (0, 0, 0)
    assert (batch.neighbours @ torch.zeros(0, 3)).shape == (0, 3)
    assert (batch.nodes_of @ torch.zeros(0, 3)).shape == (0, 3)


def test_a_graph_may_hold_no_node():
    batch = GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [0, 2, 0])
    assert batch.graph_of_node.tolist() == [1, 1]
    torch.testing.assert_close(batch.nodes_of @ torch.ones(2, 1), torch.tensor([[0.0], [2.0], [0.0]]))


@pytest.mark.parametrize("node", [-1, 5])
def test_an_edge_to_a_node_that_does_not_exist_is_refused(node):
    with pytest.raises(InputError, match="nodes are 0 to 4"):
        GraphBatch.from_edges(torch.tensor([[0], [node]]), [2, 3])


def test_an_edge_between_two_graphs_is_refused():
    with pytest.raises(InputError, match="edge 1 joins two graphs"):
        GraphBatch.from_edges(torch.tensor([[0, 1], [1, 2]]), [2, 3])


@given(batches(**ANY, targets=None))
def test_moving_to_where_it_is_changes_nothing(batch):
    assert_same(batch.to("cpu"), batch)


def test_missing_columns_are_told_in_words():
    batch = random_batch([3, 2], 0.5, seed=0, node_labels=True, edge_values=True)
    assert batch.describe_missing_columns("node", Columns(labels=(13, 13))) is None
    assert batch.describe_missing_columns("edge", Columns(values=7)) is None
    assert "2 categorical and 1 continuous node columns" in (
        batch.describe_missing_columns("node", Columns((13, 13), 1)) or ""
    )
    assert "carry 0 and 7" in (batch.describe_missing_columns("edge", Columns((5,), 7)) or "")


@given(batches(**ANY, targets=None), st.integers(0, 99))
def test_renaming_back_restores_the_batch(batch, seed):
    order = order_within(batch, seed)
    again = renamed(renamed(batch, order), order.argsort())
    assert again.edge_index.equal(batch.edge_index)
    if batch.node_values is not None:
        torch.testing.assert_close(renamed(batch, order).node_values, batch.node_values[order])
    assert_same(again, batch)


@given(batches(**ANY, targets=None), st.data())
def test_a_graph_alone_has_its_own_edges(batch, data):
    g = data.draw(st.integers(0, batch.num_graphs - 1))
    own = batch.graph_of_node[batch.source] == g
    assert alone(batch, g).edge_index.equal(batch.edge_index[:, own] - batch.node_ptr[g])
