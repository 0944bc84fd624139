r"""Attention along edges, no score of an edge ever stored: for graphs of many edges a node.

.. math:: z_i = \frac{\sum_{j \to i} w_{ij} v_j}{\sum_{j \to i} w_{ij} + \epsilon}, \qquad
          w_{ij} = \exp f(s_{ij}), \qquad s_{ij} = \sigma\, q_i \cdot k_j

in every head, with :math:`f` a cut to :math:`[-c, c]` or a leaky ReLU, and j = i among the neighbours where that is
asked for. With :math:`g = \partial L / \partial z`, :math:`p_{ij}` the share of j in i and
:math:`\dot s_{ij} = f'(s_{ij})\, p_{ij}\, (g_i \cdot v_j - g_i \cdot z_i)`:

.. math:: \dot q_i = \sigma \sum_j \dot s_{ij} k_j, \qquad \dot k_j = \sigma \sum_i \dot s_{ij} q_i, \qquad
          \dot v_j = \sum_i p_{ij}\, g_i

One launch forward, in which a program goes through the edges into a node with the softmax taken on the way, and two
backward: through the edges into each node, and through those out of it.
"""

from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Int
from torch import Tensor

from mnagt.ops import once_differentiable

TILE = 4096
"""Numbers of what is read along edges that a program works on at a time: 32 for each thread of four warps."""
COLUMNS = 128
"""Columns of a program; where heads are wider together, programs share them."""
DENSE = 8
"""Edges a node from which this beats storing what edges carry: a program does a node, however few its edges."""


class Score(NamedTuple):
    """What becomes of a score before it is exponentiated, and what is added to the sum of a node's weights."""

    kind: Literal["cut", "leaky"]
    at: float
    """The magnitude to cut at, or the slope below zero."""
    eps: float = 0.0


class Ends(NamedTuple):
    """The edges, both ways: sources of those into each node, destinations of those out of it."""

    source: Int[Tensor, "edges"]
    in_ptr: Int[Tensor, "nodes_and_end"]
    destination: Int[Tensor, "edges"]
    out_ptr: Int[Tensor, "nodes_and_end"]


class AttendAlongEdges(torch.autograd.Function):
    """What each node takes from its neighbours; zeros where it has none. There are edges."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, ends: Ends, score: Score, scale: float, with_self: bool
    ) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        z, total = torch.empty_like(v), v.new_empty(v.shape[:2], dtype=torch.float32)
        grid, sizes = _sizes(q, v)
        sizes |= {"leaky": score.kind == "leaky", "with_self": with_self}
        with torch.cuda.device_of(v):
            _attend[grid](q, k, v, ends.source, ends.in_ptr, z, total, scale, score.at, score.eps, **sizes)
        ctx.save_for_backward(q, k, v, z, total)
        ctx.ends, ctx.numbers, ctx.sizes = ends, (scale, score.at), sizes
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, z, total = ctx.saved_tensors
        ends, g = ctx.ends, grads[0].contiguous()
        dq, dk, dv, mean = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(total)
        grid, _ = _sizes(q, v)
        with torch.cuda.device_of(v):
            _into[grid](q, k, v, z, g, total, ends.source, ends.in_ptr, dq, mean, *ctx.numbers, **ctx.sizes)
            _out_of[grid](q, k, v, g, total, mean, ends.destination, ends.out_ptr, dk, dv, *ctx.numbers, **ctx.sizes)
        return dq, dk, dv, None, None, None, None


def _sizes(q: Tensor, v: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid, and what a program works on, known when it is compiled."""
    nodes, heads, width = q.shape
    padded, value_padded = triton.next_power_of_2(width), triton.next_power_of_2(v.shape[2])
    widest = max(padded, value_padded)
    group = min(triton.next_power_of_2(heads), max(COLUMNS // widest, 1))
    sizes = {"heads": heads, "width": width, "value_width": v.shape[2], "group": group, "padded": padded}
    sizes |= {"value_padded": value_padded, "at_once": max(TILE // (group * widest), 1)}
    return (nodes, triton.cdiv(heads, group)), sizes


@triton.jit
def _attend(
    q, k, v, source, in_ptr, z, total, scale, at, eps,
    heads: tl.constexpr, width: tl.constexpr, value_width: tl.constexpr, group: tl.constexpr, padded: tl.constexpr,
    value_padded: tl.constexpr, at_once: tl.constexpr, leaky: tl.constexpr, with_self: tl.constexpr,
):  # fmt: skip
    """Some heads of a node. Sums shrink whenever a larger score turns up; the logarithm of the weights' is kept."""
    node = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * group + tl.arange(0, group)
    own_q = _of_node(q, node, head, heads, width, padded)
    top = tl.full([group], float("-inf"), tl.float32)
    weights = tl.zeros([group], tl.float32)
    out = tl.zeros([group, value_padded], tl.float32)
    if with_self:
        top = _bent(scale * tl.sum(own_q * _of_node(k, node, head, heads, width, padded), 1), at, leaky)
        weights += 1.0
        out = _of_node(v, node, head, heads, value_width, value_padded)
    start, end = tl.load(in_ptr + node), tl.load(in_ptr + node + 1)
    for first in range(start, end, at_once):
        j, is_edge = _neighbours(source, first, end, at_once)
        s = scale * tl.sum(own_q[None, :, :] * _of_nodes(k, j, is_edge, head, heads, width, padded), 2)
        s = tl.where(is_edge[:, None], _bent(s, at, leaky), float("-inf"))
        shrink, top = top, tl.maximum(top, tl.max(s, 0))
        shrink = tl.exp(shrink - top)
        w = tl.exp(s - top[None, :])
        weights = weights * shrink + tl.sum(w, 0)
        value = _of_nodes(v, j, is_edge, head, heads, value_width, value_padded)
        out = out * shrink[:, None] + tl.sum(w[:, :, None] * value, 0)
    has_any = top > float("-inf")
    weights = tl.where(has_any, weights + eps * tl.exp(-tl.where(has_any, top, 0.0)), 1.0)
    tl.store(total + node * heads + head, tl.where(has_any, top, 0.0) + tl.log(weights), mask=head < heads)
    _keep(z, out / weights[:, None], node, head, heads, value_width, value_padded)


@triton.jit
def _into(
    q, k, v, z, g, total, source, in_ptr, dq, mean, scale, at,
    heads: tl.constexpr, width: tl.constexpr, value_width: tl.constexpr, group: tl.constexpr, padded: tl.constexpr,
    value_padded: tl.constexpr, at_once: tl.constexpr, leaky: tl.constexpr, with_self: tl.constexpr,
):  # fmt: skip
    """Derivatives of some heads of a node's query, and the mean that the other launch needs."""
    node = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * group + tl.arange(0, group)
    query = _of_node(q, node, head, heads, width, padded)[None, :, :]
    own_g = _of_node(g, node, head, heads, value_width, value_padded)
    middle = tl.sum(own_g * _of_node(z, node, head, heads, value_width, value_padded), 1)
    whole = tl.load(total + node * heads + head, mask=head < heads, other=0.0)
    tl.store(mean + node * heads + head, middle, mask=head < heads)
    back, whole, middle = own_g[None, :, :], whole[None, :], middle[None, :]
    result = tl.zeros([group, padded], tl.float32)
    if with_self:
        own_k = _of_node(k, node, head, heads, width, padded)[None, :, :]
        own_v = _of_node(v, node, head, heads, value_width, value_padded)[None, :, :]
        _own_share, own_ds = _shares(query, own_k, back, own_v, whole, middle, scale, at, leaky)
        result += tl.sum(own_ds[:, :, None] * own_k, 0)
    start, end = tl.load(in_ptr + node), tl.load(in_ptr + node + 1)
    for first in range(start, end, at_once):
        j, is_edge = _neighbours(source, first, end, at_once)
        key = _of_nodes(k, j, is_edge, head, heads, width, padded)
        value = _of_nodes(v, j, is_edge, head, heads, value_width, value_padded)
        _share, ds = _shares(query, key, back, value, whole, middle, scale, at, leaky)
        result += tl.sum(ds[:, :, None] * key, 0)  # where there is no edge, the key is 0
    _keep(dq, scale * result, node, head, heads, width, padded)


@triton.jit
def _out_of(
    q, k, v, g, total, mean, destination, out_ptr, dk, dv, scale, at,
    heads: tl.constexpr, width: tl.constexpr, value_width: tl.constexpr, group: tl.constexpr, padded: tl.constexpr,
    value_padded: tl.constexpr, at_once: tl.constexpr, leaky: tl.constexpr, with_self: tl.constexpr,
):  # fmt: skip
    """Derivatives of some heads of a node's key and value."""
    node = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * group + tl.arange(0, group)
    key = _of_node(k, node, head, heads, width, padded)[None, :, :]
    value = _of_node(v, node, head, heads, value_width, value_padded)[None, :, :]
    of_key = tl.zeros([group, padded], tl.float32)
    of_value = tl.zeros([group, value_padded], tl.float32)
    if with_self:
        own_q = _of_node(q, node, head, heads, width, padded)[None, :, :]
        own_g = _of_node(g, node, head, heads, value_width, value_padded)[None, :, :]
        own_whole = tl.load(total + node * heads + head, mask=head < heads, other=0.0)[None, :]
        own_middle = tl.load(mean + node * heads + head, mask=head < heads, other=0.0)[None, :]
        own_share, own_ds = _shares(own_q, key, own_g, value, own_whole, own_middle, scale, at, leaky)
        of_key += tl.sum(own_ds[:, :, None] * own_q, 0)
        of_value += tl.sum(own_share[:, :, None] * own_g, 0)
    start, end = tl.load(out_ptr + node), tl.load(out_ptr + node + 1)
    for first in range(start, end, at_once):
        i, is_edge = _neighbours(destination, first, end, at_once)
        mask, at_head = is_edge[:, None] & (head < heads)[None, :], i[:, None] * heads + head[None, :]
        whole = tl.load(total + at_head, mask=mask, other=0.0)
        middle = tl.load(mean + at_head, mask=mask, other=0.0)
        query = _of_nodes(q, i, is_edge, head, heads, width, padded)
        back = _of_nodes(g, i, is_edge, head, heads, value_width, value_padded)
        share, ds = _shares(query, key, back, value, whole, middle, scale, at, leaky)
        of_key += tl.sum(ds[:, :, None] * query, 0)  # where there is no edge, query and what comes back are 0
        of_value += tl.sum(share[:, :, None] * back, 0)
    _keep(dk, scale * of_key, node, head, heads, width, padded)
    _keep(dv, of_value, node, head, heads, value_width, value_padded)


@triton.jit
def _shares(query, key, back, value, whole, middle, scale, at, leaky: tl.constexpr):
    """Of some edges: the share that each has in its node, and the derivative of its score."""
    s = scale * tl.sum(query * key, 2)
    share = tl.exp(_bent(s, at, leaky) - whole)
    return share, _slope(s, at, leaky) * share * (tl.sum(back * value, 2) - middle)


@triton.jit
def _neighbours(ends, first, end, at_once: tl.constexpr):
    """Some neighbours of a node, and which of them there are."""
    edge = first + tl.arange(0, at_once)
    return tl.load(ends + edge, mask=edge < end, other=0).to(tl.int64), edge < end


@triton.jit
def _bent(s, at, leaky: tl.constexpr):
    return tl.where(s > 0, s, at * s) if leaky else tl.minimum(tl.maximum(s, -at), at)


@triton.jit
def _slope(s, at, leaky: tl.constexpr):
    """The derivative of :func:`_bent`."""
    return tl.where(s > 0, 1.0, at) if leaky else tl.where((s >= -at) & (s <= at), 1.0, 0.0)


@triton.jit
def _of_node(x, node, head, heads: tl.constexpr, width: tl.constexpr, padded: tl.constexpr):
    """Some heads of a node."""
    column = tl.arange(0, padded)
    mask = (head < heads)[:, None] & (column < width)[None, :]
    return tl.load(x + (node * heads + head)[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _of_nodes(x, nodes, is_node, head, heads: tl.constexpr, width: tl.constexpr, padded: tl.constexpr):
    """Some heads of several nodes."""
    column = tl.arange(0, padded)
    mask = is_node[:, None, None] & (head < heads)[None, :, None] & (column < width)[None, None, :]
    at = (nodes[:, None] * heads + head[None, :])[:, :, None] * width + column[None, None, :]
    return tl.load(x + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _keep(x, values, node, head, heads: tl.constexpr, width: tl.constexpr, padded: tl.constexpr):
    """Put ``values`` where :func:`_of_node` would find them."""
    column = tl.arange(0, padded)
    mask = (head < heads)[:, None] & (column < width)[None, :]
    tl.store(x + (node * heads + head)[:, None] * width + column[None, :], values, mask=mask)
