"""Operations on rows of numbers. Each takes our Triton kernel on a GPU and plain torch elsewhere.

The torch code of a function is the twin that its kernel is tested against. Callers never ask which of them runs.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mnagt import ops

NumValid = Int[Tensor, ""] | None
"""How many rows, from the first, are real; the others are padding. None where all rows are real."""


def has_kernel(x: Tensor) -> bool:
    """Whether our kernels take ``x``: on a GPU that Triton knows, not empty, and not in double precision."""
    return ops.is_usable(x.device) and x.dtype != torch.float64 and x.numel() > 0


def linear(
    x: Float[Tensor, "*rows width_in"],
    weight: Float[Tensor, "*maps width_out width_in"],
    bias: Float[Tensor, "all_out"] | None = None,
) -> Float[Tensor, "*rows all_out"]:
    """``torch.nn.functional.linear``. The outputs of several maps are concatenated.

    >>> linear(torch.ones(5, 3), torch.ones(2, 4, 3)).shape
    torch.Size([5, 8])
    """
    if ops.is_usable(x.device):
        from mnagt.ops import linear as kernels

        if x.dim() == 3 and not x.is_contiguous() and x.transpose(0, 1).is_contiguous():  # saves a copy
            return kernels.linear(x.transpose(0, 1), weight, bias, ops.precision()).transpose(0, 1)
        return kernels.linear(x, weight, bias, ops.precision())
    return F.linear(x, weight.flatten(0, -2), bias)


def batched_linears(
    x: Float[Tensor, "kernels rows width_in"] | Sequence[Float[Tensor, "rows width_in"]],
    weights: Sequence[Float[Tensor, "weights width_out width_in"]],
) -> tuple[Float[Tensor, "kernels rows width_out"], ...]:
    """Several linear maps of the same ``x``, each with one weight for every kernel, or with one for all.

    On a CPU, one product after another is faster than a batched product (docs/log.md).
    """
    if ops.is_usable(weights[0].device):
        from mnagt.ops import linear as kernels

        return kernels.batched_linears(x if isinstance(x, Tensor) else torch.stack(list(x)), weights, ops.precision())
    return tuple(
        torch.stack([F.linear(rows, w) for rows, w in zip(x, weight.expand(len(x), -1, -1), strict=True)], dim=1)
        .transpose(0, 1)
        for weight in weights
    )  # fmt: skip


def scaled_add(
    branch: Float[Tensor, "rows dim"], factor: Float[Tensor, "dim"], residual: Float[Tensor, "rows dim"]
) -> Float[Tensor, "rows dim"]:
    """``residual + factor * branch``."""
    if has_kernel(branch):
        from mnagt.ops import scale as kernels

        return kernels.scaled_add(branch, factor, residual)
    return factor * branch + residual


def mix(
    z: Float[Tensor, "nodes kernels dim"],
    projected: Float[Tensor, "nodes kernels dim"],
    score: Float[Tensor, "dim"],
    factor: Float[Tensor, "dim"] | None = None,
    residual: Float[Tensor, "nodes dim"] | None = None,
) -> Float[Tensor, "nodes dim"]:
    r"""The adaptive mixer, eqs. 9 and 10, then LayerScale and residual if they are given.

    .. math:: y = f \odot \sum_k \alpha_k z^k + r, \qquad \alpha = \mathrm{softmax}_k(\tanh(p^k)\, w^\top)

    ``projected`` is :math:`p`, ``score`` :math:`w`, ``factor`` :math:`f` and ``residual`` :math:`r`. The result has the
    dtype of the residual, else that of ``z``.
    """
    if has_kernel(z):
        from mnagt.ops import mixer as kernels

        return kernels.mix(z, projected, score, factor, residual)
    y = (F.linear(projected.tanh(), score[None]).softmax(dim=1) * z).sum(dim=1)
    y = y if factor is None else factor * y
    return y.to(z.dtype) if residual is None else (y + residual).to(residual.dtype)


def layer_norm(
    x: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "dim"],
    bias: Float[Tensor, "dim"],
    eps: float,
    *,
    is_autocast: bool = False,
) -> Float[Tensor, "rows dim"]:
    """Layer normalisation of each row. With ``is_autocast`` the kernel writes the dtype that autocast multiplies in."""
    if has_kernel(x):
        from mnagt.ops import layer_norm as kernels

        if x.shape[1] <= kernels.WIDEST:
            return kernels.layer_norm(x, weight, bias, eps, ops.autocast_type(x.device) if is_autocast else None)
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def batch_norm(
    x: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "dim"] | None,
    bias: Float[Tensor, "dim"] | None,
    running_mean: Float[Tensor, "dim"],
    running_var: Float[Tensor, "dim"],
    num_valid: NumValid,
    *,
    momentum: float,
    eps: float,
    relu: bool,
    is_autocast: bool = False,
) -> Float[Tensor, "rows dim"]:
    """Batch normalisation in training, by the statistics of the valid rows, and ReLU if asked for.

    Updates the running statistics in place. Fewer than two rows have no variance: they are normalised by the running
    statistics, which then stay as they are.
    """
    if has_kernel(x):
        from mnagt.ops import norm as kernels

        out_type = ops.autocast_type(x.device) if is_autocast else None
        statistics = (running_mean, running_var, num_valid)
        return kernels.batch_norm(
            x, weight, bias, *statistics, momentum=momentum, eps=eps, relu=relu, out_type=out_type
        )
    if num_valid is None:
        has_variance = len(x) >= 2
        y = F.batch_norm(
            x, running_mean, running_var, weight, bias, has_variance, momentum if has_variance else 0.0, eps
        )
    else:
        y = _masked_batch_norm(x, running_mean, running_var, num_valid, momentum, eps)
        y = y if weight is None else y * weight
        y = y if bias is None else y + bias
    return y.relu() if relu else y


def _masked_batch_norm(
    x: Float[Tensor, "rows dim"],
    running_mean: Float[Tensor, "dim"],
    running_var: Float[Tensor, "dim"],
    num_valid: Int[Tensor, ""],
    momentum: float,
    eps: float,
) -> Float[Tensor, "rows dim"]:
    """All rows normalised by the statistics of the first ``num_valid``; no shape depends on their number."""
    is_valid = (torch.arange(len(x), device=x.device) < num_valid)[:, None]
    rows = num_valid.clamp(min=1)
    mean = torch.where(is_valid, x, 0).sum(dim=0) / rows
    var = torch.where(is_valid, (x - mean).square(), 0).sum(dim=0) / rows
    is_single = num_valid < 2
    mean, var = torch.where(is_single, running_mean, mean), torch.where(is_single, running_var, var)
    with torch.no_grad():
        step = torch.where(is_single, 0.0, momentum).to(running_mean.dtype)
        running_mean.lerp_(mean.detach().to(running_mean), step)
        unbiased = var.detach() * num_valid / (num_valid - 1).clamp(min=1)
        running_var.lerp_(unbiased.to(running_var), step)
    return (x - mean) * (var + eps).rsqrt()
