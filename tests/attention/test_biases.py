"""Biases speak of pairs, in the order that attention reads them."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from strategies import batches, random_batch

from mnagt.attention import shortest_paths as paths
from mnagt.attention.biases import NonEdgeMask, ShortestPathBias
from mnagt.attention.pairs import edge_pairs, pair_nodes, self_pairs
from mnagt.attention.shortest_paths import path_means, path_steps
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import shortest_paths


def of_graph(bias: torch.Tensor, graph: GraphBatch, g: int) -> torch.Tensor:
    n = int(graph.sizes[g])
    return bias[graph.pair_ptr[g] : graph.pair_ptr[g + 1]].reshape(n, n, -1)


@given(batches(is_directed=None))
def test_the_mask_of_edges_leaves_other_pairs_and_oneself(graph):
    mask = NonEdgeMask()(graph)
    for g in range(graph.num_graphs):
        first = int(graph.node_ptr[g])
        edges = {(d - first, s - first) for s, d in graph.edge_index.T.tolist() if graph.graph_of_node[d] == g}
        scores = of_graph(mask, graph, g)[..., 0]
        for i, j in ((i, j) for i in range(len(scores)) for j in range(len(scores))):
            assert bool(scores[i, j] == 0) == (i == j or (i, j) not in edges)


def test_a_shortest_path_bias_is_one_learned_number_a_distance():
    """And one for the pairs of the last node, the virtual one."""
    graph = random_batch([7], 0.25, seed=3)
    bias = ShortestPathBias(heads=2, max_distance=2)
    lengths = dict(nx.all_pairs_shortest_path_length(nx.Graph(graph.edge_index.T.tolist())))
    learned = of_graph(bias(graph), graph, 0)
    for i in range(7):
        for j in range(7):
            distance = 0 if i == j else lengths.get(i, {}).get(j, 99)
            row = 4 if 6 in (i, j) else min(distance, 3)
            torch.testing.assert_close(learned[i, j], bias.distances.weight[row])


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
    monkeypatch.setattr(paths, "MAX_GIB", 1e-9)
    with pytest.raises(InputError, match=r"largest of 7 nodes, need .* GiB.*smaller batches"):
        path_steps(graph, shortest_paths(graph, 3), 3)
