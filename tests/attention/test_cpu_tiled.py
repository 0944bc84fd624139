"""Attention by tiles answers to the reference, whatever the tiles are, and keeps no scores."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, generator, random_batch

from mnagt.attention import cpu_tiled
from mnagt.attention.attend import attend
from mnagt.attention.cpu_tiled import tiled_attention
from mnagt.graphs import batch as batch_module
from mnagt.graphs.buckets import Buckets

HEADS, DIM = 3, 5


def wide(graphs: int, width: int) -> list[torch.Tensor]:
    g = generator(0)
    shape = (graphs, HEADS, width, DIM)
    return [torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3)]


@given(batches(is_directed=None), st.sampled_from([1, 4, 16]), st.sampled_from([1, 7, 40]))
def test_tiles_equal_the_reference_forward_and_backward(graph, step, at_once):
    g = generator(1)
    q, k, v = (torch.randn(graph.num_nodes, HEADS, DIM, generator=g, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(int(graph.pair_ptr[-1]), HEADS, generator=g, dtype=torch.float64)
    found = []
    for backend, most in (("bucketed", at_once), ("reference", 0)):
        graph.__dict__["buckets"] = Buckets.plan(graph.sizes, step=step)
        graph.__dict__.pop("pair_layout", None)
        inputs = [t.clone().requires_grad_() for t in (q, k, v, bias)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cpu_tiled, "AT_ONCE", most)
            out = attend(*inputs[:3], graph, bias=inputs[3], backend=backend)
            found.append([out, *torch.autograd.grad((out * torch.arange(DIM)).sum(), inputs)])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("mask", ["none", "who may attend", "added"])
def test_gradients_are_those_of_the_outputs(mask, dropout, monkeypatch):
    monkeypatch.setattr(cpu_tiled, "AT_ONCE", 2 * HEADS * 2 * 7)  # two queries at a time
    inputs, is_node = wide(2, 7), (torch.arange(7) < torch.tensor([[7], [4]]))[:, None, None, :]
    added = torch.randn(2, HEADS, 7, 7, generator=generator(2), dtype=torch.float64, requires_grad=True)
    mask = {"none": None, "who may attend": is_node, "added": added}[mask]

    def work(*given: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)  # the same are dropped each time
        return tiled_attention(given[0], given[1], given[2], given[3] if len(given) > 3 else mask, dropout)

    assert torch.autograd.gradcheck(work, (*inputs, added) if mask is added else tuple(inputs), fast_mode=True)


def test_dropout_drops_its_share_and_keeps_the_mean(monkeypatch):
    monkeypatch.setattr(cpu_tiled, "AT_ONCE", 100)
    q, one = torch.randn(1, HEADS, 29, 29, generator=generator(0)), torch.eye(29).expand(1, HEADS, 29, 29)
    torch.manual_seed(0)
    shares = torch.stack([tiled_attention(q, q, one, one.bool().logical_not(), 0.3) for _ in range(100)])
    plain = tiled_attention(q, q, one, one.bool().logical_not(), 0.0)
    assert (shares == 0).float().mean().item() == pytest.approx((1 + 28 * 0.3) / 29, abs=0.01)  # nobody sees oneself
    torch.testing.assert_close(shares.mean(dim=0), plain, atol=0.3, rtol=0)
    assert len({tuple(each.flatten().tolist()) for each in shares[:, 0, 0, 0]}) == 100


def test_a_large_graph_with_dropout_goes_by_tiles_and_a_small_one_does_not(monkeypatch):
    seen = []
    monkeypatch.setattr(cpu_tiled, "tiled_attention", lambda *given: seen.append(len(given)) or given[0])
    monkeypatch.setattr(cpu_tiled, "AT_ONCE", HEADS * 6 * 6)
    for nodes in (6, 7):
        graph = random_batch([nodes], 0.5, seed=0)
        q = torch.randn(nodes, HEADS, DIM)
        attend(q, q, q, graph)
        assert not seen
        attend(q, q, q, graph, dropout=0.5)
    assert len(seen) == 1


def test_pairs_that_would_not_fit_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(batch_module, "free_memory", lambda device: 2**34)
    graph = random_batch([2, 3], 0.5, seed=0)
    graph.__dict__["sizes"] = torch.tensor([2, 100_000])  # what it would be asked of
    said = r"graph 1 of a batch of 2 has 100,000 nodes.* need 37\.3 GiB .* 16 GiB are free on cpu: take smaller batches"
    with pytest.raises(batch_module.InputError, match=said):
        _ = graph.pair_ptr


STEP = """
import resource, sys, torch
from mnagt.models.registry import build_model
from mnagt.graphs.features import Features
from mnagt.graphs.batch import GraphBatch

def step(nodes):
    place = torch.arange(nodes)
    ends = torch.stack([torch.cat([place, place.roll(1)]), torch.cat([place.roll(1), place])])
    model(GraphBatch.from_edges(ends, [nodes])).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

torch.manual_seed(0)
model = build_model("mnagt", eval(sys.argv[2]), Features(), 2).train()
print((step(64) - step(int(sys.argv[1]))) // -1024)
"""


def grown(nodes: int, **settings: object) -> int:
    """MiB by which a step on a graph of ``nodes`` nodes makes a process grow."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(nodes), repr(settings)], capture_output=True, text=True, check=True, env=env
    )
    return int(done.stdout)


def test_a_step_on_4000_nodes_keeps_no_scores():
    scores = 4000**2 * 2 * 4 // 2**20  # two heads: 122 MiB, which the step without tiles takes five times
    assert grown(4000, depth=1, max_hop=0, wl_iterations=0, attention_dropout=0.1) < 2.5 * scores  # seen: 1.6 to 1.7


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"attention_dropout": 0.1, "depth": 1}, {"attention": "linear"}], ids=str)
def test_the_default_model_trains_on_a_graph_of_20000_nodes(settings):
    assert grown(20_000, **settings) < 3072
