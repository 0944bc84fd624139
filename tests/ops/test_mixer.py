"""The fused mixer answers to its twin in float64, and the twin to the mixer and scale of the model."""

from collections.abc import Sequence

import pytest
import torch
from strategies import generator
from torch import Tensor

from mnagt.attention.mixers import Adaptive
from mnagt.ops import mixer
from mnagt.ops.functional import mix

pytestmark = pytest.mark.usefixtures("_kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed))


def inputs(nodes: int, kernels: int, dim: int) -> list[Tensor]:
    """z, p, w, factor and residual; w is of the size that a model begins with."""
    shapes = [(nodes, kernels, dim), (nodes, kernels, dim), (dim,), (dim,), (nodes, dim)]
    z, p, w, factor, residual = (numbers(*shape, seed=seed).to(DEVICE) for seed, shape in enumerate(shapes))
    return [z, p, w / max(dim, 1) ** 0.5, factor, residual]


def outcome(function, tensors: Sequence[Tensor | None], dy: Tensor) -> list[Tensor]:
    """The mixture, and the gradients of all that went in."""
    tensors = [None if t is None else t.detach().requires_grad_() for t in tensors]
    y = function(*tensors)
    y.backward(dy)
    return [y.detach(), *(t.grad for t in tensors if t is not None)]  # type: ignore[list-item]


def compare(*tensors: Tensor | None, at: float = 1e-5) -> list[Tensor]:
    """Kernel and twin agree on the same numbers, to a part of their norm. Returns what the kernel gave."""
    exact = [None if t is None else t.double() for t in tensors]
    like = tensors[0] if tensors[4] is None else tensors[4]
    dy = mix(*exact).detach().to(like)  # type: ignore[arg-type]
    got, right = outcome(mix, tensors, dy), outcome(mix, exact, dy.double())
    for mine, value in zip(got, right, strict=True):
        part = {torch.bfloat16: 4e-3, torch.float16: 5e-4}.get(mine.dtype, at)
        assert mine.shape == value.shape
        assert (mine - value).norm() <= part * value.norm() + 1e-6
    return got


@pytest.mark.parametrize(("nodes", "kernels", "dim"), [(1, 3, 5), (37, 1, 1), (19, 2, 64), (23, 5, 100), (3, 2, 300)])
def test_values_and_gradients_are_the_twins(nodes, kernels, dim):
    compare(*inputs(nodes, kernels, dim))


@pytest.mark.parametrize(("factor", "residual"), [(False, False), (True, False), (False, True)])
def test_factor_and_residual_may_be_missing(factor, residual):
    z, p, w, f, r = inputs(13, 3, 7)
    compare(z, p, w, f if factor else None, r if residual else None)


def test_a_program_goes_through_many_nodes(monkeypatch):
    monkeypatch.setattr(mixer, "PROGRAMS", 2)
    compare(*inputs(47, 3, 100))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_at_the_end(dtype):
    got = compare(*(t.to(dtype) for t in inputs(13, 3, 67)))
    assert {t.dtype for t in got} == {dtype}


def test_the_mixture_is_of_the_residuals_type():
    z, p, *rest = inputs(13, 3, 67)
    got = compare(z.bfloat16(), p.bfloat16(), *rest)
    assert [t.dtype for t in got] == [torch.float32, torch.bfloat16, torch.bfloat16, *[torch.float32] * 3]


def test_kernels_may_come_first_in_memory():
    z, *rest = inputs(13, 3, 20)
    z = z.transpose(0, 1).contiguous().transpose(0, 1)
    assert compare(z, *rest)[1].stride() == z.stride()


def test_views_of_every_kind_are_taken():
    _, p, w, f, r = inputs(13, 3, 20)
    wide, turned = numbers(13, 7, 40).to(DEVICE), numbers(20, 13, 3).to(DEVICE).permute(1, 2, 0)
    compare(wide[:, 1:6:2, 3:23], turned, w, f, r)
    compare(wide[:1, :3, :20].expand(13, 3, 20), p, wide[0, 0, ::2], wide[0, 1, ::2], wide[:, 0, :1].expand(13, 20))


def test_large_scores_do_not_overflow():
    z, p, w, *rest = inputs(13, 3, 7)
    compare(z, 200 * p, 50 * w, *rest, at=1e-3)


def test_the_gradient_of_the_residual_is_handed_on():
    z, p, w, f, r = inputs(5, 3, 7)
    dy = torch.ones_like(r)
    (dr,) = torch.autograd.grad(mix(z, p, w, f, r.requires_grad_()), r, dy)
    assert dr.data_ptr() == dy.data_ptr()


def test_the_twin_is_the_mixer_of_the_model():
    z, _, _, f, r = inputs(13, 3, 7)
    model = Adaptive(7, 3).to(DEVICE)
    y = mix(z, model.project(z), model.score.weight[0], f, r)
    torch.testing.assert_close(y, f * (model.weights(z) * z).sum(dim=1) + r)
