r"""The adaptive mixer with what follows it: a scale and a residual.

For each node, with :math:`p^k = z^k W` made beforehand, eqs. 9 and 10 and a part of eq. 11:

.. math:: y = f \odot \sum_k \alpha_k z^k + r, \qquad \alpha = \mathrm{softmax}_k(s), \qquad s_k = \tanh(p^k)\, w^\top

With :math:`g = \partial L / \partial y` and :math:`a_k = (f \odot g)\, z^{k\top}`:

.. math:: \dot z^k = \alpha_k\, f \odot g, \qquad \dot s_k = \alpha_k \Bigl(a_k - \sum_j \alpha_j a_j\Bigr), \qquad
          \dot p^k = \dot s_k\, w \odot (1 - \tanh^2 p^k)

and, summed over nodes, :math:`\dot f = g \odot \sum_k \alpha_k z^k` and :math:`\dot w = \sum_k \dot s_k \tanh p^k`. One
launch forward, which leaves scores, their maximum and the sum under the softmax, and two backward: a program sums over
its nodes, the second launch over the programs.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnagt.ops import once_differentiable
from mnagt.ops.linear import add_up

TILE = 512
"""Numbers of each kernel that a program reads at a time: 4 for each thread of four warps."""
PROGRAMS = 1056
"""The most programs backward, each with sums of its own: eight on each of an H200's 132 processors."""
VARYING = ["nodes"] + [f"{tensor}_{axis}" for tensor in ("z", "p", "dz", "dp") for axis in ("node", "kernel")]
"""What may differ from batch to batch, and is no reason to compile again."""


class Mix(torch.autograd.Function):
    """:func:`mnagt.ops.functional.mix`. The first two axes of ``z`` and ``p`` may lie in memory in any order."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, p: Tensor, w: Tensor, factor: Tensor | None, residual: Tensor | None) -> Tensor:
        z, p, w = (t if t.stride(-1) == 1 else t.contiguous() for t in (z, p, w))
        factor, residual = (None if t is None else t.contiguous() for t in (factor, residual))
        nodes, kernels, dim = z.shape
        y = z.new_empty(nodes, dim) if residual is None else torch.empty_like(residual)
        scores = z.new_empty(kernels + 2, nodes, dtype=torch.float32)
        sizes = _sizes(kernels, dim)
        unit, strides = _strides(z, p)
        with torch.cuda.device_of(z):
            _mix[(triton.cdiv(nodes, sizes["block"]),)](
                z, p, w, factor, residual, y, scores, nodes, *strides, unit=unit, **sizes
            )
        ctx.save_for_backward(z, p, w, factor, scores)
        ctx.has_residual = residual is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, p, w, factor, scores = ctx.saved_tensors
        dy, dz, dp = grads[0].contiguous(), torch.empty_like(z), torch.empty_like(p)
        nodes, kernels, dim = z.shape
        sizes = _sizes(kernels, dim)
        unit, strides = _strides(z, p, dz, dp)
        programs = min(triton.cdiv(nodes, sizes["block"]), PROGRAMS)
        sums = torch.empty(1 if factor is None else 2, programs, dim, dtype=torch.float32, device=z.device)
        total = sums.new_empty(len(sums), dim)
        with torch.cuda.device_of(z):
            _mix_backward[(programs,)](
                dy, z, p, w, factor, scores, dz, dp, sums, nodes, *strides,
                slots=triton.next_power_of_2(kernels), unit=unit, **sizes,
            )  # fmt: skip
            add_up(sums, total, None)
        dfactor = None if factor is None else total[1].to(factor.dtype)
        return dz, dp, total[0].to(w.dtype), dfactor, grads[0] if ctx.has_residual else None


def _sizes(kernels: int, dim: int) -> dict[str, int]:
    """What a program works on, known when it is compiled."""
    columns = triton.next_power_of_2(dim)
    return {"kernels": kernels, "dim": dim, "block": max(TILE // columns, 1), "columns": columns}


def _strides(*tensors: Tensor) -> tuple[int, list[int]]:
    """The strides of the first two axes, in units: that all are multiples of it lets a thread read 16 bytes at once."""
    strides = [stride for t in tensors for stride in t.stride()[:2]]
    unit = math.gcd(16, *strides)
    return unit, [stride // unit for stride in strides]


@triton.jit(do_not_specialize=VARYING)
def _mix(
    z, p, w, factor, residual, y, scores, nodes, z_node, z_kernel, p_node, p_kernel,
    unit: tl.constexpr, kernels: tl.constexpr, dim: tl.constexpr, block: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Mix a block of nodes. The softmax is taken on the way: sums shrink whenever a larger score turns up."""
    node = (tl.program_id(0) * block + tl.arange(0, block)[:, None]).to(tl.int64)
    column = tl.arange(0, columns)[None, :]
    is_node, mask = node < nodes, (node < nodes) & (column < dim)
    w = _vector(w, column, dim)
    top = tl.full([block, 1], float("-inf"), tl.float32)
    total = tl.zeros([block, 1], tl.float32)
    mixed = tl.zeros([block, columns], tl.float32)
    for k in tl.static_range(kernels):
        score = tl.sum(_tanh(_read(p, node, k, p_node, p_kernel, unit, column, mask)) * w, 1, keep_dims=True)
        tl.store(scores + k * nodes + node, score, mask=is_node)
        shrink, top = top, tl.maximum(top, score)
        shrink = tl.exp(shrink - top)
        part = tl.exp(score - top)
        total = total * shrink + part
        mixed = mixed * shrink + part * _read(z, node, k, z_node, z_kernel, unit, column, mask)
    tl.store(scores + kernels * nodes + node, top, mask=is_node)
    tl.store(scores + (kernels + 1) * nodes + node, total, mask=is_node)
    mixed /= total
    if factor is not None:
        mixed *= _vector(factor, column, dim)
    if residual is not None:
        mixed += tl.load(residual + node * dim + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + node * dim + column, mixed, mask=mask)


@triton.jit(do_not_specialize=VARYING)
def _mix_backward(
    dy, z, p, w, factor, scores, dz, dp, sums, nodes,
    z_node, z_kernel, p_node, p_kernel, dz_node, dz_kernel, dp_node, dp_kernel,
    slots: tl.constexpr, unit: tl.constexpr, kernels: tl.constexpr, dim: tl.constexpr, block: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """Derivatives of every n-th block of nodes, n programs being at it, and their sums. ``slots`` hold a gain each."""
    column = tl.arange(0, columns)[None, :]
    slot = tl.arange(0, slots)[None, :]
    w = _vector(w, column, dim)
    dw = tl.zeros([block, columns], tl.float32)
    dfactor = tl.zeros([block, columns], tl.float32)
    for start in range(tl.program_id(0) * block, nodes, tl.num_programs(0) * block):
        node = (start + tl.arange(0, block)[:, None]).to(tl.int64)
        is_node, mask = node < nodes, (node < nodes) & (column < dim)
        top = tl.load(scores + kernels * nodes + node, mask=is_node, other=0.0)
        total = tl.load(scores + (kernels + 1) * nodes + node, mask=is_node, other=1.0)
        g = tl.load(dy + node * dim + column, mask=mask, other=0.0).to(tl.float32)
        dmixed = g
        if factor is not None:
            dmixed *= _vector(factor, column, dim)
        mixed = tl.zeros([block, columns], tl.float32)
        gains = tl.zeros([block, slots], tl.float32)
        mean_gain = tl.zeros([block, 1], tl.float32)
        for k in tl.static_range(kernels):
            alpha = tl.exp(tl.load(scores + k * nodes + node, mask=is_node, other=0.0) - top) / total
            value = _read(z, node, k, z_node, z_kernel, unit, column, mask)
            _write(dz, alpha * dmixed, node, k, dz_node, dz_kernel, unit, column, mask)
            gain = tl.sum(dmixed * value, 1, keep_dims=True)
            gains = tl.where(slot == k, gain, gains)
            mean_gain += alpha * gain
            mixed += alpha * value
        dfactor += g * mixed
        for k in tl.static_range(kernels):
            alpha = tl.exp(tl.load(scores + k * nodes + node, mask=is_node, other=0.0) - top) / total
            gain = tl.sum(tl.where(slot == k, gains, 0.0), 1, keep_dims=True)
            dscore = alpha * (gain - mean_gain)
            tanh = _tanh(_read(p, node, k, p_node, p_kernel, unit, column, mask))
            _write(dp, dscore * w * (1.0 - tanh * tanh), node, k, dp_node, dp_kernel, unit, column, mask)
            dw += dscore * tanh
    sums += tl.program_id(0) * dim + column
    tl.store(sums, tl.sum(dw, 0, keep_dims=True), mask=column < dim)
    if factor is not None:
        tl.store(sums + tl.num_programs(0) * dim, tl.sum(dfactor, 0, keep_dims=True), mask=column < dim)


@triton.jit
def _vector(values, column, dim: tl.constexpr):
    """A number for each column, as a row."""
    return tl.load(values + column, mask=column < dim, other=0.0).to(tl.float32)


@triton.jit
def _read(x, node, k: tl.constexpr, node_stride, kernel_stride, unit: tl.constexpr, column, mask):
    """What kernel ``k`` holds for these nodes."""
    at = node * (node_stride * unit) + kernel_stride.to(tl.int64) * (k * unit) + column
    return tl.load(x + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _write(x, values, node, k: tl.constexpr, node_stride, kernel_stride, unit: tl.constexpr, column, mask):
    """Put ``values`` where :func:`_read` would find them."""
    at = node * (node_stride * unit) + kernel_stride.to(tl.int64) * (k * unit) + column
    tl.store(x + at, values, mask=mask)


@triton.jit
def _tanh(x):
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)
