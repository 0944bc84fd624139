"""What each kernel shows, and that the paper's single-kernel systems are fillings of one form."""

import pytest
import torch
from hypothesis import given
from strategies import batches, generator, random_batch
from torch import nn

from mnagt.attention import kernels
from mnagt.attention.kernels import GnnHop, Hop, Hops, SeparateGnns, Structural
from mnagt.graphs.adjacency import propagate
from mnagt.reference.paper import adjacency_hat

DIM = 5


class TwoHops(nn.Module):
    def forward(self, x, graph):
        return propagate(propagate(x, graph), graph)


class OneHop(nn.Module):
    def forward(self, x, graph):
        return propagate(x, graph)


def nodes(graph, seed=0):
    return torch.randn(graph.num_nodes, DIM, generator=generator(seed), dtype=torch.float64)


@given(batches(max_graphs=1, is_directed=None))
def test_hop_k_is_the_kth_power_of_the_adjacency(graph):
    x = nodes(graph)
    a_hat = adjacency_hat([tuple(e) for e in graph.edge_index.T.tolist()], graph.num_nodes, "sym")
    hops = Hops(x, graph)
    for k in (3, 0, 1):
        far = torch.linalg.matrix_power(a_hat, k) @ x
        for shown, expected in zip(Hop(k)(hops), (far, far, x), strict=True):
            torch.testing.assert_close(shown, expected)


def test_each_step_is_taken_once(monkeypatch):
    calls = []
    monkeypatch.setattr(kernels, "propagate", lambda *a: calls.append(1) or propagate(*a))
    graph = random_batch([3, 2], 1.0, seed=0)
    hops = Hops(nodes(graph), graph)
    for k in (3, 1, 2, 0, 3):
        Hop(k)(hops)
    assert len(calls) == 3


def test_sat_with_a_parameter_free_gnn_is_a_hop_kernel():
    graph = random_batch([3, 5], 0.5, seed=0)
    hops = Hops(nodes(graph), graph)
    for one, other in zip(Structural(TwoHops())(hops), Hop(2)(hops), strict=True):
        torch.testing.assert_close(one, other)


def test_gnn_kernels_of_plain_propagation_are_hop_kernels():
    graph = random_batch([3, 5], 0.5, seed=0)
    x = nodes(graph)
    for k in range(3):
        learned = GnnHop(k)(Hops(x, graph, gnn=[OneHop(), OneHop()]))
        for one, other in zip(learned, Hop(k)(Hops(x, graph)), strict=True):
            torch.testing.assert_close(one, other)


def test_separate_gnns_make_query_key_and_value():
    graph = random_batch([3, 5], 0.5, seed=0)
    hops = Hops(nodes(graph), graph)
    for part, expected in zip(SeparateGnns(OneHop(), TwoHops(), OneHop())(hops), (1, 2, 1), strict=True):
        torch.testing.assert_close(part, hops[expected])


def test_kernels_describe_themselves():
    described = [kernel.describe() for kernel in (Hop(2), GnnHop(1), Structural(TwoHops()))]
    assert described == ["Hop(2)", "GnnHop(1)", "Structural(TwoHops)"]


def test_a_kernel_must_define_forward():
    graph = random_batch([2], 1.0, seed=0)
    with pytest.raises(NotImplementedError, match="Kernel must define"):
        kernels.Kernel()(Hops(nodes(graph), graph))
