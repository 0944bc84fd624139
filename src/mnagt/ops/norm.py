r"""Batch normalisation in training, over the first rows of a batch whose rest is padding; a ReLU may follow.

.. math:: y = \max(0, \gamma \hat x + \beta), \qquad \hat x_i = \rho\,(x_i - \mu), \qquad
          \rho = (\sigma^2 + \epsilon)^{-1/2}

with :math:`\mu, \sigma^2` over the :math:`n` valid rows. With :math:`g = \partial L / \partial y` where the ReLU lets
it through, and sums over all rows, for every row was made with :math:`\mu` and :math:`\rho`:

.. math:: \dot\beta = \sum_i g_i, \qquad \dot\gamma = \sum_i g_i \hat x_i, \qquad
          \dot x_i = \gamma \rho \, \bigl(g_i - [i < n]\,(\dot\beta + \hat x_i \dot\gamma) / n \bigr)

Two launches each way. In the first, a program leaves the statistics, or the two sums, of a share of the rows. In the
second, it puts together what all programs left for its columns, and goes through its rows again. Fewer than two valid
rows have no variance: then the running statistics stand in for it, and stay as they are.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnagt.ops import once_differentiable

COLUMNS = 32
"""Columns of a program."""
ROWS = 128
"""Rows that a program reads at a time: 16 numbers for each thread of eight warps."""
SHARES = 128
"""The most programs that share the rows of a column: each reads what all of them found."""
PROGRAMS = 264
"""About as many programs as run at once: two on each of an H200's 132 processors."""


class BatchNorm(torch.autograd.Function):
    """All rows normalised by the statistics of the first ``num_valid``, and the running ones kept in step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> Tensor:
        running_mean, running_var, num_valid, momentum, eps, ctx.relu, out_type = rest
        x = x.contiguous()
        rows, dim = x.shape
        shares, span, grid, sizes = _shares(rows, dim)
        found = x.new_empty(2, shares, dim, dtype=torch.float32)
        used = x.new_empty(2, dim, dtype=torch.float32)
        y = torch.empty_like(x, dtype=out_type)
        with torch.cuda.device_of(x):
            _find[grid](x, num_valid, found, rows, span, shares, dim, **sizes)
            _normalise[grid](
                x, weight, bias, running_mean, running_var, num_valid, found, used, y,
                rows, span, shares, momentum, eps, dim, ctx.relu, triton.next_power_of_2(shares), **sizes,
            )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, num_valid, used)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, num_valid, used = ctx.saved_tensors
        dy = grads[0].contiguous()
        rows, dim = x.shape
        shares, span, grid, sizes = _shares(rows, dim)
        found = torch.empty(2, shares, dim, dtype=torch.float32, device=x.device)
        dx = torch.empty_like(x)
        dweight = None if weight is None else torch.empty_like(weight)
        dbias = None if bias is None else torch.empty_like(bias)
        with torch.cuda.device_of(x):
            _find_backward[grid](dy, x, weight, bias, used, found, rows, span, shares, dim, ctx.relu, **sizes)
            _normalise_backward[grid](
                dy, x, weight, bias, num_valid, used, found, dx, dweight, dbias,
                rows, span, shares, dim, ctx.relu, triton.next_power_of_2(shares), **sizes,
            )  # fmt: skip
        return dx, dweight, dbias, *[None] * 7


def _shares(rows: int, dim: int) -> tuple[int, int, tuple[int, int], dict[str, int]]:
    """How many programs share the rows, how many rows each takes, the grid, and the sizes of a program."""
    columns = min(triton.next_power_of_2(dim), COLUMNS)
    blocks = triton.cdiv(dim, columns)
    shares = min(triton.cdiv(rows, ROWS), SHARES, max(PROGRAMS // blocks, 1))
    span = triton.cdiv(triton.cdiv(rows, shares), ROWS) * ROWS
    shares = triton.cdiv(rows, span)
    return shares, span, (blocks, shares), {"rows_at_once": ROWS, "columns": columns, "num_warps": 8}


@triton.jit(do_not_specialize=["rows", "span", "shares"])
def _find(
    x, num_valid, found, rows, span, shares,
    dim: tl.constexpr, rows_at_once: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Mean and summed squared deviations of the valid rows of a share: Welford's for each slot, then Chan's."""
    column, is_column, first, slot = _place(span, dim, rows_at_once, columns)
    end = tl.minimum(first + span, _count(num_valid, rows))
    mean = tl.zeros([rows_at_once, columns], tl.float32)
    squares = tl.zeros([rows_at_once, columns], tl.float32)
    for start in range(first, end, rows_at_once):
        row = start + slot
        mask = (row < end) & is_column
        value = tl.load(x + row.to(tl.int64) * dim + column, mask=mask, other=0.0).to(tl.float32)
        step = tl.where(mask, value - mean, 0.0)
        mean += step * (1.0 / ((start - first) // rows_at_once + 1))
        squares += step * (value - mean)
    n = tl.maximum(end - first - slot + rows_at_once - 1, 0) // rows_at_once
    mean, squares = _together(n.to(tl.float32), mean, squares)
    _leave(found, mean, squares, shares, dim, column, is_column)


@triton.jit(do_not_specialize=["rows", "span", "shares"])
def _normalise(
    x, weight, bias, running_mean, running_var, num_valid, found, used, y, rows, span, shares, momentum, eps,
    dim: tl.constexpr, relu: tl.constexpr, most_shares: tl.constexpr, rows_at_once: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """Statistics of the valid rows from those of the shares, kept in ``used``, and a share's rows normalised."""
    column, is_column, first, slot = _place(span, dim, rows_at_once, columns)
    n = _count(num_valid, rows)
    means, squares = _gather(found, shares, dim, most_shares, column, is_column)
    share = tl.arange(0, most_shares)[:, None]
    counts = tl.minimum(tl.maximum(n - share * span, 0), span).to(tl.float32)
    mean, squares = _together(counts, means, squares)
    old_mean, old_var = _vector(running_mean, 0.0, column, is_column), _vector(running_var, 1.0, column, is_column)
    is_spread = n >= 2
    if (first == 0) & is_spread:
        tl.store(running_mean + column, momentum * mean + (1 - momentum) * old_mean, mask=is_column)
        tl.store(running_var + column, momentum * squares / (n - 1) + (1 - momentum) * old_var, mask=is_column)
    mean = tl.where(is_spread, mean, old_mean)
    rstd = 1.0 / tl.sqrt(tl.where(is_spread, squares / tl.maximum(n, 2), old_var) + eps)
    if first == 0:
        tl.store(used + column, mean, mask=is_column)
        tl.store(used + dim + column, rstd, mask=is_column)
    gamma, beta = _vector(weight, 1.0, column, is_column), _vector(bias, 0.0, column, is_column)
    end = tl.minimum(first + span, rows)
    for start in range(first, end, rows_at_once):
        row = start + slot
        mask, at = (row < end) & is_column, row.to(tl.int64) * dim + column
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        out = (value - mean) * rstd * gamma + beta
        tl.store(y + at, tl.where(out < 0, 0.0, out) if relu else out, mask=mask)  # what is not a number stays so


@triton.jit(do_not_specialize=["rows", "span", "shares"])
def _find_backward(
    dy, x, weight, bias, used, found, rows, span, shares,
    dim: tl.constexpr, relu: tl.constexpr, rows_at_once: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """A share's part in the derivatives of bias and weight."""
    column, is_column, first, slot = _place(span, dim, rows_at_once, columns)
    mean, rstd = _vector(used, 0.0, column, is_column), _vector(used + dim, 1.0, column, is_column)
    gamma, beta = _vector(weight, 1.0, column, is_column), _vector(bias, 0.0, column, is_column)
    dbias = tl.zeros([rows_at_once, columns], tl.float32)
    dweight = tl.zeros([rows_at_once, columns], tl.float32)
    end = tl.minimum(first + span, rows)
    for start in range(first, end, rows_at_once):
        row = start + slot
        mask, at = (row < end) & is_column, row.to(tl.int64) * dim + column
        g, normal = _let_through(dy, x, at, mask, mean, rstd, gamma, beta, relu)
        dbias += g
        dweight += g * normal
    dbias, dweight = tl.sum(dbias, 0, keep_dims=True), tl.sum(dweight, 0, keep_dims=True)
    _leave(found, dbias, dweight, shares, dim, column, is_column)


@triton.jit(do_not_specialize=["rows", "span", "shares"])
def _normalise_backward(
    dy, x, weight, bias, num_valid, used, found, dx, dweight, dbias, rows, span, shares,
    dim: tl.constexpr, relu: tl.constexpr, most_shares: tl.constexpr, rows_at_once: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """Derivatives of bias and weight from those of the shares, and that of a share's rows."""
    column, is_column, first, slot = _place(span, dim, rows_at_once, columns)
    dbiases, dweights = _gather(found, shares, dim, most_shares, column, is_column)
    of_bias, of_weight = tl.sum(dbiases, 0, keep_dims=True), tl.sum(dweights, 0, keep_dims=True)
    if first == 0:
        if dbias is not None:
            tl.store(dbias + column, of_bias, mask=is_column)
        if dweight is not None:
            tl.store(dweight + column, of_weight, mask=is_column)
    n = _count(num_valid, rows)
    mean, rstd = _vector(used, 0.0, column, is_column), _vector(used + dim, 1.0, column, is_column)
    gamma, beta = _vector(weight, 1.0, column, is_column), _vector(bias, 0.0, column, is_column)
    end = tl.minimum(first + span, rows)
    for start in range(first, end, rows_at_once):
        row = start + slot
        mask, at = (row < end) & is_column, row.to(tl.int64) * dim + column
        g, normal = _let_through(dy, x, at, mask, mean, rstd, gamma, beta, relu)
        through_statistics = (of_bias + normal * of_weight) / tl.maximum(n, 2)
        out = gamma * rstd * (g - tl.where((row < n) & (n >= 2), through_statistics, 0.0))
        tl.store(dx + at, out, mask=mask)


@triton.jit
def _place(span, dim: tl.constexpr, rows_at_once: tl.constexpr, columns: tl.constexpr):
    """Of this program: its columns, as a row; which of them there are; its first row; a slot for each row at once."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)[None, :]
    return column, column < dim, tl.program_id(1) * span, tl.arange(0, rows_at_once)[:, None]


@triton.jit
def _count(num_valid, rows):
    """How many rows count."""
    return rows if num_valid is None else tl.minimum(tl.load(num_valid).to(tl.int32), rows)


@triton.jit
def _vector(values, default: tl.constexpr, column, is_column):
    """A number for each column, as a row; ``default`` for all where there are no values."""
    if values is None:
        out = tl.full(column.shape, default, tl.float32)
    else:
        out = tl.load(values + column, mask=is_column, other=default).to(tl.float32)
    return out


@triton.jit
def _together(n, mean, squares):
    """Chan: mean and squared deviations of a whole whose parts have ``n`` rows each."""
    whole = tl.sum(n * mean, 0, keep_dims=True) / tl.maximum(tl.sum(n, 0, keep_dims=True), 1.0)
    return whole, tl.sum(squares + n * (mean - whole) * (mean - whole), 0, keep_dims=True)


@triton.jit
def _leave(found, one, other, shares, dim: tl.constexpr, column, is_column):
    """Keep two numbers for each column of this share."""
    at = tl.program_id(1) * dim + column
    tl.store(found + at, one, mask=is_column)
    tl.store(found + shares * dim + at, other, mask=is_column)


@triton.jit
def _gather(found, shares, dim: tl.constexpr, most_shares: tl.constexpr, column, is_column):
    """What all shares left for these columns."""
    share = tl.arange(0, most_shares)[:, None]
    at, mask = share * dim + column, (share < shares) & is_column
    return tl.load(found + at, mask=mask, other=0.0), tl.load(found + shares * dim + at, mask=mask, other=0.0)


@triton.jit
def _let_through(dy, x, at, mask, mean, rstd, gamma, beta, relu: tl.constexpr):
    """What the ReLU lets through of ``dy``, and the normalised ``x``."""
    g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    normal = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
    if relu:
        g = tl.where(normal * gamma + beta > 0, g, 0.0)
    return g, normal
