"""Gradients of every backend are the slopes of what it computes."""

import pytest
import torch
from strategies import generator, random_batch

from mnagt.attention.attend import BACKENDS, attend
from mnagt.attention.linear_attention import linear_attend

SIZES = [4, 1, 2, 2]
GPU = "cuda" if torch.cuda.is_available() else "cpu"  # where Triton's interpreter takes its place
HEADS, HEAD_DIM = 2, 3


def inputs(has_bias: bool, dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    g, pairs = generator(0), sum(n * n for n in SIZES)
    shapes = [(sum(SIZES), HEADS, HEAD_DIM)] * 3 + [(pairs, HEADS)] * has_bias
    drawn = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes)
    return tuple(x.to(device, dtype).requires_grad_() for x in drawn)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("backend", sorted(BACKENDS.keys() - {"triton"}))
def test_gradients_are_slopes(backend, has_bias):
    graph = random_batch(SIZES, 0.5, seed=0)

    def attention(q, k, v, bias=None):
        return attend(q, k, v, graph, bias=bias, backend=backend)

    assert torch.autograd.gradcheck(attention, inputs(has_bias, torch.float64))


def test_gradients_of_linear_attention_are_slopes():
    graph = random_batch(SIZES, 0.5, seed=0)
    assert torch.autograd.gradcheck(lambda q, k, v: linear_attend(q, k, v, graph), inputs(False, torch.float64))


@pytest.mark.filterwarnings("ignore:.*not a double precision floating point")
@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_of_tritons_kernels_are_slopes(has_bias):
    """They know fp32 at best: slopes along a random direction, over a step that leaves three digits."""
    graph = random_batch(SIZES, 0.5, seed=0).to(GPU)

    def attention(q, k, v, bias=None):
        return attend(q, k, v, graph, bias=bias, backend="triton")

    assert torch.autograd.gradcheck(
        attention, inputs(has_bias, torch.float32, GPU), eps=1e-2, atol=2e-3, rtol=2e-3, fast_mode=True
    )
