r"""Attention within each graph of a ragged batch, without padding.

For each graph and head, :math:`\mathrm{softmax}(Q K^\top / \sqrt{d} + B)\, V` (eq. 2), and its derivative from the same
inputs: no score is ever kept. The twin is :func:`mnagt.attention.attend.reference`.

The batch is cut into tiles of at most ``TILE`` rows, none across two graphs, and a program takes one tile and one head.
A graph of one tile stays on chip. In a larger graph a tile walks over the others, and the forward pass leaves the
logarithm of each row's sum of exponentials for the backward. Small graphs need few registers: they have a launch of
their own, beside that of the others, which begins with the largest.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.ops import DTYPES, once_differentiable
from mnagt.ops.attention_kernels import attention_backward, attention_forward, list_tiles

Heads = Float[Tensor, "nodes *heads head_dim"]

SMALL = 32
"""Rows of a small graph, at most."""
TILE = 64
WIDEST = 256


class Launch(NamedTuple):
    """How larger graphs run: tiles of ``rows``, which walk over their graph in steps of ``block``, a divisor."""

    rows: int
    block: int
    warps: int
    stages: int


# By bytes of an element and elements of a row (the next power of two): warps for small graphs, and how large ones run.
# Two bytes and up to 128 elements: the best in timings on an H200. The others: what the compiler keeps in registers.
_IN_REGISTERS = {
    (2, 256): (4, Launch(32, 32, 4, 1)),
    (4, 64): (4, Launch(32, 32, 4, 1)),
    (4, 128): (8, Launch(32, 32, 8, 1)),
    (4, 256): (8, Launch(32, 32, 8, 1)),
}
FORWARD = {(2, 64): (2, Launch(64, 64, 4, 2)), (2, 128): (4, Launch(64, 64, 4, 2)), **_IN_REGISTERS}
BACKWARD = {(2, 64): (4, Launch(64, 32, 4, 3)), (2, 128): (4, Launch(64, 32, 4, 1)), **_IN_REGISTERS}


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
    precision: Literal["tf32", "ieee"] = "ieee",
    tiles: Int[Tensor, "slots 4"] | None = None,
) -> Heads:
    """Each node's mixture of the values in its graph.

    Graph g owns the rows ``ptr[g]:ptr[g + 1]`` and has at most ``largest`` nodes; rows after the last graph come out as
    zeros. The heads lie on one axis or two, with any strides. ``bias``, one column for each head, is added to the score
    of nodes i and j at ``pair_ptr[g] + i * n + j``; minus infinity forbids a pair, and every node must be left one.
    ``dropout`` draws from ``seed``, on the device: the same seed drops the same pairs. ``precision`` is that of float32
    products. Layers that share a batch can share its :func:`tile_list`.
    """
    _check(query, key, value, dropout)
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
        list_tiles[(triton.cdiv(graphs + 1, 32),)](ptr, tiles, graphs, nodes, front, SMALL, TILE, GRAPHS=32, OTHERS=256)
    return tiles


def _front(nodes: int) -> int:
    """Slots enough for the graphs above ``SMALL``, of at most 2 n / 65 tiles, and rows after the last, of one more."""
    return 2 * nodes // (TILE + 1) + 1


def _check(query: Heads, key: Heads, value: Heads, dropout: float) -> None:
    if query.dim() not in (3, 4):
        raise InputError(f"queries of shape {tuple(query.shape)}; they have nodes, one or two axes of heads, head_dim")
    if not query.shape == key.shape == value.shape:
        raise InputError(f"shapes differ: {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}")
    if not query.dtype == key.dtype == value.dtype:
        raise InputError(f"dtypes differ: {query.dtype}, {key.dtype}, {value.dtype}; cast them to one")
    if query.dtype not in DTYPES:
        raise InputError(f"no kernel for {query.dtype}; cast to float32, bfloat16 or float16, or take another backend")
    if query.shape[-1] > WIDEST:
        raise InputError(f"head_dim {query.shape[-1]} is above {WIDEST}, the widest; take more heads")
    if len(query) >= 2**31:
        raise InputError(f"{len(query)} nodes in a batch; at most 2**31 - 1")
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"dropout is at least 0 and below 1, got {dropout}")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query, key, value, bias, pair_ptr, seed, tiles, largest, dropout, precision) -> Tensor:
        query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
        out = torch.empty_like(query)
        lse = query.new_empty(query.shape[1:-1].numel(), len(query), dtype=torch.float32)
        seed = seed if dropout else None
        settings = {"DROPOUT": dropout, "PRECISION": precision if query.dtype == torch.float32 else "ieee"}
        pairs = _bias_view(bias, pair_ptr)
        _launch(attention_forward, FORWARD, [query, key, value, out], [lse, pairs, seed], tiles, largest, settings)
        ctx.save_for_backward(query, key, value, bias, pair_ptr, seed, tiles, lse, out)
        ctx.largest, ctx.settings = largest, settings
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, pair_ptr, seed, tiles, lse, out = ctx.saved_tensors
        into = [torch.empty_like(t) for t in (query, key, value)]
        into_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        pairs = _bias_view(bias, pair_ptr), _bias_view(into_bias, pair_ptr)
        grad = grads[0] if grads[0].stride(-1) == 1 else grads[0].contiguous()
        tensors = [query, key, value, out, grad, *into]
        _launch(attention_backward, BACKWARD, tensors, [lse, *pairs, seed], tiles, ctx.largest, ctx.settings)
        return *into, into_bias, *[None] * 6


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
    front = _front(nodes)

    def run(part: Tensor, slots: int, launch: Launch, split: int, has_whole: bool, has_large: bool) -> None:
        if slots:
            kernel[(slots * split * outer * heads,)](
                *views, *others, part, nodes, **settings, ROWS=launch.rows, BLOCK=launch.block, SPLIT=split,
                HAS_WHOLE=has_whole, HAS_LARGE=has_large, num_warps=launch.warps, STAGES=launch.stages,
            )  # fmt: skip

    run_large = partial(
        run, tiles, front, large, TILE // large.rows, SMALL < min(largest, large.rows), largest > large.rows
    )
    run_small = partial(run, tiles[front:], len(tiles) - front, Launch(SMALL, SMALL, warps, 1), 1, True, False)
    _run_side_by_side(tensors[0].device, run_large, run_small)


def _run_side_by_side(device: torch.device, one: Callable[[], None], other: Callable[[], None]) -> None:
    if device.type != "cuda":
        one()
        other()
        return
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream()
        second = _second_stream(stream)
        second.wait_stream(stream)
        with torch.cuda.stream(second):
            one()
        other()
        stream.wait_stream(second)


@cache
def _second_stream(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The stream beside ``stream``."""
    return torch.cuda.Stream(stream.device)
