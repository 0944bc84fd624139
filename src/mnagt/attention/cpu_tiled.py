r"""Attention some queries at a time, with dropout and gradients of a bias, in memory that does not grow with the pairs.

For a tile of queries, with :math:`D` what dropout leaves of each weight, 0 or :math:`1 / (1 - p)`,

.. math:: P = \mathrm{softmax}(Q K^\top / \sqrt d + B), \qquad Z = (P \circ D)\, V, \qquad
          \partial S = P \circ (D \circ \partial Z\, V^\top - \mathrm{rowsum}(\partial Z \circ Z))

where :math:`\partial S` is the gradient of the scores. The backward pass works the weights out again, tile by tile, and
draws the same :math:`D`: the seed is kept, not the draw. The twin is :func:`mnagt.attention.attend.reference`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mnagt.ops import once_differentiable

Wide = Float[Tensor, "graphs heads width dim"]
Mask = Float[Tensor, "graphs _ _ width"] | Bool[Tensor, "graphs _ _ width"]

AT_ONCE = 2**22
"""Scores in a tile, at most, unless a single query has more."""


def tiled_attention(query: Wide, key: Wide, value: Wide, mask: Mask | None, dropout: float) -> Wide:
    """Each query's mixture of the values. ``mask`` says who may attend, or is added to the scores.

    What is dropped is drawn from PyTorch's generator.
    """
    seed = int(torch.randint(2**62, ())) if dropout else 0
    return _Tiled.apply(query, key, value, mask, dropout, seed)  # type: ignore[return-value]


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: float, seed: int) -> Tensor:
        out = torch.empty_like(query)
        for tile in _tiles(query, key):
            weight = _weights(query[:, :, tile], key, mask, tile)
            if dropout:
                weight *= _dropout_factors(weight, dropout, seed, tile)
            out[:, :, tile] = weight @ value
        ctx.save_for_backward(query, key, value, mask, out)
        ctx.dropout, ctx.seed = dropout, seed
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, mask, out = ctx.saved_tensors
        (grad,) = grads
        into_query, into_key, into_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        into_mask = torch.empty_like(mask) if ctx.needs_input_grad[3] else None
        for tile in _tiles(query, key):
            q, g = query[:, :, tile], grad[:, :, tile]
            weight, into = _weights(q, key, mask, tile), g @ value.mT
            average = (g * out[:, :, tile]).sum(dim=3, keepdim=True)
            kept = _dropout_factors(weight, ctx.dropout, ctx.seed, tile) if ctx.dropout else None
            into_value += (weight if kept is None else weight * kept).mT @ g
            into = (into if kept is None else into.mul_(kept)).sub_(average).mul_(weight)
            if into_mask is not None:
                into_mask[:, :, tile] = into
            into *= query.shape[3] ** -0.5
            into_query[:, :, tile] = into @ key
            into_key += into.mT @ q
        return into_query, into_key, into_value, into_mask, None, None


def _tiles(query: Wide, key: Wide) -> Iterator[slice]:
    rows = max(1, AT_ONCE // (query.shape[:2].numel() * key.shape[2]))
    return (slice(at, at + rows) for at in range(0, query.shape[2], rows))


def _weights(
    query: Float[Tensor, "graphs heads rows dim"], key: Wide, mask: Tensor | None, tile: slice
) -> Float[Tensor, "graphs heads rows width"]:
    """Attention weights of a tile of queries."""
    score = (query * query.shape[3] ** -0.5) @ key.mT
    if mask is not None:
        mask = mask[:, :, tile] if mask.shape[2] > 1 else mask
        score = score.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else score.add_(mask)
    score -= score.amax(dim=3, keepdim=True)
    score.exp_()
    return score.div_(score.sum(dim=3, keepdim=True))


def _dropout_factors(weight: Tensor, dropout: float, seed: int, tile: slice) -> Tensor:
    """Dropout factors of a tile, the same in every call with this seed."""
    generator = torch.Generator(weight.device).manual_seed(seed + tile.start)
    return torch.empty_like(weight).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)
