"""Readouts against the obvious way: one graph after the other."""

import pytest
import torch
from hypothesis import given
from strategies import batches, generator, random_batch

from mnagt.nn.readouts import READOUTS, Attention, ClsNode, VirtualNode

DIM = 5
OBVIOUS = {"sum": lambda x: x.sum(dim=0), "mean": lambda x: x.mean(dim=0), "max": lambda x: x.amax(dim=0)}


@pytest.mark.parametrize("name", OBVIOUS)
@given(graph=batches())
def test_sum_mean_and_max_are_what_they_say(name, graph):
    x = torch.randn(graph.num_nodes, DIM, generator=generator(0))
    each = [OBVIOUS[name](part) for part in x.split(graph.sizes.tolist())]
    torch.testing.assert_close(READOUTS[name](DIM)(x, graph), torch.stack(each))


@given(batches())
def test_attention_weights_add_up_to_one_in_each_graph(graph):
    x = torch.randn(graph.num_nodes, DIM, generator=generator(0))
    weights = Attention(DIM).weights(x, graph)
    torch.testing.assert_close(graph.nodes_of @ weights, torch.ones(graph.num_graphs, 1))


@given(batches(edge_labels=True, edge_values=True))
def test_a_virtual_node_is_joined_to_all_and_read_at_the_end(graph):
    readout, x = VirtualNode(DIM), torch.randn(graph.num_nodes, DIM, generator=generator(0))
    more_x, more = readout.prepare(x, graph)
    assert more.sizes.tolist() == [n + 1 for n in graph.sizes.tolist()]
    assert more.edge_labels is not None
    assert graph.edge_labels is not None
    assert more.edge_values is not None
    assert graph.edge_values is not None
    hubs = more.node_ptr[1:] - 1
    assert more.in_degree[hubs].tolist() == graph.sizes.tolist()
    assert more.num_edges == graph.num_edges + 2 * graph.num_nodes
    torch.testing.assert_close(readout(more_x, more), readout.start.expand(graph.num_graphs, -1))
    is_new = (more.source[:, None] == hubs).any(dim=1) | (more.destination[:, None] == hubs).any(dim=1)
    torch.testing.assert_close(more.edge_labels[~is_new], graph.edge_labels)
    torch.testing.assert_close(more.edge_values[~is_new], graph.edge_values)
    assert (more.edge_labels[is_new] == -1).all()


def test_a_cls_node_has_no_edges():
    graph = random_batch([3, 1], 1.0, seed=0)
    _, more = ClsNode(DIM).prepare(torch.randn(4, DIM), graph)
    assert more.num_edges == graph.num_edges
    assert more.in_degree.tolist() == [2, 2, 2, 0, 0, 0]
