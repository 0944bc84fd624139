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
    weight: Float[Tensor, "width_out width_in"],
    bias: Float[Tensor, "width_out"] | None = None,
) -> Float[Tensor, "*rows width_out"]:
    if fused.is_usable(x.device):
        from mnagt.fused.linear import linear

        return linear(x, weight, bias, fused.precision())
    return F.linear(x, weight, bias)


def batched_linear(
    x: Float[Tensor, "kernels rows width_in"] | Sequence[Float[Tensor, "rows width_in"]],
    weight: Float[Tensor, "weights width_out width_in"],
) -> Float[Tensor, "kernels rows width_out"]:
    """A map for each kernel, or one for all. On a CPU, products one by one beat a batched one (docs/log.md)."""
    if fused.is_usable(weight.device):
        from mnagt.fused.linear import batched_linear

        return batched_linear(x if isinstance(x, Tensor) else torch.stack(list(x)), weight, fused.precision())
    weights = weight.expand(len(x), -1, -1)
    return torch.stack([F.linear(rows, w) for rows, w in zip(x, weights, strict=True)], dim=1).transpose(0, 1)
