r"""Attention within each graph of a ragged batch, without padding.

For each graph and head, :math:`\mathrm{softmax}(Q K^\top / \sqrt{d} + B)\, V` (eq. 2), and its derivative from the same
inputs: no score is ever kept. The twin is :func:`mnagt.attention.attend.reference`.

The batch is cut into tiles of at most ``TILE`` rows, none across two graphs, and a program takes one tile and one head.
A graph of one tile stays on chip: its rows are read once each way. In a larger graph a tile walks over the others, and
the forward pass leaves the logarithm of each row's sum of exponentials for the backward. Small graphs need few
registers, so that many fit on a processor: they have a launch of their own, beside that of the others. In the latter
the largest graphs come first.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# (Triton's types know neither its launch options, nor numbers given for constants, nor its loops.)

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mnagt.errors import InputError

Heads = Float[Tensor, "nodes *heads head_dim"]

SMALL = 32
"""Rows of a small graph, at most."""
TILE = 64
WIDEST = 256
LOG2E = tl.constexpr(1.4426950408889634)


class Launch(NamedTuple):
    """How larger graphs run: tiles of ``rows``, which walk over their graph in steps of ``block``, a divisor."""

    rows: int
    block: int
    warps: int
    stages: int


# By bytes of an element and elements of a row (the next power of two): warps for small graphs, and how large ones run.
# Two bytes and up to 128 elements: the best in timings on an H200. The others: what the compiler keeps in registers.
FORWARD = {
    (2, 64): (2, Launch(64, 64, 4, 2)),
    (2, 128): (4, Launch(64, 64, 4, 2)),
    (2, 256): (4, Launch(32, 32, 4, 1)),
    (4, 64): (4, Launch(32, 32, 4, 1)),
    (4, 128): (8, Launch(32, 32, 8, 1)),
    (4, 256): (8, Launch(32, 32, 8, 1)),
}
BACKWARD = {
    (2, 64): (4, Launch(64, 32, 4, 3)),
    (2, 128): (4, Launch(64, 32, 4, 1)),
    (2, 256): (4, Launch(32, 32, 4, 1)),
    (4, 64): (4, Launch(32, 32, 4, 1)),
    (4, 128): (8, Launch(32, 32, 8, 1)),
    (4, 256): (8, Launch(32, 32, 8, 1)),
}


def ragged_attention(
    query: Heads,
    key: Heads,
    value: Heads,
    ptr: Int[Tensor, "graphs_and_end"],
    largest: int,
    *,
    bias: Float[Tensor, "pairs all_heads"] | None = None,
    pair_ptr: Int[Tensor, "graphs_and_end"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
    precision: Literal["tf32", "tf32x3", "ieee"] = "ieee",
    tiles: Int[Tensor, "slots 4"] | None = None,
) -> Heads:
    """Each node's mixture of the values in its graph.

    Graph g owns the rows ``ptr[g]:ptr[g + 1]`` and has at most ``largest`` nodes; rows after the last graph come out as
    zeros. The heads lie on one axis or two, with any strides. ``bias``, one column for each head, is added to the score
    of nodes i and j at ``pair_ptr[g] + i * n + j``; minus infinity forbids a pair, and every node must be left one.
    ``dropout`` draws from ``seed``, on the device: the same seed drops the same pairs. ``precision`` is that of float32
    products. Layers that share a batch can share its :func:`tile_list`.
    """
    _check(query, key, value, ptr, largest, bias, pair_ptr, dropout, seed, precision)
    if tiles is None:
        tiles = tile_list(ptr, len(query))
    q, k, v = (t if t.dim() == 4 else t.unsqueeze(2) for t in (query, key, value))
    out = _Attention.apply(q, k, v, bias, pair_ptr, seed, tiles, largest, dropout, precision)
    return out if query.dim() == 4 else out.squeeze(2)


def tile_list(ptr: Int[Tensor, "graphs_and_end"], nodes: int) -> Int[Tensor, "slots 4"]:
    """Tiles of the batch: first row, start and end of the graph, and which graph it is. Slots to spare are zero.

    First the tiles of the graphs above ``SMALL``, the largest first, and those of rows after the last graph, which
    are of graph -1. Then a slot for each graph, filled if it is small.
    """
    graphs, front = len(ptr) - 1, _front(nodes)
    tiles = torch.zeros(front + graphs, 4, dtype=torch.int32, device=ptr.device)
    with torch.cuda.device_of(ptr):
        _cut[(triton.cdiv(graphs + 1, 32),)](ptr, tiles, graphs, nodes, front, SMALL, TILE, GRAPHS=32, OTHERS=256)
    return tiles


def _front(nodes: int) -> int:
    """Slots enough for the graphs above ``SMALL``, of at most 2 n / 65 tiles, and rows after the last, of one more."""
    return 2 * nodes // (TILE + 1) + 1


def _check(
    query: Heads,
    key: Heads,
    value: Heads,
    ptr: Tensor,
    largest: int,
    bias: Tensor | None,
    pair_ptr: Tensor | None,
    dropout: float,
    seed: Tensor | None,
    precision: str,
) -> None:
    if query.dim() not in (3, 4):
        raise InputError(f"queries of shape {tuple(query.shape)}; they have nodes, one or two axes of heads, head_dim")
    if not query.shape == key.shape == value.shape:
        raise InputError(f"shapes differ: {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}")
    if not query.dtype == key.dtype == value.dtype:
        raise InputError(f"dtypes differ: {query.dtype}, {key.dtype}, {value.dtype}; cast them to one")
    if query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InputError(f"no kernel for {query.dtype}; cast to float32, bfloat16 or float16, or take another backend")
    if query.shape[-1] > WIDEST:
        raise InputError(f"head_dim {query.shape[-1]} is above {WIDEST}, the widest; take more heads")
    if ptr.device != query.device:
        raise InputError(f"ptr is on {ptr.device} and the queries on {query.device}; move one to the other")
    if len(query) >= 2**31:
        raise InputError(f"{len(query)} nodes in a batch; at most 2**31 - 1")
    if ptr.dtype not in (torch.int32, torch.int64) or len(ptr) < 1:
        raise InputError(f"ptr is int32 or int64 and ends with the number of nodes, got {ptr.dtype} {tuple(ptr.shape)}")
    if largest < 0:
        raise InputError(f"largest counts nodes, got {largest}")
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"dropout is at least 0 and below 1, got {dropout}")
    if dropout and seed is None:
        raise InputError("dropout needs a seed: an integer tensor on the device")
    if bias is not None and pair_ptr is None:
        raise InputError("bias needs pair_ptr, where each graph's pairs begin")
    if bias is not None and bias.shape[1] != query.shape[1:-1].numel():
        raise InputError(f"bias for {bias.shape[1]} heads, queries have {query.shape[1:-1].numel()}")
    if precision not in ("tf32", "tf32x3", "ieee"):
        raise InputError(f"precision is 'tf32', 'tf32x3' or 'ieee', got {precision!r}")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query, key, value, bias, pair_ptr, seed, tiles, largest, dropout, precision) -> Tensor:
        query, key, value = (_rows_whole(t) for t in (query, key, value))
        out = torch.empty_like(query)
        lse = query.new_empty(query.shape[1:-1].numel(), len(query), dtype=torch.float32)
        seed = seed if dropout else None
        settings = {"DROPOUT": dropout, "PRECISION": precision if query.dtype == torch.float32 else "ieee"}
        pairs = _bias_view(bias, pair_ptr)
        _launch(_forward, FORWARD, [query, key, value, out], [lse, pairs, seed], tiles, largest, settings)
        ctx.save_for_backward(query, key, value, bias, pair_ptr, seed, tiles, lse, out)
        ctx.largest, ctx.settings = largest, settings
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, bias, pair_ptr, seed, tiles, lse, out = ctx.saved_tensors
        into = [torch.empty_like(t) for t in (query, key, value)]
        into_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        pairs = _bias_view(bias, pair_ptr), _bias_view(into_bias, pair_ptr)
        tensors = [query, key, value, out, _rows_whole(grads[0]), *into]
        _launch(_backward, BACKWARD, tensors, [lse, *pairs, seed], tiles, ctx.largest, ctx.settings)
        return *into, into_bias, *[None] * 6


def _rows_whole(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _bias_view(bias: Tensor | None, pair_ptr: Tensor | None) -> tuple | None:
    return None if bias is None else (bias, *bias.stride(), pair_ptr)


def _launch(
    kernel: Any,
    table: dict[tuple[int, int], tuple[int, Launch]],
    tensors: list[Tensor],
    others: list[Any],
    tiles: Tensor,
    largest: int,
    settings: dict[str, Any],
) -> None:
    """Launch a kernel twice, for large graphs and for small ones."""
    nodes, outer, heads, dim = tensors[0].shape
    if tensors[0].numel() == 0:
        return
    width = max(16, triton.next_power_of_2(dim))
    steps = [[s if n > 1 else 0 for s, n in zip(t.stride()[1:3], (outer, heads), strict=True)] for t in tensors]
    align = next(a for a in (8, 4, 2, 1) if all(s % a == 0 for pair in steps for s in pair))
    views = [(t, tl.constexpr(t.stride(0)), a // align, b // align) for t, (a, b) in zip(tensors, steps, strict=True)]
    settings = {"SHAPE": (dim, width, align, outer * heads, heads), **settings}
    warps, large = table[tensors[0].element_size(), max(64, width)]

    def run_large() -> None:
        split = TILE // large.rows
        kernel[(_front(nodes) * split * outer * heads,)](
            *views, *others, tiles, nodes, **settings, ROWS=large.rows, BLOCK=large.block, SPLIT=split,
            HAS_WHOLE=SMALL < min(largest, large.rows), HAS_LARGE=largest > large.rows,
            num_warps=large.warps, STAGES=large.stages,
        )  # fmt: skip

    def run_small() -> None:
        part = tiles[_front(nodes) :]
        if len(part):
            kernel[(len(part) * outer * heads,)](
                *views, *others, part, nodes, **settings, ROWS=SMALL, BLOCK=SMALL, SPLIT=1,
                HAS_WHOLE=True, HAS_LARGE=False, num_warps=warps, STAGES=1,
            )  # fmt: skip

    _side_by_side(tensors[0].device, run_large, run_small)


def _side_by_side(device: torch.device, one: Callable[[], None], other: Callable[[], None]) -> None:
    """Let two launches run at the same time."""
    if device.type != "cuda":
        one()
        other()
        return
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream()
        aside = _beside(stream)
        aside.wait_stream(stream)
        with torch.cuda.stream(aside):
            one()
        other()
        stream.wait_stream(aside)


@cache
def _beside(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """A second stream for whoever works on the given one."""
    return torch.cuda.Stream(stream.device)


@triton.jit(do_not_specialize=["graphs", "nodes", "front"])
def _cut(
    ptr, tiles, graphs, nodes, front,
    SMALL: tl.constexpr, TILE: tl.constexpr, GRAPHS: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Write the tiles of ``GRAPHS`` graphs to their slots: after those of all larger graphs, equals in their order."""
    g = tl.program_id(0) * GRAPHS + tl.arange(0, GRAPHS)
    start = tl.load(ptr + g, mask=g <= graphs, other=nodes).to(tl.int32)
    end = tl.load(ptr + g + 1, mask=g < graphs, other=nodes).to(tl.int32)
    size = tl.where(g < graphs, end - start, SMALL)
    before = tl.zeros([GRAPHS], tl.int32)
    for h0 in range(0, graphs, OTHERS):
        h = h0 + tl.arange(0, OTHERS)
        low = tl.load(ptr + h, mask=h < graphs, other=0).to(tl.int32)
        other = tl.load(ptr + h + 1, mask=h < graphs, other=0).to(tl.int32) - low
        is_before = (other[None, :] > size[:, None]) | ((other[None, :] == size[:, None]) & (h[None, :] < g[:, None]))
        cost = tl.where(other > SMALL, tl.cdiv(other, TILE), 0)
        before += tl.sum(tl.where(is_before, cost[None, :], 0), 1)
    slot = tl.where((size > SMALL) | (g >= graphs), before, front + g)
    for t in range(0, tl.cdiv(tl.max(end - start), TILE)):
        first = start + t * TILE
        is_tile = (first < end) & ((slot + t < front) | (slot >= front))
        at = tiles + (slot + t) * 4
        tl.store(at, first, mask=is_tile)
        tl.store(at + 1, start, mask=is_tile)
        tl.store(at + 2, end, mask=is_tile)
        tl.store(at + 3, tl.where(g < graphs, g, -1), mask=is_tile)


@triton.jit
def _rows(x, row, head, left, SHAPE: tl.constexpr, ROWS: tl.constexpr):
    """Where ``ROWS`` rows of a head lie from ``row`` on, and which elements there are: ``left`` rows of them."""
    WIDTH: tl.constexpr = SHAPE[1]
    r = tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, WIDTH)[None, :]
    corner = row.to(tl.int64) * x[1] + (head // SHAPE[4] * x[2] + head % SHAPE[4] * x[3]) * SHAPE[2]
    return x[0] + corner + (r * x[1] + d), (r < left) & (d < SHAPE[0])


@triton.jit
def _load(x, row, head, left, SHAPE: tl.constexpr, ROWS: tl.constexpr):
    at, mask = _rows(x, row, head, left, SHAPE, ROWS)
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def _store(x, content, row, head, left, SHAPE: tl.constexpr, ROWS: tl.constexpr):
    at, mask = _rows(x, row, head, left, SHAPE, ROWS)
    tl.store(at, content.to(x[0].dtype.element_ty), mask=mask)


@triton.jit
def _pair(x, i, j, tile):
    """Where a bias, or its gradient, has the pairs of nodes i and j, and which of them there are."""
    graph, _, n, head = tile
    pair = tl.load(x[3] + graph).to(tl.int64) + i.to(tl.int64) * n + j
    return x[0] + (pair * x[1] + head * x[2]), (i < n) & (j < n)


@triton.jit
def _scores(a, b, i, j, tile, bias, SHAPE: tl.constexpr, PRECISION: tl.constexpr):
    """Scores of nodes i and j, to the base 2; minus infinity where there is no j."""
    s = tl.dot(a, tl.trans(b), input_precision=PRECISION) * (LOG2E / SHAPE[0] ** 0.5)
    if bias is not None:
        at, mask = _pair(bias, i, j, tile)
        s += tl.load(at, mask=mask, other=0.0).to(tl.float32) * LOG2E
    return tl.where(j < tile[2], s, float("-inf"))


@triton.jit
def _mix(x):
    """Scatter the bits of 32-bit numbers, one to one (Ellis and Wellons, lowbias32)."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _drop(x, i, j, tile, seed, DROPOUT: tl.constexpr):
    """x without the pairs that chance drops, the others scaled up.

    Philox draws two numbers for the head; the row and j are mixed in.
    """
    _, start, _, head = tile
    a, b, _, _ = tl.randint4x(tl.load(seed), head)
    bits = _mix(_mix((start + i).to(tl.uint32) + a) ^ (j.to(tl.uint32) * 0x9E3779B1 + b))
    return tl.where(bits >= int(DROPOUT * 4294967296), x * (1 / (1 - DROPOUT)), 0.0)


@triton.jit
def _tile(tiles, SHAPE: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr):
    """This program's tile, or part of one: its first row, the rows left of the graph, and graph, start, size, head."""
    tile = tl.program_id(0) // SHAPE[3]
    at = tiles + tile // SPLIT * 4
    first = tl.load(at) + tile % SPLIT * ROWS
    start = tl.load(at + 1)
    end = tl.load(at + 2)
    return first, end - first, (tl.load(at + 3), start, end - start, (tl.program_id(0) % SHAPE[3]).to(tl.int64))


@triton.jit(do_not_specialize=["nodes"])
def _forward(
    query, key, value, out, lse, bias, seed, tiles, nodes,
    SHAPE: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    SPLIT: tl.constexpr, HAS_WHOLE: tl.constexpr, HAS_LARGE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = SHAPE[1]
    first, left, tile = _tile(tiles, SHAPE, ROWS, SPLIT)
    if left > 0:
        if tile[0] < 0:
            _store(out, tl.zeros([ROWS, WIDTH], tl.float32), first, tile[3], left, SHAPE, ROWS)
        elif tile[2] <= ROWS:
            if HAS_WHOLE:
                _attend(query, key, value, out, None, bias, seed, first, left, tile, nodes,
                        SHAPE, ROWS, ROWS, True, DROPOUT, PRECISION, STAGES)  # fmt: skip
        elif HAS_LARGE:
            _attend(query, key, value, out, lse, bias, seed, first, left, tile, nodes,
                    SHAPE, ROWS, BLOCK, False, DROPOUT, PRECISION, STAGES)  # fmt: skip


@triton.jit
def _around(x, n, BLOCK: tl.constexpr):
    """x, or what is left of it after the last block. Tiles start their walk at their own rows, not all at the same."""
    span = tl.cdiv(n, BLOCK) * BLOCK
    return tl.where(x < span, x, x - span)


@triton.jit
def _attend(
    query, key, value, out, lse, bias, seed, first, left, tile, nodes,
    SHAPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs of a tile, the keys in blocks, of which the first is the last if the graph fits whole."""
    WIDTH: tl.constexpr = SHAPE[1]
    _, start, n, head = tile
    r = tl.arange(0, ROWS)
    i = (first - start) + r[:, None]
    q = _load(query, first, head, left, SHAPE, ROWS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    for step in tl.range(0, BLOCK if IS_WHOLE else n, BLOCK, num_stages=STAGES):
        j0 = 0 if IS_WHOLE else _around(first - start + step, n, BLOCK)
        k = _load(key, start + j0, head, n - j0, SHAPE, BLOCK)
        v = _load(value, start + j0, head, n - j0, SHAPE, BLOCK)
        j = j0 + tl.arange(0, BLOCK)[None, :]
        s = _scores(q, k, i, j, tile, bias, SHAPE, PRECISION)
        higher = tl.maximum(top, tl.max(s, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - base[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(p, 1)
        if seed is not None:
            p = _drop(p, i, j, tile, seed, DROPOUT)
        mixed = tl.dot(p.to(v.dtype), v, mixed * fade[:, None], input_precision=PRECISION)
        top = higher
    _store(out, mixed / total[:, None], first, head, left, SHAPE, ROWS)
    if lse is not None:
        tl.store(lse + head * nodes + first + r, top + tl.log2(total), mask=r < left)


@triton.jit(do_not_specialize=["nodes"])
def _backward(
    query, key, value, out, grad, into_query, into_key, into_value, lse, bias, into_bias, seed, tiles, nodes,
    SHAPE: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    SPLIT: tl.constexpr, HAS_WHOLE: tl.constexpr, HAS_LARGE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = SHAPE[1]
    first, left, tile = _tile(tiles, SHAPE, ROWS, SPLIT)
    if left > 0:
        if tile[0] < 0:
            nothing = tl.zeros([ROWS, WIDTH], tl.float32)
            _store(into_query, nothing, first, tile[3], left, SHAPE, ROWS)
            _store(into_key, nothing, first, tile[3], left, SHAPE, ROWS)
            _store(into_value, nothing, first, tile[3], left, SHAPE, ROWS)
        elif tile[2] <= ROWS:
            if HAS_WHOLE:
                _backward_whole(query, key, value, grad, into_query, into_key, into_value, bias, into_bias, seed, tile,
                                SHAPE, ROWS, DROPOUT, PRECISION)  # fmt: skip
        elif HAS_LARGE:
            _backward_queries(query, key, value, out, grad, into_query, lse, bias, into_bias, seed,
                              first, left, tile, nodes, SHAPE, ROWS, BLOCK, DROPOUT, PRECISION, STAGES)  # fmt: skip
            _backward_keys(query, key, value, out, grad, into_key, into_value, lse, bias, seed,
                           first, left, tile, nodes, SHAPE, ROWS, BLOCK, DROPOUT, PRECISION, STAGES)  # fmt: skip


@triton.jit
def _backward_whole(
    query, key, value, grad, into_query, into_key, into_value, bias, into_bias, seed, tile,
    SHAPE: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a graph that fits whole."""
    _, start, n, head = tile
    i = tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, ROWS)[None, :]
    q = _load(query, start, head, n, SHAPE, ROWS)
    k = _load(key, start, head, n, SHAPE, ROWS)
    v = _load(value, start, head, n, SHAPE, ROWS)
    g = _load(grad, start, head, n, SHAPE, ROWS)
    s = _scores(q, k, i, j, tile, bias, SHAPE, PRECISION)
    p = tl.exp2(s - tl.max(s, 1)[:, None])
    p = p / tl.sum(p, 1)[:, None]
    into_p = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    kept = p
    if seed is not None:
        kept = _drop(p, i, j, tile, seed, DROPOUT)
        into_p = _drop(into_p, i, j, tile, seed, DROPOUT)
    dv = tl.dot(tl.trans(kept.to(g.dtype)), g, input_precision=PRECISION)
    _store(into_value, dv, start, head, n, SHAPE, ROWS)
    ds = p * (into_p - tl.sum(p * into_p, 1)[:, None])
    if into_bias is not None:
        at, mask = _pair(into_bias, i, j, tile)
        tl.store(at, ds.to(into_bias[0].dtype.element_ty), mask=mask)
    ds = (ds * (1 / SHAPE[0] ** 0.5)).to(q.dtype)
    _store(into_query, tl.dot(ds, k, input_precision=PRECISION), start, head, n, SHAPE, ROWS)
    _store(into_key, tl.dot(tl.trans(ds), q, input_precision=PRECISION), start, head, n, SHAPE, ROWS)


@triton.jit
def _backward_queries(
    query, key, value, out, grad, into_query, lse, bias, into_bias, seed, first, left, tile, nodes,
    SHAPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile's queries, and of the bias, the keys in blocks."""
    WIDTH: tl.constexpr = SHAPE[1]
    _, start, n, head = tile
    r = tl.arange(0, ROWS)
    i = (first - start) + r[:, None]
    q = _load(query, first, head, left, SHAPE, ROWS)
    g = _load(grad, first, head, left, SHAPE, ROWS)
    o = _load(out, first, head, left, SHAPE, ROWS)
    average = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)[:, None]
    level = tl.load(lse + head * nodes + first + r, mask=r < left, other=float("inf"))[:, None]
    dq = tl.zeros([ROWS, WIDTH], tl.float32)
    for step in tl.range(0, n, BLOCK, num_stages=STAGES):
        j0 = _around(first - start + step, n, BLOCK)
        k = _load(key, start + j0, head, n - j0, SHAPE, BLOCK)
        v = _load(value, start + j0, head, n - j0, SHAPE, BLOCK)
        j = j0 + tl.arange(0, BLOCK)[None, :]
        p = tl.exp2(_scores(q, k, i, j, tile, bias, SHAPE, PRECISION) - level)
        into_p = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        if seed is not None:
            into_p = _drop(into_p, i, j, tile, seed, DROPOUT)
        ds = p * (into_p - average)
        if into_bias is not None:
            at, mask = _pair(into_bias, i, j, tile)
            tl.store(at, ds.to(into_bias[0].dtype.element_ty), mask=mask)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    _store(into_query, dq * (1 / SHAPE[0] ** 0.5), first, head, left, SHAPE, ROWS)


@triton.jit
def _backward_keys(
    query, key, value, out, grad, into_key, into_value, lse, bias, seed, first, left, tile, nodes,
    SHAPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile's keys and values, the queries in blocks. Pairs are transposed: keys down, queries across."""
    WIDTH: tl.constexpr = SHAPE[1]
    _, start, n, head = tile
    j = (first - start) + tl.arange(0, ROWS)[:, None]
    k = _load(key, first, head, left, SHAPE, ROWS)
    v = _load(value, first, head, left, SHAPE, ROWS)
    dk = tl.zeros([ROWS, WIDTH], tl.float32)
    dv = tl.zeros([ROWS, WIDTH], tl.float32)
    for step in tl.range(0, n, BLOCK, num_stages=STAGES):
        i0 = _around(first - start + step, n, BLOCK)
        q = _load(query, start + i0, head, n - i0, SHAPE, BLOCK)
        g = _load(grad, start + i0, head, n - i0, SHAPE, BLOCK)
        i = i0 + tl.arange(0, BLOCK)
        o = _load(out, start + i0, head, n - i0, SHAPE, BLOCK)
        average = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)[None, :]
        level = tl.load(lse + head * nodes + start + i, mask=i < n, other=float("inf"))[None, :]
        p = tl.exp2(_scores(k, q, i[None, :], j, tile, bias, SHAPE, PRECISION) - level)
        into_p = tl.dot(v, tl.trans(g), input_precision=PRECISION)
        kept = p
        if seed is not None:
            kept = _drop(p, i[None, :], j, tile, seed, DROPOUT)
            into_p = _drop(into_p, i[None, :], j, tile, seed, DROPOUT)
        dv = tl.dot(kept.to(g.dtype), g, dv, input_precision=PRECISION)
        ds = p * (into_p - average)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    _store(into_key, dk * (1 / SHAPE[0] ** 0.5), first, head, left, SHAPE, ROWS)
    _store(into_value, dv, first, head, left, SHAPE, ROWS)
