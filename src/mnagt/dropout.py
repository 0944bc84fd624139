"""Dropout."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

LEVELS = 2**16
"""Probabilities are rounded to a multiple of one in so many: what sixteen random bits can draw."""


class Dropout(nn.Dropout):
    """``torch.nn.Dropout``, but on a CPU eight times as fast: there torch's took a quarter of a training step."""

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.training or not self.p or input.device.type != "cpu":
            return super().forward(input)
        return input * factors(input.shape, self.p, input.dtype)


def factors(shape: torch.Size, p: float, dtype: torch.dtype) -> Float[Tensor, "..."]:
    """Zero with probability ``p`` (rounded), and otherwise the number that makes the mean 1."""
    kept_levels, numbers = min(max(round((1 - p) * LEVELS), 1), LEVELS - 1), shape.numel()
    bits = torch.empty(-(-numbers // 4), dtype=torch.int64).random_(-(2**63), None)  # all 64 of them
    drawn = bits.view(torch.int16)[:numbers].view(shape)
    return (drawn < kept_levels - LEVELS // 2).to(dtype).mul_(LEVELS / kept_levels)
