r"""Layer normalisation: every row by its own mean and spread.

.. math:: y = \gamma \odot \hat x + \beta, \qquad \hat x = \rho\,(x - \mu), \qquad \rho = (\sigma^2 + \epsilon)^{-1/2}

With :math:`g = \gamma \odot \partial L / \partial y`, means over the columns of a row and sums over all rows:

.. math:: \dot x = \rho\,\bigl(g - \overline{g} - \hat x\,\overline{g \hat x}\bigr), \qquad
          \dot\gamma = \sum \frac{\partial L}{\partial y} \odot \hat x, \qquad
          \dot\beta = \sum \frac{\partial L}{\partial y}

A program holds whole rows. One launch forward; backward a second one adds up what each program summed over its rows.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnagt.ops import once_differentiable
from mnagt.ops.linear import add_up

TILE, TILE_BACK = 2048, 4096
"""Numbers that a program reads at a time, forward and backward: 16 and 32 for each thread of four warps."""
PROGRAMS = 264
"""The most programs backward, each with sums of its own: two on each of an H200's 132 processors."""
WIDEST = 2048


class LayerNorm(torch.autograd.Function):
    """Every row normalised, in float32 within; the result is of ``out_type``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out_type: torch.dtype) -> Tensor:
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        rows, dim = x.shape
        y, used = torch.empty_like(x, dtype=out_type), x.new_empty(2, rows, dtype=torch.float32)
        sizes = _sizes(dim, TILE)
        with torch.cuda.device_of(x):
            _normalise[(triton.cdiv(rows, sizes["block"]),)](x, weight, bias, y, used, rows, eps, **sizes)
        ctx.save_for_backward(x, weight, used)
        ctx.bias_type = bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, used = ctx.saved_tensors
        rows, dim = x.shape
        dy, dx = grads[0].contiguous(), torch.empty_like(x)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight, dtype=ctx.bias_type)
        sizes = _sizes(dim, TILE_BACK)
        programs = min(triton.cdiv(rows, sizes["block"]), PROGRAMS)
        sums = torch.empty(1, programs, 2 * dim, dtype=torch.float32, device=x.device)
        with torch.cuda.device_of(x):
            _normalise_backward[(programs,)](dy, x, weight, used, dx, sums, rows, **sizes)
            add_up(sums, dweight, dbias)
        return dx, dweight, dbias, None, None


def _sizes(dim: int, tile: int) -> dict[str, int]:
    """What a program works on, known when it is compiled."""
    columns = triton.next_power_of_2(dim)
    return {"dim": dim, "block": max(tile // columns, 1), "columns": columns}


@triton.jit(do_not_specialize=["rows"])
def _normalise(
    x, weight, bias, y, used, rows, eps, dim: tl.constexpr, block: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    """Normalise a block of rows; their means and spreads are kept in ``used``."""
    row, column = tl.program_id(0) * block + tl.arange(0, block)[:, None], tl.arange(0, columns)[None, :]
    is_column, mask = column < dim, (row < rows) & (column < dim)
    at = row.to(tl.int64) * dim + column
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, 1, keep_dims=True) / dim
    value = tl.where(is_column, value - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(value * value, 1, keep_dims=True) / dim + eps)
    gamma = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    beta = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(y + at, value * rstd * gamma + beta, mask=mask)
    tl.store(used + row, mean, mask=row < rows)
    tl.store(used + rows + row, rstd, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _normalise_backward(
    dy, x, weight, used, dx, sums, rows, dim: tl.constexpr, block: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    """Derivatives of every n-th block of rows, and this program's part in those of weight and bias."""
    column = tl.arange(0, columns)[None, :]
    is_column = column < dim
    gamma = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    dweight = tl.zeros([block, columns], tl.float32)
    dbias = tl.zeros([block, columns], tl.float32)
    for start in range(tl.program_id(0) * block, rows, tl.num_programs(0) * block):
        row = start + tl.arange(0, block)[:, None]
        mask, at = (row < rows) & is_column, row.to(tl.int64) * dim + column
        out = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(used + row, mask=row < rows, other=0.0)
        rstd = tl.load(used + rows + row, mask=row < rows, other=0.0)
        normal = tl.where(is_column, (value - mean) * rstd, 0.0)
        dweight += out * normal
        dbias += out
        g = out * gamma
        along = tl.sum(g * normal, 1, keep_dims=True) / dim
        tl.store(dx + at, rstd * (g - tl.sum(g, 1, keep_dims=True) / dim - normal * along), mask=mask)
    sums += tl.program_id(0) * 2 * dim + column
    tl.store(sums, tl.sum(dweight, 0, keep_dims=True), mask=is_column)
    tl.store(sums + dim, tl.sum(dbias, 0, keep_dims=True), mask=is_column)
