"""Linear maps of many rows."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mnagt import fused


class Linear(nn.Linear):
    """``torch.nn.Linear``, whose weight and bias get their gradients from our own kernels on a GPU."""

    def forward(self, input: Float[Tensor, "*rows width_in"]) -> Float[Tensor, "*rows width_out"]:
        return linear(input, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*rows width_in"],
    weight: Float[Tensor, "*maps width_out width_in"],
    bias: Float[Tensor, "all_out"] | None = None,
) -> Float[Tensor, "*rows all_out"]:
    """Several maps put what they make of ``x`` side by side."""
    if fused.is_usable(x.device):
        from mnagt.fused.linear import linear

        return linear(x, weight, bias, fused.precision())
    return F.linear(x, weight.flatten(0, -2), bias)


def batched_linears(
    x: Float[Tensor, "kernels rows width_in"] | Sequence[Float[Tensor, "rows width_in"]],
    weights: Sequence[Float[Tensor, "weights width_out width_in"]],
) -> tuple[Float[Tensor, "kernels rows width_out"], ...]:
    """Maps of the same ``x``, each with a weight for every kernel, or with one for all.

    On a CPU, products one by one beat a batched one (docs/log.md).
    """
    if fused.is_usable(weights[0].device):
        from mnagt.fused.linear import batched_linears

        return batched_linears(x if isinstance(x, Tensor) else torch.stack(list(x)), weights, fused.precision())
    return tuple(
        torch.stack([F.linear(rows, w) for rows, w in zip(x, weight.expand(len(x), -1, -1), strict=True)], dim=1)
        .transpose(0, 1)
        for weight in weights
    )  # fmt: skip
