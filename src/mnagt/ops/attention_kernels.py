r"""The Triton functions of :mod:`mnagt.ops.attention`.

``SHAPE`` is head_dim, its next power of two, the unit of head strides, all heads, and heads on the inner axis. A tensor
comes with its strides of nodes and of both axes of heads; a ``tile`` is graph, first node, number of nodes, and head.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["graphs", "nodes", "front"])
def list_tiles(
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
def attention_forward(
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
def attention_backward(
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
