"""Batch normalisation by Triton answers to its twin in float64, and the twin to torch's."""

from functools import partial

import pytest
import torch
from strategies import generator
from torch import Tensor, nn

from mnagt.ops import norm
from mnagt.ops.functional import batch_norm

pytestmark = pytest.mark.usefixtures("_kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ["y", "running_mean", "running_var", "dx", "dweight", "dbias"]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed)).double()


def outcome(function, tensors: list[Tensor | None], num_valid: Tensor | None, relu: bool) -> dict[str, Tensor | None]:
    """All that comes of going there and back: x, weight, bias, running_mean, running_var and dy go in."""
    x, weight, bias, mean, var, dy = (None if t is None else t.to(DEVICE, copy=True) for t in tensors)
    inputs = [None if t is None else t.requires_grad_() for t in (x, weight, bias)]
    y = function(*inputs, mean, var, num_valid, momentum=0.3, eps=1e-5, relu=relu)
    y.backward(dy)
    grads = [None if t is None else t.grad for t in inputs]
    return dict(zip(NAMES, [y.detach(), mean, var, *grads], strict=True))


def compare(x, num_valid=None, *, dtype=torch.float32, relu=False, weight=True, bias=True, at=1e-5) -> None:
    """Kernel and twin agree on the same numbers, those that ``dtype`` can hold."""
    rows, dim = x.shape
    vectors = [numbers(dim, seed=1) if weight else None, numbers(dim, seed=2) if bias else None]
    vectors += [numbers(dim, seed=3), numbers(dim, seed=4).exp()]
    tensors = [x.to(dtype), *(None if t is None else t.float() for t in vectors), numbers(rows, dim, seed=5).to(dtype)]
    n = None if num_valid is None else torch.tensor(num_valid, device=DEVICE)
    got = outcome(batch_norm, tensors, n, relu)
    right = outcome(batch_norm, [None if t is None else t.double() for t in tensors], n, relu)
    for name, value in right.items():
        mine = got[name]
        if value is None or mine is None:
            assert value is mine
            continue
        loose = 8e-3 if mine.dtype == torch.bfloat16 else 1e-3 if mine.dtype == torch.float16 else at
        torch.testing.assert_close(
            mine.double(), value, rtol=loose, atol=10 * at, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize(
    ("rows", "num_valid", "relu", "dim"),
    [(7, None, False, 1), (11, 5, False, 5), (11, 5, True, 64), (157, None, True, 300), (157, 131, False, 100)],
)
def test_values_statistics_and_gradients_are_the_twins(rows, num_valid, relu, dim):
    compare(numbers(rows, dim) + numbers(dim, seed=9), num_valid, relu=relu)


def test_the_outcome_may_be_rounded_at_once():
    dy = numbers(37, 7, seed=5).bfloat16()
    tensors = [t.float() for t in (numbers(37, 7), numbers(7), numbers(7), numbers(7), numbers(7).exp())]
    wide = outcome(batch_norm, [*tensors, dy.float()], None, relu=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        narrow = outcome(partial(batch_norm, is_autocast=True), [*tensors, dy], None, relu=True)
    assert wide["y"] is not None
    torch.testing.assert_close(narrow["y"], wide["y"].bfloat16())
    torch.testing.assert_close(narrow["dx"], wide["dx"])


@pytest.mark.parametrize("rows", [2, 5])
def test_two_rows_are_enough(rows):
    compare(numbers(rows, 7) + 10 * torch.arange(rows)[:, None], 2)


@pytest.mark.parametrize("num_valid", [None, 700, 601, 30])
def test_a_program_goes_through_many_rows(monkeypatch, num_valid):
    monkeypatch.setattr(norm, "PROGRAMS", 2)
    compare(numbers(701, 5), num_valid, relu=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_at_the_end(dtype):
    compare(numbers(37, 11), 31, dtype=dtype, relu=True)


@pytest.mark.parametrize(("weight", "bias"), [(False, False), (True, False), (False, True)])
def test_weight_and_bias_may_be_missing(weight, bias):
    compare(numbers(37, 11), weight=weight, bias=bias, relu=True)


@pytest.mark.parametrize(("rows", "num_valid"), [(1, None), (1, 1), (5, 1), (5, 0)])
def test_what_has_no_spread_is_normalised_as_in_evaluation(rows, num_valid):
    compare(numbers(rows, 7), num_valid)


def test_the_spread_is_found_far_from_zero():
    compare(numbers(1009, 3) + 1000, 997, at=1e-4)


def test_an_outlier_first_does_not_hide_the_spread():
    x = numbers(509, 3)
    x[0] = 1e5
    compare(x, at=1e-4)


def test_other_layouts_are_taken():
    compare(numbers(7, 37).T)
    compare(numbers(37, 17)[:, 3:10])


def test_rows_beyond_the_num_valid_do_not_move_the_rest():
    x, w, n = numbers(11, 3).float().to(DEVICE), torch.ones(3, device=DEVICE), torch.tensor(7, device=DEVICE)
    whole = batch_norm(x, w, None, w.clone(), w.clone(), n, momentum=0.1, eps=1e-5, relu=False)
    alone = batch_norm(x[:7], w, None, w.clone(), w.clone(), None, momentum=0.1, eps=1e-5, relu=False)
    torch.testing.assert_close(whole[:7], alone)


def test_the_twin_is_torchs_batch_norm():
    x, module = numbers(13, 5), nn.BatchNorm1d(5, momentum=0.3).double()
    mean, var = torch.zeros(5).double(), torch.ones(5).double()
    y = batch_norm(x, module.weight, module.bias, mean, var, None, momentum=0.3, eps=1e-5, relu=False)
    torch.testing.assert_close(y, module(x))
    torch.testing.assert_close(mean, module.running_mean)
    torch.testing.assert_close(var, module.running_var)
