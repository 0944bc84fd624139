"""Layers worked out a second time in the backward pass, and not kept till then: less memory, more time."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mnagt.graphs.batch import GraphBatch

_is_second = False


def is_second_time() -> bool:
    """Whether a layer is being worked out again. Statistics have then been taken already."""
    return _is_second


@contextmanager
def _second_time() -> Iterator[None]:
    global _is_second
    _is_second = True
    try:
        yield
    finally:
        _is_second = False


def _contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
    return nullcontext(), _second_time()


class Recomputed:
    """``layer(x, graph)``, of which only ``x`` is kept for the backward pass.

    What a layer draws at random must be the same both times, so the generator is set back. While a CUDA graph is
    recorded that cannot be done: a layer that was seen to draw is then refused.
    """

    def __init__(self) -> None:
        self._drawing: set[nn.Module] = set()

    def __call__(
        self, layer: nn.Module, x: Float[Tensor, "nodes dim"], graph: GraphBatch
    ) -> Float[Tensor, "nodes dim"]:
        is_recorded = x.is_cuda and torch.cuda.is_current_stream_capturing()
        if is_recorded and layer in self._drawing:
            raise RuntimeError("a layer that draws at random (dropout) cannot be both recorded and recomputed")
        before = None if is_recorded else _chance(x.device)
        out = checkpoint(layer, x, graph, use_reentrant=False, preserve_rng_state=not is_recorded, context_fn=_contexts)
        if before is not None and not torch.equal(before, _chance(x.device)):
            self._drawing.add(layer)
        return out


def _chance(device: torch.device) -> Tensor:
    """The state of the generator that layers on ``device`` draw from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
