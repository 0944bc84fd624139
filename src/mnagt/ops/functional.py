"""Operations on rows of numbers. Each takes our Triton kernel on a GPU and plain torch elsewhere.

The torch code of a function is the twin that its kernel is tested against. Callers never ask which of them runs.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mnagt import ops
from mnagt.ops import parameter_copies

Rows = Float[Tensor, "rows dim"]
Vector = Float[Tensor, "dim"]
NumValid = Int[Tensor, ""] | None
"""How many rows, from the first, are real; the others are padding. None where all rows are real."""


def has_kernel(x: Tensor, *others: Tensor) -> bool:
    """Whether our kernels take these tensors: on a GPU that Triton knows, not empty, and not in double precision."""
    return ops.is_usable(x.device) and x.numel() > 0 and all(t.dtype in ops.DTYPES for t in (x, *others))


def linear(
    x: Float[Tensor, "*rows width_in"],
    weight: Float[Tensor, "*maps width_out width_in"],
    bias: Float[Tensor, "all_out"] | None = None,
) -> Float[Tensor, "*rows all_out"]:
    """``torch.nn.functional.linear``. The outputs of several maps are concatenated.

    >>> linear(torch.ones(5, 3), torch.ones(2, 4, 3)).shape
    torch.Size([5, 8])
    """
    if not ops.is_usable(x.device):
        return F.linear(x, weight.flatten(0, -2), bias)
    if x.dim() == 3 and not x.is_contiguous() and x.transpose(0, 1).is_contiguous():  # saves a copy
        return linear(x.transpose(0, 1), weight, bias).transpose(0, 1)
    x = _cast_for_autocast(x)
    if not _is_fast(x, weight):
        return F.linear(x, weight.flatten(0, -2), bias)
    from mnagt.ops import linear as kernels

    copies = (None if t is None else parameter_copies.cast(t, x.dtype) for t in (weight, bias))
    return kernels.LinearFunction.apply(x, weight, bias, *copies)  # type: ignore[return-value]


def batched_linears(
    x: Float[Tensor, "kernels rows width_in"] | Sequence[Float[Tensor, "rows width_in"]],
    weights: Sequence[Float[Tensor, "weights width_out width_in"]],
) -> tuple[Float[Tensor, "kernels rows width_out"], ...]:
    """Several linear maps of the same ``x``, each with one weight for every kernel, or with one for all.

    On a CPU, one product after another is faster than a batched product (docs/log.md). On a GPU the first two axes of
    ``x`` may lie in memory in any order, and an ``x`` of one kernel goes through all weights.
    """
    if not ops.is_usable(weights[0].device):
        return tuple(
            torch.stack([F.linear(rows, w) for rows, w in zip(x, weight.expand(len(x), -1, -1), strict=True)], dim=1)
            .transpose(0, 1)
            for weight in weights
        )  # fmt: skip
    x = _cast_for_autocast(x if isinstance(x, Tensor) else torch.stack(list(x)))
    if len(x) == 1:
        x = x.expand(len(weights[0]), -1, -1)
    if not all(_is_fast(x, weight) for weight in weights):
        return tuple(torch.matmul(x, weight.mT) for weight in weights)
    from mnagt.ops import linear as kernels

    copies = [parameter_copies.cast(weight, x.dtype) for weight in weights]
    return kernels.BatchedLinears.apply(x, copies, *weights)  # type: ignore[return-value]


def _cast_for_autocast(x: Tensor) -> Tensor:
    return x.to(ops.autocast_type(x.device) or x.dtype) if x.dtype in ops.DTYPES else x


def _is_fast(x: Tensor, weight: Tensor) -> bool:
    """Whether there is something to multiply, and fast: where float32 may not be rounded to tf32, Triton is slow."""
    is_rounded = x.dtype != torch.float32 or ops.precision() == "tf32"
    return x.dtype in ops.DTYPES and is_rounded and x.numel() > 0 and weight.numel() > 0


def sum_rows(
    x: Float[Tensor, "columns dim"],
    index: Int[Tensor, "ones"],
    ptr: Int[Tensor, "rows_and_end"],
    with_self: bool = False,
    before: Float[Tensor, "columns"] | None = None,
    after: Float[Tensor, "rows"] | None = None,
) -> Rows:
    r""":math:`y_i = a_i \sum_j b_j x_j` over the ``j`` in ``index[ptr[i]:ptr[i + 1]]``. Knows no gradient.

    ``with_self`` adds j = i to every row; ``before`` is b and ``after`` a, both 1 where not given.
    """
    if ops.is_usable(x.device):
        from mnagt.ops import csr

        return csr.sum_rows(x, index, ptr, with_self, before, after)
    x = x if before is None else before[:, None].to(x.dtype) * x
    if len(index) and x.shape[1]:
        y = F.embedding_bag(index, x.contiguous(), ptr, mode="sum", include_last_offset=True)
    else:
        y = x.new_zeros(len(ptr) - 1, x.shape[1])
    y = y + x if with_self else y
    return y if after is None else after[:, None].to(x.dtype) * y


def scaled_add(branch: Rows, factor: Vector, residual: Rows) -> Rows:
    """``residual + factor * branch``."""
    if has_kernel(branch, factor, residual):
        from mnagt.ops import scale as kernels

        return kernels.ScaledAdd.apply(branch, factor, residual)  # type: ignore[return-value]
    return factor * branch + residual


def mix(
    z: Float[Tensor, "nodes kernels dim"],
    projected: Float[Tensor, "nodes kernels dim"],
    score: Vector,
    factor: Vector | None = None,
    residual: Float[Tensor, "nodes dim"] | None = None,
) -> Float[Tensor, "nodes dim"]:
    r"""The adaptive mixer, eqs. 9 and 10, then LayerScale and residual if they are given.

    .. math:: y = f \odot \sum_k \alpha_k z^k + r, \qquad \alpha = \mathrm{softmax}_k(\tanh(p^k)\, w^\top)

    ``projected`` is :math:`p`, ``score`` :math:`w`, ``factor`` :math:`f` and ``residual`` :math:`r`. The result has the
    dtype of the residual, else that of ``z``.
    """
    if has_kernel(z):
        from mnagt.ops import mixer as kernels

        return kernels.Mix.apply(z, projected, score, factor, residual)  # type: ignore[return-value]
    y = (F.linear(projected.tanh(), score[None]).softmax(dim=1) * z).sum(dim=1)
    y = y if factor is None else factor * y
    return y.to(z.dtype) if residual is None else (y + residual).to(residual.dtype)


def layer_norm(x: Rows, weight: Vector, bias: Vector, eps: float, *, is_autocast: bool = False) -> Rows:
    """Layer normalisation of each row. With ``is_autocast`` the kernel writes the dtype that autocast multiplies in."""
    if has_kernel(x):
        from mnagt.ops import layer_norm as kernels

        if x.shape[1] <= kernels.WIDEST:
            return kernels.LayerNorm.apply(x, weight, bias, eps, _out_dtype(x, is_autocast))  # type: ignore[return-value]
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def batch_norm(
    x: Rows,
    weight: Vector | None,
    bias: Vector | None,
    running_mean: Vector,
    running_var: Vector,
    num_valid: NumValid,
    *,
    momentum: float,
    eps: float,
    relu: bool,
    is_autocast: bool = False,
) -> Rows:
    """Batch normalisation in training, by the statistics of the valid rows, and ReLU if asked for.

    Updates the running statistics in place. Fewer than two rows have no variance: they are normalised by the running
    statistics, which then stay as they are. In PyTorch's deterministic mode sums on a CPU do not depend on the number
    of threads.
    """
    statistics = (running_mean, running_var)
    if has_kernel(x):
        from mnagt.ops import norm as kernels

        settings = (momentum, eps, relu, _out_dtype(x, is_autocast))
        return kernels.BatchNorm.apply(x, weight, bias, *statistics, num_valid, *settings)  # type: ignore[return-value]
    if num_valid is None and x.device.type == "cpu" and torch.are_deterministic_algorithms_enabled():
        num_valid = torch.tensor(len(x))  # F.batch_norm sums thread by thread
    if num_valid is None:
        has_variance = len(x) >= 2
        y = F.batch_norm(x, *statistics, weight, bias, has_variance, momentum if has_variance else 0.0, eps)
    else:
        y = _masked_batch_norm(x, *statistics, num_valid, momentum, eps)
        y = y if weight is None else y * weight
        y = y if bias is None else y + bias
    return y.relu() if relu else y


def _out_dtype(x: Tensor, is_autocast: bool) -> torch.dtype:
    return ops.autocast_type(x.device) or x.dtype if is_autocast else x.dtype


def _masked_batch_norm(
    x: Rows, running_mean: Vector, running_var: Vector, num_valid: Int[Tensor, ""], momentum: float, eps: float
) -> Rows:
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
