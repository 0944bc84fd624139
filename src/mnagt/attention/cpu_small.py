r"""Attention of small graphs on a CPU, by plain products.

.. math:: P = \mathrm{softmax}(Q K^\top / \sqrt d), \qquad Z = P V, \qquad
          \partial S = P \circ (\partial Z\, V^\top - \mathrm{rowsum}(\partial Z \circ Z))

PyTorch's fused kernel takes nearly twice as long on graphs of 30 nodes, and catches up at about 200 (docs/log.md).
Products want the nodes of a graph side by side for each head, so rows are put in that order for the whole batch at
once. Graphs of like size may share a product, the smaller ones with empty slots that nobody attends to. The weights of
all pairs are kept for the backward pass. The twin is :func:`mnagt.attention.attend.reference`.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mnagt.graphs.buckets import Bucket

Slots = Float[Tensor, "slots heads dim"]
Shapes = tuple[tuple[int, int], ...]
"""Graphs, and nodes of each, in every bucket."""

LARGEST = 192
"""Nodes of a graph that is small, at most."""


def small_attention(query: Slots, key: Slots, value: Slots, buckets: Sequence[Bucket]) -> Slots:
    """Each query's mixture of the values of its graph. Values are as wide as keys."""
    shapes = tuple((bucket.graphs, bucket.width) for bucket in buckets)
    return _Small.apply(query, key, value, shapes, [bucket.is_node for bucket in buckets])  # type: ignore[return-value]


class _Small(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, shapes: Shapes, is_node: Sequence[Tensor | None]
    ) -> Tensor:
        ctx.shapes, ctx.heads, ctx.scale = shapes, query.shape[1], query.shape[2] ** -0.5
        order, inverse = _head_by_head(shapes, ctx.heads)
        query, key, mixed = (t.flatten(0, 1).index_select(0, order) for t in (query, key, value))
        out, weights = torch.empty_like(mixed), []
        parts = _parts(shapes, ctx.heads, query, key, mixed, out)
        for may_attend, (q, k, v, z) in zip(is_node, parts, strict=True):
            score = q.new_empty(*q.shape[:2], q.shape[1])
            torch.baddbmm(score, q, k.mT, beta=0, alpha=ctx.scale, out=score)
            if may_attend is not None:  # an empty slot repeats a node of its graph, and nobody attends to it
                mask = torch.where(may_attend, 0.0, -torch.inf).to(q.dtype)
                score.unflatten(0, (-1, ctx.heads)).add_(mask[:, None, None, :])
            weight = score.softmax(dim=2)
            torch.bmm(weight, v, out=z)
            if any(ctx.needs_input_grad):
                weights.append(weight)
        ctx.save_for_backward(query, key, mixed, *weights)
        return out.index_select(0, inverse).view(value.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, mixed, *weights = ctx.saved_tensors
        order, inverse = _head_by_head(ctx.shapes, ctx.heads)
        into = [grads[0].flatten(0, 1).index_select(0, order), torch.empty_like(key), torch.empty_like(mixed)]
        parts = _parts(ctx.shapes, ctx.heads, query, key, mixed, *into)
        for weight, (q, k, v, g, into_k, into_v) in zip(weights, parts, strict=True):
            score = torch.ops.aten._softmax_backward_data(torch.bmm(g, v.mT), weight, 2, weight.dtype)
            torch.bmm(weight.mT, g, out=into_v)
            torch.baddbmm(into_k, score.mT, q, beta=0, alpha=ctx.scale, out=into_k)
            torch.baddbmm(g, score, k, beta=0, alpha=ctx.scale, out=g)  # the queries' takes the place of what is done
        shape = grads[0].shape[:2]
        return *(into.pop(0).index_select(0, inverse).unflatten(0, shape) for _ in range(3)), None, None


def _parts(
    shapes: Shapes, heads: int, *tensors: Float[Tensor, "rows _"]
) -> Iterator[list[Float[Tensor, "graphs_and_heads width _"]]]:
    """Each bucket's part of the tensors."""
    parts = zip(*(t.split([graphs * width * heads for graphs, width in shapes]) for t in tensors), strict=True)
    for (graphs, width), part in zip(shapes, parts, strict=True):
        yield [t.view(graphs * heads, width, -1) for t in part]


@lru_cache(maxsize=4)  # every layer of a model asks for the same
def _head_by_head(shapes: Shapes, heads: int) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
    """From rows node by node, in each its heads, to rows graph by graph, in each head by head; and the inverse."""
    graphs, width = torch.tensor(shapes).T
    width = width.repeat_interleave(graphs)
    first, width = (t.repeat_interleave(width)[:, None] for t in (width.cumsum(0) - width, width))
    node = torch.arange(len(width))[:, None]
    inverse = (first * heads + torch.arange(heads) * width + node - first).flatten()
    order = torch.empty_like(inverse)
    order[inverse] = torch.arange(len(inverse))
    return order, inverse
