r"""Sums of rows picked by a 0/1 matrix kept row by row: :math:`Y = M X` in one launch.

A program sums the ones of several short rows, or of one long row, side by side in a tile of registers; how many rows,
the average row says. Among short rows a very long one would keep the others waiting, so it is summed after them, with
the whole tile to itself.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError

TILE = 4096
"""Numbers that a program adds up at a time: 32 for each thread of four warps."""
COLUMNS = 64
"""Columns of a tile; wider inputs take several programs."""
SUM_TYPES = {torch.float16: tl.float32, torch.bfloat16: tl.float32, torch.float32: tl.float32, torch.float64: tl.float64}


def sum_rows(
    x: Float[Tensor, "columns dim"], index: Int[Tensor, "ones"], ptr: Int[Tensor, "rows_and_end"]
) -> Float[Tensor, "rows dim"]:
    r""":math:`y_i = \sum_j x_j` over the ``j`` in ``index[ptr[i]:ptr[i + 1]]``. Knows no gradient."""
    if x.dtype not in SUM_TYPES:
        raise InputError(f"sum_rows adds floating-point numbers, got {x.dtype}")
    rows, dim = len(ptr) - 1, x.shape[1]
    if len(index) == 0 or rows == 0 or dim == 0:
        return x.new_zeros(rows, dim)
    if x.stride(1) != 1:
        x = x.contiguous()
    y = x.new_empty(rows, dim)
    columns = min(triton.next_power_of_2(dim), COLUMNS)
    ones = TILE // columns
    together = ones // min(triton.next_power_of_2(triton.cdiv(len(index), rows)), ones)
    grid = (triton.cdiv(rows, together) * triton.cdiv(dim, columns),)
    with torch.cuda.device_of(x):
        _sum_rows[grid](
            x, index, ptr, y, rows, x.stride(0), dim, together, ones, columns, SUM_TYPES[x.dtype], num_warps=4
        )  # fmt: skip
    return y


def sum_rows_reference(
    x: Float[Tensor, "columns dim"], index: Int[Tensor, "ones"], ptr: Int[Tensor, "rows_and_end"]
) -> Float[Tensor, "rows dim"]:
    """The same in torch."""
    if len(index) == 0 or x.shape[1] == 0:
        return x.new_zeros(len(ptr) - 1, x.shape[1])
    return F.embedding_bag(index, x.contiguous(), ptr.to(index.dtype), mode="sum", include_last_offset=True)


@triton.jit(do_not_specialize=["rows"])
def _sum_rows(
    x, index, ptr, y, rows,
    x_stride: tl.constexpr, dim: tl.constexpr, together: tl.constexpr, ones: tl.constexpr, columns: tl.constexpr,
    sum_type: tl.constexpr,
):  # fmt: skip
    """``together`` rows side by side, ``ones // together`` ones of each at a time, then the very long among them."""
    blocks: tl.constexpr = (dim + columns - 1) // columns
    block = tl.program_id(0)
    column = (block % blocks) * columns + tl.arange(0, columns)
    first = (block // blocks) * together
    if together == 1:
        row = first + tl.arange(0, 1)
        _sum_tile(x, index, ptr, y, row, rows, column, 0, 2**31 - 1, x_stride, dim, ones, sum_type)
    else:
        most: tl.constexpr = 2 * ones
        row = first + tl.arange(0, together)
        longest = _sum_tile(
            x, index, ptr, y, row, rows, column, 0, most, x_stride, dim, ones // together, sum_type
        )  # fmt: skip
        if longest > most:
            for i in range(together):
                alone = first + i + tl.arange(0, 1)
                _sum_tile(x, index, ptr, y, alone, rows, column, most + 1, 2**31 - 1, x_stride, dim, ones, sum_type)


@triton.jit
def _sum_tile(
    x, index, ptr, y, row, rows, column,
    least: tl.constexpr, most: tl.constexpr, x_stride: tl.constexpr, dim: tl.constexpr, ones: tl.constexpr,
    sum_type: tl.constexpr,
):  # fmt: skip
    """Sum and store those rows that have ``least`` to ``most`` ones, ``ones`` at a time. Returns the longest length."""
    start = tl.load(ptr + row, mask=row < rows, other=0)
    length = (tl.load(ptr + row + 1, mask=row < rows, other=0) - start).to(tl.int32)
    is_mine = (row < rows) & (length >= least) & (length <= most)
    mine = tl.where(is_mine, length, 0)[None, :]
    is_column = (column < dim)[None, :]
    total = tl.zeros([ones, row.shape[0], column.shape[0]], sum_type)
    for done in range(0, tl.max(mine), ones):
        one = done + tl.arange(0, ones)[:, None]
        j = tl.load(index + start[None, :] + one, mask=one < mine, other=0).to(tl.int64)
        at = j[:, :, None] * x_stride + column[None, None, :]
        total += tl.load(x + at, mask=(one < mine)[:, :, None] & is_column[None, :, :], other=0.0).to(sum_type)
    at = row.to(tl.int64)[:, None] * dim + column[None, :]
    tl.store(y + at, tl.sum(total, 0), mask=is_mine[:, None] & is_column)
    return tl.max(length)
