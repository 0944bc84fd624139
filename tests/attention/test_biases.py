"""Biases speak of pairs, in the order that attention reads them."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from strategies import batches, random_batch

from mnagt.attention import biases
from mnagt.attention.biases import EdgesOnly, ShortestPath, edge_pairs, pair_nodes, path_means, path_steps, self_pairs
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import shortest_paths


def of_graph(bias: torch.Tensor, graph: GraphBatch, g: int) -> torch.Tensor:
    n = int(graph.sizes[g])
    return bias[graph.pair_ptr[g] : graph.pair_ptr[g + 1]].reshape(n, n, -1)


@given(batches(is_directed=None))
def test_edges_only_allows_neighbours_and_oneself(graph):
    allowed = EdgesOnly()(graph)
    for g in range(graph.num_graphs):
        first = int(graph.node_ptr[g])
        edges = {(d - first, s - first) for s, d in graph.edge_index.T.tolist() if graph.graph_of_node[d] == g}
        here = of_graph(allowed, graph, g)[..., 0]
        for i, j in ((i, j) for i in range(len(here)) for j in range(len(here))):
            assert bool(here[i, j] == 0) == (i == j or (i, j) in edges)


def test_shortest_path_is_one_learned_number_a_distance():
    graph = random_batch([7], 0.25, seed=3)
    bias = ShortestPath(heads=2, limit=2)
    lengths = dict(nx.all_pairs_shortest_path_length(nx.Graph(graph.edge_index.T.tolist())))
    here = of_graph(bias(graph), graph, 0)
    for i in range(7):
        for j in range(7):
            distance = 0 if i == j else lengths.get(i, {}).get(j, 99)
            torch.testing.assert_close(here[i, j], bias.table.weight[min(distance, 3)])


@given(batches(is_directed=None))
def test_pairs_know_their_nodes(graph):
    attends, attended = pair_nodes(graph)
    assert len(attends) == len(attended) == graph.pair_ptr[-1]
    pair = torch.stack([attended, attends])
    assert torch.equal(pair[:, edge_pairs(graph)], graph.edge_index)
    assert torch.equal(pair[:, self_pairs(graph)], torch.arange(graph.num_nodes).expand(2, -1))


@given(batches(is_directed=None))
def test_the_mean_of_the_number_one_along_a_path_is_one(graph):
    """And of an edge's place, counted from 0, half the length less one: no edge of a path is missed or told twice."""
    distances, one = shortest_paths(graph, 3), torch.ones(graph.num_edges, 1)
    steps = path_steps(graph, distances, 3)
    ones, places = (path_means(term, steps, len(distances))[:, 0] for term in (lambda n: one, lambda n: n * one))
    is_path = (distances >= 1) & (distances <= 3)
    torch.testing.assert_close(ones, is_path.float())
    torch.testing.assert_close(places, torch.where(is_path, (distances - 1) / 2, 0.0))


def test_paths_that_cost_too_much_are_refused_with_the_cost(monkeypatch):
    graph = random_batch([7], 0.5, seed=3)
    monkeypatch.setattr(biases, "MOST_GIB", 1e-9)
    with pytest.raises(InputError, match=r"largest of 7 nodes, need .* GiB.*smaller batches"):
        path_steps(graph, shortest_paths(graph, 3), 3)
