"""Linear layers answer to torch's in float64, with their gradients."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from strategies import generator
from torch import Tensor

from mnagt import ops
from mnagt.ops import linear as module
from mnagt.ops.functional import batched_linears, linear

pytestmark = pytest.mark.usefixtures("_kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {torch.bfloat16: 6e-3, torch.float16: 1e-3, torch.float32: 5e-4}
"""Errors as parts of a norm: float32 is rounded to tf32."""


@pytest.fixture
def _no_kernel(monkeypatch):
    monkeypatch.setattr(module, "_multiply_over_rows", None)
    monkeypatch.setattr(module, "_sum_over_rows", None)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed)).to(DEVICE)


def inputs(rows: int, ins: int, outs: int) -> list[Tensor]:
    return [numbers(rows, ins), numbers(outs, ins, seed=1), numbers(outs, seed=2)]


def fast(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(x, weight, bias) if weight.ndim == 2 else batched_linears(x, [weight])[0]


def slow(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias) if weight.ndim == 2 else torch.matmul(x, weight.mT)


def outcome(function, tensors: Sequence[Tensor], dy: Tensor) -> list[Tensor]:
    """The output, and the gradients of all that went in."""
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = function(*tensors)
    return [y.detach(), *torch.autograd.grad(y, tensors, dy)]


def compare(tensors: Sequence[Tensor], dy: Tensor | None = None) -> None:
    """Kernel and twin agree on the same numbers, those that their type can hold."""
    dy = slow(*tensors) if dy is None else dy
    got, right = outcome(fast, tensors, dy), outcome(slow, [t.double() for t in tensors], dy.double())
    for mine, value, like in zip(got, right, [tensors[0], *tensors], strict=True):
        assert (mine.shape, mine.dtype) == (value.shape, like.dtype)
        assert (mine - value).norm() <= CLOSE[mine.dtype] * value.norm()


@pytest.mark.parametrize(("rows", "ins", "outs"), [(1, 5, 67), (37, 1, 1), (37, 64, 7), (131, 5, 67), (131, 100, 37)])
def test_values_and_gradients_are_torchs(rows, ins, outs):
    compare(inputs(rows, ins, outs))
    compare(inputs(rows, ins, outs)[:2])


@pytest.mark.parametrize("programs", [1, 3, 8])
@pytest.mark.parametrize("large", [0, module.LARGE])
def test_whole_numbers_are_exact_however_rows_are_split(monkeypatch, programs, large):
    monkeypatch.setattr(module, "PROGRAMS", programs)
    monkeypatch.setattr(module, "LARGE", large)
    for tensors in (inputs(211, 5, 67), [numbers(3, 211, 5), numbers(1, 7, 5)], [numbers(3, 211, 5), numbers(3, 7, 5)]):
        whole = [(10 * t).round() for t in tensors]
        dy = slow(*whole).sign()
        assert all(map(torch.equal, outcome(fast, whole, dy), outcome(slow, whole, dy)))


def test_large_weights_are_left_to_torch_and_their_bias_is_not(monkeypatch):
    tensors = inputs(137, 191, 181)
    assert tensors[1].numel() > module.LARGE
    compare(tensors)
    compare([t.bfloat16() for t in tensors])
    compare(tensors, numbers(181, 137).T)
    monkeypatch.setattr(module, "_multiply_over_rows", None)
    compare(inputs(1, 191, 181))
    compare([numbers(3, 7, 191), numbers(1, 181, 191)])


@pytest.mark.parametrize("copies", [1, 3])
def test_several_maps_of_the_same_rows_add_their_gradients_up(copies):
    def sides(function, x, *weights):
        return torch.cat(function(x, weights), dim=2)

    tensors = [numbers(3, 37, 5), numbers(copies, 7, 5, seed=1), numbers(copies, 11, 5, seed=2)]
    together = partial(sides, batched_linears)
    apart = partial(sides, lambda x, weights: [slow(x, weight) for weight in weights])
    dy = numbers(3, 37, 18, seed=3)
    for mine, value in zip(outcome(together, tensors, dy), outcome(apart, tensors, dy), strict=True):
        assert (mine - value).norm() <= CLOSE[torch.float32] * value.norm()


def test_tf32_is_the_nearest():
    x = numbers(1, 1009)
    (dweight,) = outcome(fast, (x, x), torch.ones(1, 1, device=DEVICE))[2:]
    step = 2.0 ** (x.abs().log2().floor() - 10)
    torch.testing.assert_close(dweight, (x.double() / step).round().float() * step, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_hidden(number):
    x = torch.full((1, 3), number, device=DEVICE)
    (dweight,) = outcome(fast, (x, numbers(2, 3)), torch.ones(1, 2, device=DEVICE))[2:]
    torch.testing.assert_close(dweight, x.expand(2, 3), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_at_the_end(dtype):
    compare([t.to(dtype) for t in inputs(137, 11, 37)])
    compare([numbers(3, 137, 11).to(dtype), numbers(3, 37, 11).to(dtype)])


def test_any_number_of_axes_counts_rows():
    compare([numbers(3, 11, 5), *inputs(1, 5, 7)[1:]])
    compare([numbers(5), *inputs(1, 5, 7)[1:]])


@pytest.mark.parametrize("x", [numbers(37, 17)[:, 3:8], numbers(5, 37).T, numbers(1, 5).expand(37, 5)])
def test_views_of_every_kind_are_taken(x):
    _, weight, bias = inputs(1, 5, 7)
    compare([x, weight, bias])
    compare([x, numbers(5, 7).T, bias], numbers(7, 37).T)
    compare([x, weight, bias], numbers(1, 1).expand(37, 7))


@pytest.mark.parametrize("weights", [1, 3])
def test_kernels_have_a_weight_each_or_share_one(weights):
    for rows in (1, 41, 137):
        compare([numbers(3, rows, 5), numbers(weights, 67, 5)])


def test_one_input_goes_through_all_weights():
    compare([numbers(1, 137, 5), numbers(3, 7, 5)])


@pytest.mark.parametrize("weights", [1, 3])
def test_kernels_may_lie_in_any_order(weights):
    weight = numbers(weights, 7, 5)
    compare([numbers(137, 3, 5).transpose(0, 1), weight], numbers(137, 3, 7).transpose(0, 1))
    compare([numbers(1, 137, 11)[:, :, 2:7].expand(3, -1, -1), weight], numbers(3, 1, 7).expand(3, 137, 7))


def test_the_same_input_gives_the_same_gradients():
    x, weight, bias = inputs(509, 37, 11)
    one, other = (outcome(fast, (x, weight, bias), numbers(509, 11, seed=3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("wanted", [[0], [1], [2], [0, 2]])
def test_only_gradients_asked_for_are_given(wanted):
    tensors = inputs(37, 5, 7)
    for place in wanted:
        tensors[place].requires_grad_()
    fast(*tensors).sum().backward()
    assert [place for place, t in enumerate(tensors) if t.grad is not None] == wanted


@pytest.mark.usefixtures("_no_kernel")
def test_no_rows_give_gradients_of_zero():
    for tensors in (inputs(0, 5, 7), [numbers(3, 0, 5), numbers(1, 7, 5)]):
        y, dx, *grads = outcome(fast, tensors, slow(*tensors))
        assert y.numel() == dx.numel() == 0
        assert all(grad.shape == t.shape and not grad.any() for grad, t in zip(grads, tensors[1:], strict=True))


@pytest.mark.usefixtures("_no_kernel")
def test_torch_takes_what_the_kernels_do_not(monkeypatch):
    tensors = inputs(37, 5, 7)
    for some in ([t.double() for t in tensors], inputs(3, 5, 0)):
        torch.testing.assert_close(outcome(fast, some, slow(*some)), outcome(slow, some, slow(*some)))
    monkeypatch.setattr(ops, "precision", lambda: "ieee")
    exact = outcome(fast, tensors, slow(*tensors))
    torch.testing.assert_close(exact, outcome(slow, tensors, slow(*tensors)), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_is_torchs_autocast(dtype):
    for x, *rest in (inputs(137, 11, 37), [numbers(3, 137, 11), numbers(1, 37, 11)]):
        tensors, dy = [x.to(dtype), *rest], slow(x, *rest).bfloat16()
        with torch.autocast(DEVICE, torch.bfloat16):
            got, right = outcome(fast, tensors, dy), outcome(slow, tensors, dy)
        assert [t.dtype for t in got] == [t.dtype for t in right]
        assert got[0].dtype == torch.bfloat16
        for mine, value in zip(got, right, strict=True):
            assert (mine - value).norm() <= CLOSE[torch.bfloat16] * value.norm()


def test_autocast_around_the_backward_pass_alone_rounds_nothing():
    x, weight, _ = (t.requires_grad_() for t in inputs(37, 5, 7))
    y, dy = linear(x, weight), numbers(37, 7)
    with torch.autocast(DEVICE, torch.bfloat16):
        y.backward(dy)
    torch.testing.assert_close(x.grad, dy @ weight)
