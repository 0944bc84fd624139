"""Losses, gradients and weights that are not finite are noticed within a step, without waiting for a GPU."""

import math
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Step(NamedTuple):
    """A training step."""

    epoch: int
    """From 1, as is the step."""
    step: int
    graphs: Int[Tensor, "batch"]
    loss: float = math.nan
    norm: float = math.nan
    """Of the gradient, before clipping."""


def are_finite(tensors: dict[str, Tensor]) -> bool:
    """Whether all numbers in the tensors are finite."""
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point() and tensor.numel()]
    return bool(nn.utils.get_total_norm(floats, math.inf).isfinite())


class Watch:
    """Checks what the optimiser has ``seen`` of each step, and calls ``on_bad`` with the first that is not finite.

    On a CPU at once. On a GPU a copy is started after the step and read during the next one, so that nothing waits;
    after a step that is not finite the optimiser leaves the weights alone.
    """

    def __init__(self, seen: Float[Tensor, "3"], on_bad: Callable[[Step], NoReturn]) -> None:
        self.seen, self.on_bad = seen, on_bad
        self.last: Step | None = None
        self._copies: list[tuple[Tensor, torch.cuda.Event, Step]] = []

    def check(self, step: Step) -> None:
        """Note that ``step`` was taken."""
        self.last = step
        if not self.seen.is_cuda:
            self._check(self.seen, step)
            return
        copy, event = torch.empty(3, pin_memory=True), torch.cuda.Event()
        copy.copy_(self.seen, non_blocking=True)
        event.record()
        self._copies.append((copy, event, step))
        if len(self._copies) > 1:
            self._check_copy()

    def check_all(self) -> None:
        """Wait for all steps taken, and check them."""
        while self._copies:
            self._check_copy()

    def _check_copy(self) -> None:
        copy, event, step = self._copies.pop(0)
        event.synchronize()
        self._check(copy, step)

    def _check(self, seen: Float[Tensor, "3"], step: Step) -> None:
        is_bad, loss, norm = seen.tolist()
        if is_bad:
            self.on_bad(step._replace(loss=loss, norm=norm))
