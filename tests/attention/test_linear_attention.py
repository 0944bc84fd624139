"""Linear attention answers to itself written pair by pair."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import alone, batches, generator, random_batch

from mnagt.attention.kernels import Hop
from mnagt.attention.linear_attention import linear_attend, linear_attention_of_graph
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.buckets import Buckets
from mnagt.models.mnagt import MnagtConfig

HEADS, DIM = 3, 5


def heads(graph: GraphBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = generator(0)
    shape = (graph.num_nodes, HEADS, DIM)
    q, k, v = (torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3))
    return q, k, v


def pair_by_pair(q, k, v, graph):
    out = []
    for g in range(graph.num_graphs):
        own = slice(int(graph.node_ptr[g]), int(graph.node_ptr[g + 1]))
        out.append(torch.einsum("hij,jhd->ihd", linear_attention_of_graph(q, k, graph, g), v[own]))
    return torch.cat(out)


@given(batches(is_directed=None), st.sampled_from([1, 4, 16]))
def test_it_equals_its_twin_forward_and_backward(graph, step):
    graph.__dict__["buckets"] = Buckets.plan(graph.sizes, step=step)
    found = []
    for work in (linear_attend, pair_by_pair):
        inputs = heads(graph)
        out = work(*inputs, graph)
        found.append([out, *torch.autograd.grad((out * torch.arange(DIM)).sum(), inputs)])
    torch.testing.assert_close(*found)


@given(batches())
def test_a_graph_does_not_see_its_batch(graph):
    q, k, v = heads(graph)
    together = linear_attend(q, k, v, graph)
    for g in range(graph.num_graphs):
        own = slice(int(graph.node_ptr[g]), int(graph.node_ptr[g + 1]))
        torch.testing.assert_close(together[own], linear_attend(q[own], k[own], v[own], alone(graph, g)))


def test_equal_keys_give_the_mean_of_the_values_on_two_axes_of_heads():
    graph = random_batch([5, 1, 3], 0.5, seed=0)
    q, k, v = (t.unflatten(1, (1, HEADS)) for t in heads(graph))
    out = linear_attend(q, torch.ones_like(k), v, graph)
    torch.testing.assert_close(out[:5], v[:5].mean(dim=0, keepdim=True).expand(5, -1, -1, -1))


def test_no_graphs_no_answers():
    graph = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [])
    assert linear_attend(*heads(graph), graph).shape == (0, HEADS, DIM)


def test_half_precision_sums_are_taken_in_single():
    graph = random_batch([300], 0.0, seed=0)
    q, k, v = (t.detach().abs() for t in heads(graph))
    rough = linear_attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), graph)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.double(), linear_attend(q, k, v, graph), rtol=0.02, atol=0.02)


def test_what_it_has_no_place_for_is_refused():
    with pytest.raises(InputError, match="no score of a pair"):
        MultiKernelAttention(4, [Hop(0)], heads=1, head_dim=2, variant="linear", bias=torch.nn.Identity())
    with pytest.raises(InputError, match="attention_dropout to 0"):
        MnagtConfig(attention="linear", attention_dropout=0.1)
    with pytest.raises(InputError, match="queries for 3 nodes in a batch of 2"):
        linear_attend(*heads(random_batch([3], 1.0, seed=0)), random_batch([2], 1.0, seed=0))
