"""Losses, gradients and weights that are not finite are noticed within a step, without waiting for a GPU."""

import math
from typing import NamedTuple

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


def note(seen: Float[Tensor, "3"], loss: Tensor | None, norm: Float[Tensor, ""]) -> None:
    """Record in ``seen`` whether this step or one before it was not finite, its loss, and the norm of its gradient."""
    if loss is not None:
        seen[1].copy_(loss)
    seen[2].copy_(norm)
    seen[0].copy_(torch.maximum(seen[0], (~seen[1:].isfinite()).any().float()))


def are_finite(tensors: dict[str, Tensor]) -> bool:
    """Whether all numbers in the tensors are finite."""
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point() and tensor.numel()]
    return bool(nn.utils.get_total_norm(floats, math.inf).isfinite())


class Watch:
    """Checks what the optimiser has ``seen`` of each step: at once on a CPU, one step later on a GPU.

    On a GPU a copy is started after the step and read during the next one, so that nothing waits. After a step that is
    not finite the optimiser leaves the weights alone.
    """

    def __init__(self, seen: Float[Tensor, "3"]) -> None:
        self.seen = seen
        self.last: Step | None = None
        self._copies: list[tuple[Tensor, torch.cuda.Event, Step]] = []

    def check(self, step: Step) -> Step | None:
        """Note that ``step`` was taken; the first step that was not finite, if the result is there."""
        self.last = step
        if not self.seen.is_cuda:
            return _if_bad(self.seen, step)
        copy, event = torch.empty(3, pin_memory=True), torch.cuda.Event()
        copy.copy_(self.seen, non_blocking=True)
        event.record()
        self._copies.append((copy, event, step))
        return None if len(self._copies) < 2 else self._look()

    def check_all(self) -> Step | None:
        """The first step that was not finite, if any; waits for all steps taken."""
        while self._copies:
            if bad := self._look():
                return bad
        return None

    def _look(self) -> Step | None:
        copy, event, step = self._copies.pop(0)
        event.synchronize()
        return _if_bad(copy, step)


def _if_bad(seen: Float[Tensor, "3"], step: Step) -> Step | None:
    is_bad, loss, norm = seen.tolist()
    return step._replace(loss=loss, norm=norm) if is_bad else None
