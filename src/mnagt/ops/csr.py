r"""Sums of rows picked by a 0/1 matrix kept row by row: :math:`Y = M X` in one launch, or with a diagonal around it.

A program sums several short rows, or one long row, in a tile of registers. Among short rows a very long one would keep
the others waiting, so it is summed after them, with the whole tile to itself.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnagt.errors import InputError
from mnagt.ops import DTYPES

TILE = 4096
"""Numbers that a program adds up at a time: 32 for each thread of four warps."""
COLUMNS = 64
"""Columns of a tile; wider inputs take several programs."""
SUM_TYPES = dict.fromkeys(DTYPES, tl.float32) | {torch.float64: tl.float64}


def sum_rows(
    x: Tensor, index: Tensor, ptr: Tensor, with_self: bool, before: Tensor | None, after: Tensor | None
) -> Tensor:
    """:func:`mnagt.ops.functional.sum_rows`."""
    if x.dtype not in SUM_TYPES:
        raise InputError(f"sum_rows adds floating-point numbers, got {x.dtype}")
    rows, dim = len(ptr) - 1, x.shape[1]
    if rows == 0 or dim == 0:
        return x.new_zeros(rows, dim)
    if x.stride(1) != 1:
        x = x.contiguous()
    y = x.new_empty(rows, dim)
    columns = min(triton.next_power_of_2(dim), COLUMNS)
    ones = TILE // columns
    together = ones // max(1, min(triton.next_power_of_2(triton.cdiv(len(index), rows)), ones))
    grid = (triton.cdiv(rows, together) * triton.cdiv(dim, columns),)
    with torch.cuda.device_of(x):
        _sum_rows[grid](
            x, index, ptr, y, before, after, rows,
            x.stride(0), dim, together, ones, columns, with_self, SUM_TYPES[x.dtype],
        )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["rows"])
def _sum_rows(
    x, index, ptr, y, before, after, rows,
    x_stride: tl.constexpr, dim: tl.constexpr, together: tl.constexpr, ones: tl.constexpr, columns: tl.constexpr,
    with_self: tl.constexpr, sum_type: tl.constexpr,
):  # fmt: skip
    """``together`` rows side by side, then the very long among them one by one; always ``ones`` ones at a time."""
    blocks: tl.constexpr = (dim + columns - 1) // columns
    program = tl.program_id(0)
    column = (program % blocks) * columns + tl.arange(0, columns)
    first = (program // blocks) * together
    if together == 1:
        row = first + tl.arange(0, 1)
        _sum_tile(x, index, ptr, y, before, after, row, rows, column, 0, 2**31 - 1,
                  x_stride, dim, ones, with_self, sum_type)  # fmt: skip
    else:
        most: tl.constexpr = 2 * ones
        row = first + tl.arange(0, together)
        share: tl.constexpr = ones // together
        longest = _sum_tile(x, index, ptr, y, before, after, row, rows, column, 0, most,
                            x_stride, dim, share, with_self, sum_type)  # fmt: skip
        if longest > most:
            for i in range(together):
                alone = first + i + tl.arange(0, 1)
                _sum_tile(x, index, ptr, y, before, after, alone, rows, column, most + 1, 2**31 - 1,
                          x_stride, dim, ones, with_self, sum_type)  # fmt: skip


@triton.jit
def _sum_tile(
    x, index, ptr, y, before, after, row, rows, column,
    least: tl.constexpr, most: tl.constexpr, x_stride: tl.constexpr, dim: tl.constexpr, ones: tl.constexpr,
    with_self: tl.constexpr, sum_type: tl.constexpr,
):  # fmt: skip
    """Sum and store those rows that have ``least`` to ``most`` ones, ``ones`` at a time. Returns the longest length."""
    start = tl.load(ptr + row, mask=row < rows, other=0)
    length = (tl.load(ptr + row + 1, mask=row < rows, other=0) - start).to(tl.int32)
    is_mine = (row < rows) & (length >= least) & (length <= most)
    mine = tl.where(is_mine, length, 0)[:, None]
    is_column = (column < dim)[None, :]
    is_there = is_mine[:, None] & is_column
    result = tl.zeros([row.shape[0], column.shape[0]], sum_type)
    if with_self:
        result += tl.load(x + row.to(tl.int64)[:, None] * x_stride + column[None, :], mask=is_there, other=0.0)
        if before is not None:
            result *= tl.load(before + row, mask=is_mine, other=0.0).to(sum_type)[:, None]
    total = tl.zeros([row.shape[0], ones, column.shape[0]], sum_type)
    for done in range(0, tl.max(mine), ones):
        one = done + tl.arange(0, ones)[None, :]
        j = tl.load(index + start[:, None] + one, mask=one < mine, other=0).to(tl.int64)
        at = j[:, :, None] * x_stride + column[None, None, :]
        number = tl.load(x + at, mask=(one < mine)[:, :, None] & is_column[:, None, :], other=0.0).to(sum_type)
        if before is not None:
            number *= tl.load(before + j, mask=one < mine, other=0.0).to(sum_type)[:, :, None]
        total += number
    result += tl.sum(total, 1)
    if after is not None:
        result *= tl.load(after + row, mask=is_mine, other=0.0).to(sum_type)[:, None]
    tl.store(y + row.to(tl.int64)[:, None] * dim + column[None, :], result, mask=is_there)
    return tl.max(length)
