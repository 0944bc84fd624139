"""Layer normalisation by Triton answers to torch's in float64."""

import pytest
import torch
from strategies import generator
from torch import Tensor

from mnagt.ops import layer_norm as module
from mnagt.ops.functional import layer_norm

pytestmark = pytest.mark.usefixtures("_kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONE = 1e-4
"""What may be left of a row without spread: a GPU's mean is off by its last bit, and 1e-5 under a root is little."""


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed)).to(DEVICE)


def outcome(function, tensors: list[Tensor], dy: Tensor) -> list[Tensor]:
    """The output, and the gradients of x, weight and bias."""
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = function(*tensors, 1e-5)
    return [y.detach(), *torch.autograd.grad(y, tensors, dy)]


def compare(x: Tensor, dy: Tensor | None = None, dtype: torch.dtype = torch.float32, part: float = 1e-6) -> None:
    """Kernel and twin agree on the same numbers, those that their type can hold."""
    weight, bias = numbers(x.shape[1], seed=1).to(dtype), numbers(x.shape[1], seed=2).to(dtype)
    dy = (numbers(*x.shape, seed=3) if dy is None else dy).to(x.dtype)
    got = outcome(layer_norm, [x, weight, bias], dy)
    right = outcome(layer_norm, [x.double(), weight.double(), bias.double()], dy.double())
    for mine, value, like in zip(got, right, [x, x, weight, bias], strict=True):
        assert (mine.shape, mine.dtype) == (value.shape, like.dtype)
        close = {torch.bfloat16: 5e-3, torch.float16: 1e-3}.get(mine.dtype, part)
        assert (mine - value).norm() <= close * value.norm() + (LONE * len(x) if x.shape[1] == 1 else 1e-6)


@pytest.mark.parametrize(("rows", "dim"), [(1, 5), (7, 1), (131, 64), (37, 100), (7, 307)])
def test_values_and_gradients_are_the_twins(rows, dim):
    compare(numbers(rows, dim))


def test_a_row_may_fill_a_program():
    compare(numbers(3, module.WIDEST))


def test_a_program_goes_through_many_rows(monkeypatch):
    monkeypatch.setattr(module, "PROGRAMS", 3)
    compare(numbers(509, 61))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_at_the_end(dtype):
    compare(numbers(37, 67).to(dtype))
    compare(numbers(37, 67).to(dtype), dtype=dtype)


def test_the_outcome_may_be_rounded_at_once():
    x, weight, bias = numbers(37, 67), numbers(67, seed=1), numbers(67, seed=2)
    dy = numbers(37, 67, seed=3).bfloat16()
    got = outcome(lambda *t: module.LayerNorm.apply(*t, torch.bfloat16), [x, weight, bias], dy)
    right = outcome(layer_norm, [x, weight, bias], dy.float())
    torch.testing.assert_close(got[0], right[0].bfloat16())
    assert all(map(torch.equal, got[1:], right[1:]))


def test_views_of_every_kind_are_taken():
    compare(numbers(7, 37).T)
    compare(numbers(37, 17)[:, 3:10])
    compare(numbers(37, 7), numbers(7, 37).T)
    compare(numbers(37, 7), numbers(1, 1).expand(37, 7))


def test_the_spread_is_found_far_from_zero():
    compare(numbers(37, 67) + 1000, part=1e-3)


def test_rows_without_spread_become_the_bias():
    x, weight, bias = torch.full((3, 5), 7.0, device=DEVICE), numbers(5), numbers(5, seed=1)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-5), bias.expand(3, 5), rtol=0, atol=10 * LONE)


def test_the_same_input_gives_the_same_gradients():
    tensors, dy = [numbers(509, 37), numbers(37), numbers(37)], numbers(509, 37, seed=3)
    one, other = (outcome(layer_norm, tensors, dy) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_wider_rows_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(module, "LayerNorm", None)
    compare(numbers(3, module.WIDEST + 1))
