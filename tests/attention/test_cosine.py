"""Attention by the angle of query and key."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from strategies import batches, generator

from mnagt.attention.kernels import Hop, Hops
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.batch import GraphBatch

DIM, KERNELS, HEADS, HEAD_DIM = 5, 2, 3, 4


def attention() -> MultiKernelAttention:
    torch.manual_seed(0)
    kernels = [Hop(k) for k in range(KERNELS)]
    made = MultiKernelAttention(DIM, kernels, heads=HEADS, head_dim=HEAD_DIM, variant="cosine").double()
    assert made.logit_scale is not None
    torch.nn.init.uniform_(made.logit_scale, 0.5, 5.0)
    return made


def nodes(graph: GraphBatch) -> torch.Tensor:
    return torch.randn(graph.num_nodes, DIM, generator=generator(1), dtype=torch.float64)


@given(batches())
def test_shares_are_the_softmax_of_cosines_times_what_a_head_learned(graph):
    ours, hops = attention(), Hops(nodes(graph), graph)
    assert ours.logit_scale is not None
    for g, found in enumerate(ours.weights(hops)):
        of_graph = slice(int(graph.node_ptr[g]), int(graph.node_ptr[g + 1]))
        for k in range(KERNELS):
            query, key = (
                (hops[k][of_graph] @ each.weight[k].T).unflatten(1, (HEADS, HEAD_DIM))
                for each in (ours.to_query, ours.to_key)
            )
            for h in range(HEADS):
                cosine = F.cosine_similarity(query[:, None, h], key[None, :, h], dim=-1)
                shares = (ours.logit_scale[k * HEADS + h] * cosine).softmax(dim=1)
                torch.testing.assert_close(found[k, h], shares, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grown", ["to_query", "to_key"])
@given(batches())
def test_weights_that_grow_make_attention_no_harder(grown, graph):
    ours, hops = attention(), Hops(nodes(graph), graph)
    before = ours(hops)
    with torch.no_grad():
        getattr(ours, grown).weight.mul_(100.0)
    torch.testing.assert_close(ours(hops), before, rtol=1e-3, atol=1e-3)
