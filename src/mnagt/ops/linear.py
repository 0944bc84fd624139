r"""Linear layers over many rows with few columns: torch's products, but the gradients of weight and bias by Triton.

.. math:: Y = X W^\top + b, \qquad \dot X = \dot Y W, \qquad \dot W = \dot Y^\top X, \qquad \dot b = \sum_i \dot y_i

:math:`\dot W` is small, and each of its numbers a sum over all rows. So the rows are split: a program makes a tile of
:math:`\dot W`, and a piece of :math:`\dot b`, over one split, and a second launch adds the splits up, always in one
order. Where :math:`W` is large, torch makes :math:`\dot W` too, those of a batch one by one: on an H200 that takes a
third of the time of a batched product.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from mnagt.ops import once_differentiable

TILE = 64
"""Rows and columns of the piece of a gradient that a program makes."""
PROGRAMS = 264
"""About as many programs as run at once: two on each of an H200's 132 processors."""
LARGE = 128 * 256
"""Weights with more numbers are left to torch: on an H200 it overtakes us here."""


class LinearFunction(torch.autograd.Function):
    """``F.linear`` with copies of weight and bias in the type of ``x``; gradients have the types of the originals."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weight_copy: Tensor, bias_copy: Tensor | None
    ) -> Tensor:
        ctx.weight_shape, weight_copy = weight.shape, weight_copy.flatten(0, -2)
        ctx.save_for_backward(x, weight_copy)
        ctx.weight_type, ctx.bias_type = weight.dtype, None if bias is None else bias.dtype
        return F.linear(x, weight_copy, bias_copy)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = dweight = dbias = None
        dy, flat = grads[0].reshape(-1, weight.shape[0]), x.reshape(-1, x.shape[-1])
        with torch.autocast(x.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                dx = torch.matmul(dy, weight).view(x.shape)
            if weight.numel() > LARGE:
                if ctx.needs_input_grad[1]:
                    dweight = torch.matmul(dy.T, flat).to(ctx.weight_type)
                if ctx.needs_input_grad[2]:
                    dbias = _sum_over_rows(dy, ctx.bias_type)
            elif any(ctx.needs_input_grad[1:3]):
                dweight, dbias = _multiply_over_rows(dy[None], flat[None], 1, ctx.weight_type, ctx.bias_type)
        return dx, None if dweight is None else dweight.view(ctx.weight_shape), dbias, None, None


class BatchedLinears(torch.autograd.Function):
    """Products of ``x`` with copies of several weights in its type; each has a weight for every kernel, or one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: list[Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *copies)
        ctx.weight_types = [weight.dtype for weight in weights]
        return tuple(torch.matmul(x, weight.mT) for weight in copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        dx, dweights = None, [None] * len(weights)
        with torch.autocast(x.device.type, enabled=False):
            for number, (dy, weight, dtype) in enumerate(zip(grads, weights, ctx.weight_types, strict=True)):
                if ctx.needs_input_grad[0]:
                    of_each = weight.expand(len(x), -1, -1)
                    dx = torch.bmm(dy, of_each) if dx is None else dx.baddbmm_(dy, of_each)
                if not ctx.needs_input_grad[2 + number]:
                    continue
                if weight[0].numel() > LARGE:
                    dweight = torch.stack([torch.mm(g.T, rows) for g, rows in zip(dy, x, strict=True)])
                    dweights[number] = (dweight if len(weight) > 1 else dweight.sum(0, keepdim=True)).to(dtype)
                else:
                    dweights[number], _ = _multiply_over_rows(dy, x, len(weight), dtype)
        return dx, None, *dweights


def _multiply_over_rows(
    dy: Tensor, x: Tensor, weights: int, weight_type: torch.dtype, bias_type: torch.dtype | None = None
) -> tuple[Float[Tensor, "weights out in"], Float[Tensor, "out"] | None]:
    """Gradients of the weights, one for each kernel or one for all, and of the bias, if there is one.

    ``dy`` and ``x`` have kernels, rows and columns.
    """
    dy, x = (t if t.stride(-1) == 1 else t.contiguous() for t in (dy, x))
    kernels, rows, outs, ins = *dy.shape, x.shape[-1]
    dweight = x.new_empty(weights, outs, ins, dtype=weight_type)
    dbias = None if bias_type is None else x.new_empty(outs, dtype=bias_type)
    tile_out, tile_in = (min(max(triton.next_power_of_2(n), 16), TILE) for n in (outs, ins))
    tile_rows, warps = (64, 2) if x.dtype == torch.float32 else (128, 4)  # what was fastest on an H200
    tiles = triton.cdiv(outs, tile_out) * triton.cdiv(ins, tile_in)
    splits, span = _splits(rows, tile_rows, PROGRAMS // (tiles * kernels))
    into, bias_into = dweight, dbias
    count = kernels * splits // weights
    if count > 1:
        into = x.new_empty(weights, count, outs * ins + (0 if dbias is None else outs), dtype=torch.float32)
        bias_into = None if dbias is None else into[:, :, outs * ins :]
    strides = [*dy.stride()[:2], *x.stride()[:2]]
    unit = math.gcd(16, *strides)  # that all are multiples of it lets a thread read 16 bytes at once
    with torch.cuda.device_of(x):
        _multiply[(tiles, splits, kernels)](
            dy, x, into, bias_into, rows, span, *(stride // unit for stride in strides), unit, outs, ins,
            tile_rows, tile_out, tile_in, num_warps=warps, num_stages=2,
        )  # fmt: skip
        if count > 1:
            add_up(into, dweight, dbias)
    return dweight, dbias


def _sum_over_rows(dy: Float[Tensor, "rows out"], bias_type: torch.dtype) -> Float[Tensor, "out"]:
    """Gradient of the bias alone."""
    dy = dy if dy.stride(-1) == 1 else dy.contiguous()
    rows, outs = dy.shape
    dbias = dy.new_empty(outs, dtype=bias_type)
    blocks = triton.cdiv(outs, TILE)
    splits, span = _splits(rows, TILE, 2 * PROGRAMS // blocks)
    into = dbias if splits == 1 else dy.new_empty(1, splits, outs, dtype=torch.float32)
    with torch.cuda.device_of(dy):
        _sum[(blocks, splits)](dy, into, rows, span, dy.stride(0), outs, TILE)
        if splits > 1:
            add_up(into, dbias, None)
    return dbias


def _splits(rows: int, at_once: int, most: int) -> tuple[int, int]:
    """How many splits of the rows, and how many rows in each: a multiple of those that a program reads at once."""
    span = triton.cdiv(triton.cdiv(rows, max(most, 1)), at_once) * at_once
    return triton.cdiv(rows, span), span


@triton.jit(do_not_specialize=["rows", "span", "dy_kernel", "dy_row", "x_kernel", "x_row"])
def _multiply(
    dy, x, dweight, dbias, rows, span, dy_kernel, dy_row, x_kernel, x_row,
    unit: tl.constexpr, outs: tl.constexpr, ins: tl.constexpr,
    tile_rows: tl.constexpr, tile_out: tl.constexpr, tile_in: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of one kernel's weight, over one split of the rows."""
    blocks: tl.constexpr = (ins + tile_in - 1) // tile_in
    block = tl.program_id(0) % blocks
    out = tl.program_id(0) // blocks * tile_out + tl.arange(0, tile_out)
    column = block * tile_in + tl.arange(0, tile_in)
    is_out, is_column = out < outs, column < ins
    kernel = tl.program_id(2).to(tl.int64)
    dy += kernel * dy_kernel * unit + out[None, :]
    x += kernel * x_kernel * unit + column[None, :]
    of_weight = tl.zeros([tile_out, tile_in], tl.float32)
    of_bias = tl.zeros([tile_out], tl.float32)
    first = tl.program_id(1) * span
    for start in range(first, tl.minimum(first + span, rows), tile_rows):
        row = (start + tl.arange(0, tile_rows)[:, None]).to(tl.int64)
        g = tl.load(dy + row * dy_row * unit, mask=(row < rows) & is_out[None, :], other=0.0)
        value = tl.load(x + row * x_row * unit, mask=(row < rows) & is_column[None, :], other=0.0)
        of_weight = tl.dot(tl.trans(round_to_tf32(g)), round_to_tf32(value), of_weight)
        if dbias is not None:
            if block == 0:
                of_bias += tl.sum(g.to(tl.float32), 0)
    width: tl.constexpr = outs * ins + (0 if dbias is None else outs)
    part = (kernel * tl.num_programs(1) + tl.program_id(1)) * width
    mask = is_out[:, None] & is_column[None, :]
    tl.store(dweight + part + out[:, None] * ins + column[None, :], of_weight, mask=mask)
    if dbias is not None:
        if block == 0:
            tl.store(dbias + part + out, of_bias, mask=is_out)


@triton.jit
def round_to_tf32(x):
    """float32 to the nearest tf32, as torch does: left to itself, the GPU cuts bits off, and every product shrinks."""
    if x.dtype == tl.float32:
        nearest = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        x = tl.where(tl.abs(x) < float("inf"), nearest, x)
    return x


@triton.jit(do_not_specialize=["rows", "span"])
def _sum(dy, dbias, rows, span, dy_row, outs: tl.constexpr, tile: tl.constexpr):
    """Some columns summed over one split of the rows."""
    out = tl.program_id(0) * tile + tl.arange(0, tile)
    total = tl.zeros([tile, tile], tl.float32)
    first = tl.program_id(1) * span
    for start in range(first, tl.minimum(first + span, rows), tile):
        row = (start + tl.arange(0, tile)[:, None]).to(tl.int64)
        mask = (row < rows) & (out < outs)[None, :]
        total += tl.load(dy + row * dy_row + out[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(dbias + tl.program_id(1) * outs + out, tl.sum(total, 0), mask=out < outs)


def add_up(parts: Float[Tensor, "shares count width"], first: Tensor, second: Tensor | None) -> None:
    """Sum each share of ``parts`` over its count: as many columns as fit into ``first``, the others into ``second``."""
    shares, count, width = parts.shape
    at_once, columns = min(triton.next_power_of_2(count), 128), 16 if width <= 8192 else 32
    _add_up[(triton.cdiv(width, columns), shares)](
        parts, first, second, count, width, first.numel() // shares, at_once, columns
    )


@triton.jit(do_not_specialize=["count"])
def _add_up(
    parts, first, second, count,
    width: tl.constexpr, split: tl.constexpr, at_once: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """A few columns of one share; those from ``split`` on belong to ``second``."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    share = tl.program_id(1).to(tl.int64)
    total = tl.zeros([at_once, columns], tl.float32)
    for start in range(0, count, at_once):
        part = start + tl.arange(0, at_once)[:, None]
        mask = (part < count) & (column < width)[None, :]
        total += tl.load(parts + (share * count + part) * width + column[None, :], mask=mask, other=0.0)
    result = tl.sum(total, 0)
    tl.store(first + share * split + column, result, mask=column < split)
    if second is not None:
        tl.store(second + column - split, result, mask=(split <= column) & (column < width))
