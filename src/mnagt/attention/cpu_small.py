r"""Attention of small graphs on a CPU, by plain products.

.. math:: P = \mathrm{softmax}(Q K^\top / \sqrt d), \qquad Z = P V, \qquad
          \partial S = P \circ (\partial Z\, V^\top - \mathrm{rowsum}(\partial Z \circ Z))

PyTorch's fused kernel takes nearly twice as long on graphs of 30 nodes, and catches up at about 200 (docs/log.md).
Products want the nodes of a graph side by side for each head, so rows are put in that order for the whole batch at
once, straight from where they lie. Graphs of like size may share a product, the smaller ones with empty slots that
nobody attends to. The weights of all pairs are kept for the backward pass. The twin is
:func:`mnagt.attention.attend.reference`.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.graphs.buckets import Bucket, Layout
from mnagt.ops import once_differentiable

Rows = Float[Tensor, "rows heads dim"]

LARGEST = 192
"""Nodes of a graph that is small, at most."""


def small_attention(query: Rows, key: Rows, value: Rows, buckets: tuple[Bucket, ...], nodes: Layout | None) -> Rows:
    """Each query's mixture of the values of its graph. Values are as wide as keys.

    ``nodes`` says in which slots of the buckets rows go; None if each is in its slot already.
    """
    layout = _head_by_head(buckets, nodes, query.shape[1], query.dtype)
    return _Small.apply(query, key, value, layout)  # type: ignore[return-value]


class _Layout(NamedTuple):
    """Rows of all nodes and heads put in order for products: graph by graph, in each head by head."""

    order: Int[Tensor, "slots"]
    """The row in each slot."""
    inverse: Int[Tensor, "rows"]
    """The slot of each row."""
    products: list[tuple[int, int]]
    """Graphs times heads, and nodes of each, in every bucket."""
    masks: list[Float[Tensor, "graphs_and_heads 1 width"] | None]
    """Minus infinity for empty slots: they repeat a row of their graph, and nobody attends to them."""

    def gather(self, rows: Rows) -> Float[Tensor, "slots dim"]:
        return rows.reshape(-1, rows.shape[2]).index_select(0, self.order)

    def gather_gradient(self, rows: Rows) -> Float[Tensor, "slots dim"]:
        """As ``gather``, with zeros in empty slots."""
        if len(self.order) == len(self.inverse):
            return self.gather(rows)
        empty = rows.new_zeros(len(self.order), rows.shape[2])
        return empty.index_copy_(0, self.inverse, rows.reshape(-1, rows.shape[2]))

    def scatter(self, slots: Float[Tensor, "slots dim"], shape: torch.Size) -> Rows:
        return slots.index_select(0, self.inverse).view(shape)

    def split(self, *tensors: Float[Tensor, "slots _"]) -> Iterator[list[Float[Tensor, "graphs_and_heads width _"]]]:
        """Each bucket's part of the tensors."""
        sizes = [count * width for count, width in self.products]
        for shape, parts in zip(self.products, zip(*(t.split(sizes) for t in tensors), strict=True), strict=True):
            yield [t.view(*shape, -1) for t in parts]


class _Small(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: _Layout) -> Tensor:
        ctx.layout, ctx.shape, ctx.scale = layout, value.shape, query.shape[2] ** -0.5
        query, key, value = (layout.gather(t) for t in (query, key, value))
        out, weights = torch.empty_like(value), []
        for mask, (q, k, v, z) in zip(layout.masks, layout.split(query, key, value, out), strict=True):
            beta, added = (0, q.new_empty(1, 1, 1)) if mask is None else (1, mask)
            weight = torch.baddbmm(added, q, k.mT, beta=beta, alpha=ctx.scale).softmax(dim=2)
            torch.bmm(weight, v, out=z)
            if any(ctx.needs_input_grad):
                weights.append(weight)
        ctx.save_for_backward(query, key, value, *weights)
        return layout.scatter(out, ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, *weights = ctx.saved_tensors
        into = [ctx.layout.gather_gradient(grads[0]), torch.empty_like(key), torch.empty_like(value)]
        parts = ctx.layout.split(query, key, value, *into)
        for weight, (q, k, v, g, into_k, into_v) in zip(weights, parts, strict=True):
            score = torch.ops.aten._softmax_backward_data(torch.bmm(g, v.mT), weight, 2, weight.dtype)
            torch.bmm(weight.mT, g, out=into_v)
            torch.baddbmm(into_k, score.mT, q, beta=0, alpha=ctx.scale, out=into_k)
            torch.baddbmm(g, score, k, beta=0, alpha=ctx.scale, out=g)  # the queries' takes the place of what is done
        return *(ctx.layout.scatter(into.pop(0), ctx.shape) for _ in range(3)), None


@lru_cache(maxsize=4)  # every layer of a model asks for the same
def _head_by_head(buckets: tuple[Bucket, ...], nodes: Layout | None, heads: int, dtype: torch.dtype) -> _Layout:
    """From rows node by node, in each its heads, to slots graph by graph, in each head by head."""
    graphs, width = torch.tensor([(bucket.graphs, bucket.width) for bucket in buckets]).T
    width = width.repeat_interleave(graphs)
    first, width = (t.repeat_interleave(width)[:, None] for t in (width.cumsum(0) - width, width))
    node = torch.arange(len(width))[:, None]
    inverse = first * heads + torch.arange(heads) * width + node - first
    order = torch.empty(inverse.numel(), dtype=torch.long)
    order[inverse.flatten()] = torch.arange(inverse.numel())
    if nodes is not None and not nodes.is_identity:
        inverse = inverse[nodes.slot_of_row]
        order = nodes.row_of_slot[order // heads] * heads + order % heads
    masks = [
        None if bucket.is_node is None else torch.where(bucket.is_node, 0.0, -torch.inf).to(dtype) for bucket in buckets
    ]
    masks = [None if mask is None else mask.repeat_interleave(heads, dim=0)[:, None] for mask in masks]
    return _Layout(order, inverse.flatten(), [(bucket.graphs * heads, bucket.width) for bucket in buckets], masks)
