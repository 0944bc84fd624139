r"""Sums over neighbours of what edges make of them, edges being of a few kinds: GINE's messages, none of them stored.

.. math:: y_v = \sum_{e: u \to v} \mathrm{ReLU}(x_u + t_{k(e)})

plus :math:`x_v` itself where that is asked for. With :math:`g = \partial L / \partial y`, and :math:`[\cdot]` for 1
where its content holds and else 0:

.. math:: \dot x_u = \sum_{e: u \to v} [x_u + t_{k(e)} > 0] \odot g_v, \qquad
          \dot t_k = \sum_{e: k(e) = k} [x_u + t_k > 0] \odot g_v

One launch forward and three backward: every node goes through the edges out of it; programs share the edges and add
up, by a product with the 0/1 matrix of kinds, what each kind gets; the last adds up the programs.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Int
from torch import Tensor

from mnagt.ops import autocast_type, once_differentiable
from mnagt.ops.linear import add_up, round_to_tf32

ROWS, ONES, COLUMNS = 16, 4, 64
"""Nodes of a program, edges of each that it looks at together, and columns."""
EDGES = 64
"""Edges that a program sorts by kind at a time."""
PROGRAMS = 132
"""The most programs that share the edges, for each block of columns: one for each of an H200's processors."""


class Edges(NamedTuple):
    """The edges of a batch, sorted by destination."""

    source: Int[Tensor, "edges"]
    destination: Int[Tensor, "edges"]
    in_ptr: Int[Tensor, "nodes_and_end"]
    out_edge: Int[Tensor, "edges"]
    """The edges sorted by source."""
    out_ptr: Int[Tensor, "nodes_and_end"]
    kind: Int[Tensor, "edges"]


class SumMessages(torch.autograd.Function):
    """The messages into each node, summed, and the node itself where that is asked for; there are edges.

    ``table`` is taken in the type of ``x``; under autocast sums come in its type. The gradient of ``table`` is summed
    in tf32, or in the type of what comes back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, edges: Edges, with_self: bool) -> Tensor:
        x, used = x.contiguous(), table.to(x.dtype).contiguous()
        y = torch.empty_like(x, dtype=autocast_type(x.device) or x.dtype)
        nodes, dim = x.shape
        with torch.cuda.device_of(x):
            _gather[_grid(nodes, dim)](
                x, used, edges.source, edges.kind, edges.in_ptr, y, nodes, dim, ROWS, ONES, _columns(dim), with_self
            )
        ctx.save_for_backward(x, used)
        ctx.edges, ctx.table_type, ctx.with_self = edges, table.dtype, with_self
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, table = ctx.saved_tensors
        edges, dy = ctx.edges, grads[0].contiguous()
        (nodes, dim), kinds, columns = x.shape, len(table), _columns(x.shape[1])
        dx = dtable = None
        with torch.cuda.device_of(x):
            if ctx.needs_input_grad[0]:
                dx = torch.empty_like(x)
                _scatter[_grid(nodes, dim)](
                    dy, x, table, edges.destination, edges.kind, edges.out_edge, edges.out_ptr, dx,
                    nodes, dim, ROWS, ONES, columns, ctx.with_self,
                )  # fmt: skip
            if ctx.needs_input_grad[1]:
                count = len(edges.source)
                programs = min(triton.cdiv(count, EDGES), PROGRAMS)
                parts = x.new_empty(1, programs, kinds * dim, dtype=torch.float32)
                _by_kind[(programs, triton.cdiv(dim, columns))](
                    dy, x, table, edges.source, edges.destination, edges.kind, parts,
                    count, kinds, dim, max(triton.next_power_of_2(kinds), 16), EDGES, columns, num_warps=8,
                )  # fmt: skip
                dtable = table.new_empty(kinds, dim, dtype=ctx.table_type)
                add_up(parts, dtable, None)
        return dx, dtable, None, None


def _columns(dim: int) -> int:
    return min(max(triton.next_power_of_2(dim), 16), COLUMNS)


def _grid(nodes: int, dim: int) -> tuple[int, int]:
    return triton.cdiv(nodes, ROWS), triton.cdiv(dim, _columns(dim))


@triton.jit(do_not_specialize=["nodes"])
def _gather(
    x, table, source, kind, in_ptr, y, nodes,
    dim: tl.constexpr, rows: tl.constexpr, ones: tl.constexpr, columns: tl.constexpr, with_self: tl.constexpr,
):  # fmt: skip
    """Some nodes: the messages into each, summed."""
    node, column, start, length = _place(in_ptr, nodes, rows, columns)
    is_column = (column < dim)[None, None, :]
    total = tl.zeros([rows, ones, columns], tl.float32)
    for done in range(0, tl.max(length), ones):
        one = done + tl.arange(0, ones)[None, :]
        is_edge = one < length[:, None]
        edge = start[:, None] + one
        u = tl.load(source + edge, mask=is_edge, other=0).to(tl.int64)
        k = tl.load(kind + edge, mask=is_edge, other=0).to(tl.int64)
        mask = is_edge[:, :, None] & is_column
        at = column[None, None, :]
        message = tl.load(x + u[:, :, None] * dim + at, mask=mask, other=0.0).to(tl.float32)
        message += tl.load(table + k[:, :, None] * dim + at, mask=mask, other=0.0).to(tl.float32)
        total += tl.where(mask & ~(message < 0), message, 0.0)  # what is not a number stays so
    result = tl.sum(total, 1)
    if with_self:
        result += _rows(x, node, column, nodes, dim)
    _keep(y, result, node, column, nodes, dim)


@triton.jit(do_not_specialize=["nodes"])
def _scatter(
    dy, x, table, destination, kind, out_edge, out_ptr, dx, nodes,
    dim: tl.constexpr, rows: tl.constexpr, ones: tl.constexpr, columns: tl.constexpr, with_self: tl.constexpr,
):  # fmt: skip
    """Some nodes: what comes back along the edges out of each, summed."""
    node, column, start, length = _place(out_ptr, nodes, rows, columns)
    is_column = (column < dim)[None, None, :]
    centre = _rows(x, node, column, nodes, dim)
    total = tl.zeros([rows, ones, columns], tl.float32)
    for done in range(0, tl.max(length), ones):
        one = done + tl.arange(0, ones)[None, :]
        is_edge = one < length[:, None]
        edge = tl.load(out_edge + start[:, None] + one, mask=is_edge, other=0).to(tl.int64)
        v = tl.load(destination + edge, mask=is_edge, other=0).to(tl.int64)
        k = tl.load(kind + edge, mask=is_edge, other=0).to(tl.int64)
        mask = is_edge[:, :, None] & is_column
        at = column[None, None, :]
        message = centre[:, None, :] + tl.load(table + k[:, :, None] * dim + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy + v[:, :, None] * dim + at, mask=mask, other=0.0).to(tl.float32)
        total += tl.where(message > 0, g, 0.0)
    result = tl.sum(total, 1)
    if with_self:
        result += _rows(dy, node, column, nodes, dim)
    _keep(dx, result, node, column, nodes, dim)


@triton.jit(do_not_specialize=["edges"])
def _by_kind(
    dy, x, table, source, destination, kind, parts, edges,
    kinds: tl.constexpr, dim: tl.constexpr, width: tl.constexpr, at_once: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """What every n-th block of edges brings to each kind."""
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    is_column = (column < dim)[None, :]
    slot = tl.arange(0, width)
    total = tl.zeros([width, columns], tl.float32)
    for start in range(tl.program_id(0) * at_once, edges, tl.num_programs(0) * at_once):
        edge = start + tl.arange(0, at_once)
        is_edge = edge < edges
        u = tl.load(source + edge, mask=is_edge, other=0).to(tl.int64)[:, None]
        v = tl.load(destination + edge, mask=is_edge, other=0).to(tl.int64)[:, None]
        k = tl.load(kind + edge, mask=is_edge, other=0).to(tl.int64)[:, None]
        mask = is_edge[:, None] & is_column
        at = column[None, :]
        message = tl.load(x + u * dim + at, mask=mask, other=0.0).to(tl.float32)
        message += tl.load(table + k * dim + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy + v * dim + at, mask=mask, other=0.0)
        g = tl.where(message > 0, g, 0.0).to(g.dtype)
        is_kind = (slot[:, None] == tl.trans(k)) & is_edge[None, :]
        total = tl.dot(tl.where(is_kind, 1.0, 0.0).to(g.dtype), round_to_tf32(g), total)
    at = slot[:, None] * dim + column[None, :]
    tl.store(parts + tl.program_id(0).to(tl.int64) * kinds * dim + at, total, mask=(slot < kinds)[:, None] & is_column)


@triton.jit
def _place(ptr, nodes, rows: tl.constexpr, columns: tl.constexpr):
    """Of this program: its nodes and columns, and where each node's edges begin and how many they are."""
    node = tl.program_id(0) * rows + tl.arange(0, rows)
    start = tl.load(ptr + node, mask=node < nodes, other=0)
    end = tl.load(ptr + node + 1, mask=node < nodes, other=0)
    return node, tl.program_id(1) * columns + tl.arange(0, columns), start, (end - start).to(tl.int32)


@triton.jit
def _rows(x, node, column, nodes, dim: tl.constexpr):
    """The row of each node."""
    mask = (node < nodes)[:, None] & (column < dim)[None, :]
    return tl.load(x + node.to(tl.int64)[:, None] * dim + column[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _keep(y, values, node, column, nodes, dim: tl.constexpr):
    """Store a row for each node."""
    mask = (node < nodes)[:, None] & (column < dim)[None, :]
    tl.store(y + node.to(tl.int64)[:, None] * dim + column[None, :], values, mask=mask)
