"""A loss or a gradient that is not finite: noticed within a step, without waiting for a GPU."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Step(NamedTuple):
    """A step that was taken, or was not because of what it came to."""

    epoch: int
    """From 1, as is the step."""
    step: int
    graphs: Int[Tensor, "batch"]
    loss: float = math.nan
    norm: float = math.nan
    """Of the gradient, before clipping."""


def note(seen: Float[Tensor, "3"], loss: Tensor | None, norm: Float[Tensor, ""]) -> None:
    """What an optimiser sees of a step: whether this or one before it was not finite, the loss, the gradient's norm."""
    if loss is not None:
        seen[1].copy_(loss)
    seen[2].copy_(norm)
    seen[0].copy_(torch.maximum(seen[0], (~seen[1:].isfinite()).any().float()))


def are_finite(tensors: dict[str, Tensor]) -> bool:
    """Whether every number in them is."""
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point() and tensor.numel()]
    return bool(nn.utils.get_total_norm(floats, math.inf).isfinite())


class Watch:
    """Looks at what the optimiser has ``seen`` of each step: at once on a CPU, a step later on a GPU.

    There it is copied when the step is done, and is read when the next one is on its way: nothing waits. From the bad
    step on the optimiser takes none, so no weight is spoilt meanwhile.
    """

    def __init__(self, seen: Float[Tensor, "3"]) -> None:
        self.seen = seen
        self.last: Step | None = None
        self._copies: list[tuple[Tensor, torch.cuda.Event, Step]] = []

    def taken(self, step: Step) -> Step | None:
        """``step`` was taken; the first that was not finite, if one is known by now."""
        self.last = step
        if not self.seen.is_cuda:
            return _if_bad(self.seen, step)
        copy, event = torch.empty(3, pin_memory=True), torch.cuda.Event()
        copy.copy_(self.seen, non_blocking=True)
        event.record()
        self._copies.append((copy, event, step))
        return None if len(self._copies) < 2 else self._look()

    def settled(self) -> Step | None:
        """The same of all steps taken, waiting for them."""
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
