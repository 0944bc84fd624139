"""A scaled branch added to its residual: the kernel answers to its twin in float64."""

import pytest
import torch
from strategies import generator
from torch import Tensor

from mnagt.ops import scale
from mnagt.ops.functional import scaled_add

pytestmark = pytest.mark.usefixtures("_kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 1e-6}


def inputs(rows: int, dim: int) -> list[Tensor]:
    shapes = [(rows, dim), (dim,), (rows, dim), (rows, dim)]
    return [torch.randn(shape, generator=generator(seed)).to(DEVICE) for seed, shape in enumerate(shapes)]


def outcome(function, tensors: list[Tensor], dy: Tensor) -> list[Tensor]:
    """The sum, and the gradients of all that went in."""
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = function(*tensors)
    return [y.detach(), *torch.autograd.grad(y, tensors, dy.to(y.dtype))]


def compare(*tensors: Tensor, dy: Tensor) -> None:
    got = outcome(scaled_add, list(tensors), dy)
    types = [t.dtype for t in outcome(lambda h, factor, residual: factor * h + residual, list(tensors), dy)]
    right = outcome(scaled_add, [t.double() for t in tensors], dy.to(got[0].dtype).double())
    for mine, value, dtype in zip(got, right, types, strict=True):
        assert (mine.shape, mine.dtype) == (value.shape, dtype)
        assert (mine - value).norm() <= CLOSE[dtype] * value.norm() + 1e-6


@pytest.mark.parametrize(
    ("rows", "dim", "programs"),
    [(1, 1, scale.PROGRAMS), (37, 5, 1), (129, 64, scale.PROGRAMS), (70, 100, 1), (3, 300, scale.PROGRAMS)],
)
def test_values_and_gradients_are_the_twins(monkeypatch, rows, dim, programs):
    monkeypatch.setattr(scale, "PROGRAMS", programs)
    *tensors, dy = inputs(rows, dim)
    compare(*tensors, dy=dy)


@pytest.mark.parametrize("branch", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_types_are_those_that_torch_would_give(branch, residual):
    h, factor, r, dy = inputs(41, 19)
    compare(h.to(branch), factor, r.to(residual), dy=dy)


def test_tensors_may_have_any_strides():
    h, factor, r, dy = inputs(23, 23)
    compare(h.T, factor, r.T, dy=dy.T)
