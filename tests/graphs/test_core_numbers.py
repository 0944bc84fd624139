"""Core numbers are those of networkx."""

import networkx as nx
from hypothesis import given
from strategies import batches

from mnagt.graphs.core_numbers import core_numbers


@given(batches(max_nodes=9, is_directed=None))
def test_core_numbers_are_those_of_networkx(batch):
    graph = nx.Graph(batch.edge_index.T.tolist())
    graph.add_nodes_from(range(batch.num_nodes))
    expected = nx.core_number(graph)
    assert core_numbers(batch).tolist() == [expected[node] for node in range(batch.num_nodes)]
