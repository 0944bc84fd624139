r"""A branch, each column times a learned number, added to what it branched from: :math:`Y = H \odot f + R`.

With :math:`g = \partial L / \partial y`: :math:`\dot h = f \odot g`, :math:`\dot r = g`, and, summed over rows,
:math:`\dot f = \sum_i g_i \odot h_i`. One launch forward and two backward: a program sums over its rows, the second
launch over the programs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnagt.ops import once_differentiable
from mnagt.ops.linear import add_up

ROWS, COLUMNS = 32, 64
"""Rows and columns that a program works on at a time: 16 numbers for each thread of four warps."""
PROGRAMS = 1056
"""About as many programs as run at once backward: eight on each of an H200's 132 processors."""


class ScaledAdd(torch.autograd.Function):
    """``factor * h + residual`` of at least one row, in the dtype that torch would give it."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, factor: Tensor, residual: Tensor) -> Tensor:
        h, residual = h.contiguous(), residual.contiguous()
        rows, dim = h.shape
        dtype = torch.promote_types(torch.promote_types(h.dtype, factor.dtype), residual.dtype)
        y = h.new_empty(rows, dim, dtype=dtype)
        columns, blocks = _columns(dim)
        with torch.cuda.device_of(h):
            _scaled_add[(triton.cdiv(rows, ROWS), blocks)](h, factor, residual, y, rows, dim, ROWS, columns)
        ctx.save_for_backward(h, factor)
        ctx.residual_type = residual.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, factor = ctx.saved_tensors
        dy = grads[0].contiguous()
        rows, dim = h.shape
        columns, blocks = _columns(dim)
        programs = min(triton.cdiv(rows, ROWS), max(PROGRAMS // blocks, 1))
        dh, dfactor = torch.empty_like(h), torch.empty_like(factor)
        dresidual = dy if ctx.residual_type == dy.dtype else torch.empty_like(dy, dtype=ctx.residual_type)
        sums = dy.new_empty(1, programs, dim, dtype=torch.float32)
        with torch.cuda.device_of(h):
            _scaled_add_backward[(programs, blocks)](
                dy, h, factor, dh, None if dresidual is dy else dresidual, sums, rows, dim, ROWS, columns
            )
            add_up(sums, dfactor, None)
        return dh, dfactor, dresidual


def _columns(dim: int) -> tuple[int, int]:
    """Columns of a program, and how many programs share a row."""
    columns = min(triton.next_power_of_2(dim), COLUMNS)
    return columns, triton.cdiv(dim, columns)


@triton.jit(do_not_specialize=["rows"])
def _scaled_add(
    h, factor, residual, y, rows, dim: tl.constexpr, rows_at_once: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    """Some rows, some columns."""
    column = tl.program_id(1) * columns + tl.arange(0, columns)[None, :]
    row = tl.program_id(0) * rows_at_once + tl.arange(0, rows_at_once)[:, None]
    at, mask = row.to(tl.int64) * dim + column, (row < rows) & (column < dim)
    f = tl.load(factor + column, mask=column < dim, other=0.0).to(tl.float32)
    out = f * tl.load(h + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + at, out + tl.load(residual + at, mask=mask, other=0.0).to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _scaled_add_backward(
    dy, h, factor, dh, dresidual, sums, rows, dim: tl.constexpr, rows_at_once: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    """Derivatives of every n-th block of rows, n programs being at it, and their part in that of the factor."""
    column = tl.program_id(1) * columns + tl.arange(0, columns)[None, :]
    f = tl.load(factor + column, mask=column < dim, other=0.0).to(tl.float32)
    total = tl.zeros([rows_at_once, columns], tl.float32)
    for start in range(tl.program_id(0) * rows_at_once, rows, tl.num_programs(0) * rows_at_once):
        row = start + tl.arange(0, rows_at_once)[:, None]
        at, mask = row.to(tl.int64) * dim + column, (row < rows) & (column < dim)
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        total += g * tl.load(h + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(dh + at, f * g, mask=mask)
        if dresidual is not None:
            tl.store(dresidual + at, g, mask=mask)
    tl.store(sums + tl.program_id(0) * dim + column, tl.sum(total, 0, keep_dims=True), mask=column < dim)
