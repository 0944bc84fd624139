"""The fast backend answers to the reference, on every kind of batch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import alone, batches, generator, random_batch

from mnagt.attention import cpu_small
from mnagt.attention.attend import BACKENDS, attend
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.buckets import Buckets

HEADS, HEAD_DIM = 3, 7
DEVICES = {"triton": "cuda" if torch.cuda.is_available() else "cpu"}
"""Where a backend runs that does not run everywhere; Triton's interpreter takes the place of a GPU."""
DTYPES = {"triton": torch.float32}
"""Backends that do not know float64; the tests of ``mnagt.ops.attention`` hold Triton's against it."""


def heads(graph: GraphBatch, backend: str = "auto") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = generator(0)
    shape, dtype = (graph.num_nodes, HEADS, HEAD_DIM), DTYPES.get(backend, torch.float64)
    q, k, v = (torch.randn(shape, generator=g, dtype=dtype).to(graph.device).requires_grad_() for _ in range(3))
    return q, k, v


def batch_for(backend: str, sizes: list[int], density: float = 0.5) -> GraphBatch:
    return random_batch(sizes, density, seed=0).to(DEVICES.get(backend, "cpu"))


def with_step(graph: GraphBatch, step: int) -> GraphBatch:
    """The batch with buckets as wide as a GPU likes them."""
    graph = replace(graph)
    graph.__dict__["buckets"] = Buckets.plan(graph.sizes, step=step)
    return graph


def answers(graph: GraphBatch, backend: str, bias: torch.Tensor | None) -> list[torch.Tensor]:
    """Output and gradients of queries, keys, values and bias."""
    inputs = heads(graph)
    if bias is not None:
        bias = bias.clone().requires_grad_()
    out = attend(inputs[0], inputs[1], inputs[2], graph, bias=bias, backend=backend)
    weight = torch.randn(out.shape, generator=generator(1), dtype=out.dtype)
    into = list(inputs) if bias is None else [*inputs, bias]
    return [out, *torch.autograd.grad((out * weight).sum(), into)]


@given(batches(is_directed=None), st.sampled_from([1, 2, 4, 16]), st.booleans())
def test_bucketed_equals_reference_forward_and_backward(graph, step, has_bias):
    bias = (
        torch.randn(int(graph.pair_ptr[-1]), HEADS, generator=generator(2), dtype=torch.float64) if has_bias else None
    )
    for fast, slow in zip(
        answers(with_step(graph, step), "bucketed", bias), answers(graph, "reference", bias), strict=True
    ):
        torch.testing.assert_close(fast, slow)


@given(batches(is_directed=None), st.sampled_from([0, 1, 3]))
def test_small_graphs_and_others_in_one_batch(graph, largest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_small, "LARGEST", largest)
        fast = answers(graph, "bucketed", None)
    for mine, slow in zip(fast, answers(graph, "reference", None), strict=True):
        torch.testing.assert_close(mine, slow)


@given(batches())
def test_a_graph_does_not_see_its_batch(graph):
    q, k, v = heads(graph)
    together = attend(q, k, v, graph)
    for g in range(graph.num_graphs):
        own = slice(int(graph.node_ptr[g]), int(graph.node_ptr[g + 1]))
        torch.testing.assert_close(together[own], attend(q[own], k[own], v[own], alone(graph, g)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_keys_give_the_mean_of_the_values(backend):
    graph = batch_for(backend, [5, 1, 3])
    q, k, v = heads(graph, backend)
    out = attend(q, torch.ones_like(k), v, graph, backend=backend)
    torch.testing.assert_close(out[:5], v[:5].mean(dim=0).expand(5, -1, -1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forbidden_pair_is_not_attended(backend):
    graph = batch_for(backend, [2, 3], 1.0)
    q, k, v = heads(graph, backend)
    only_self = torch.full((int(graph.pair_ptr[-1]), 1), -torch.inf, dtype=q.dtype, device=q.device)
    only_self[[0, 3, 4, 8, 12]] = 0.0
    torch.testing.assert_close(attend(q, k, v, graph, bias=only_self, backend=backend), v)


@pytest.mark.parametrize(
    "backend", sorted(BACKENDS.keys() - {"triton"})
)  # which is interpreted here, and tested elsewhere
def test_dropout_changes_answers_and_keeps_their_mean(backend):
    graph = batch_for(backend, [11])
    q, k, v = (t.detach() for t in heads(graph, backend))
    plain = attend(q, k, v, graph, backend=backend)
    torch.manual_seed(0)
    dropped = torch.stack([attend(q, k, v, graph, dropout=0.5, backend=backend) for _ in range(4000)])
    assert not torch.allclose(dropped[0], plain)
    torch.testing.assert_close(dropped.mean(dim=0), plain, atol=0.1, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_graphs_no_answers(backend):
    graph = batch_for(backend, [])
    assert attend(*heads(graph, backend), graph, backend=backend).shape == (0, HEADS, HEAD_DIM)


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_may_lie_on_two_axes(backend):
    graph = batch_for(backend, [5, 1, 3])
    q, k, v = heads(graph, backend)
    wide = [t.unflatten(1, (1, HEADS)) for t in (q, k, v)]
    two = attend(wide[0], wide[1], wide[2], graph, backend=backend)
    torch.testing.assert_close(two.flatten(1, 2), attend(q, k, v, graph, backend=backend))


def test_a_batch_in_order_of_size_is_not_copied():
    assert random_batch([2, 2, 3, 7], 0.5, seed=0).buckets.nodes.is_identity
    assert not random_batch([3, 2], 0.5, seed=0).buckets.nodes.is_identity


def test_an_unknown_backend_is_named():
    graph = random_batch([2], 1.0, seed=0)
    with pytest.raises(InputError, match="no attention backend 'flash'"):
        attend(*heads(graph), graph, backend="flash")


def test_queries_of_another_batch_are_refused():
    with pytest.raises(InputError, match="queries for 3 nodes in a batch of 2"):
        attend(*heads(random_batch([3], 1.0, seed=0)), random_batch([2], 1.0, seed=0))
