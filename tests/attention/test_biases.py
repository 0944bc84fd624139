"""Biases speak of pairs, in the order that attention reads them."""

import networkx as nx
import torch
from hypothesis import given
from strategies import batches, random_batch

from mnagt.attention.biases import EdgesOnly, ShortestPath
from mnagt.graphs.batch import GraphBatch


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
