"""Activation checkpointing: layers are computed again in the backward pass, which takes less memory and more time."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mnagt.graphs.batch import GraphBatch
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.norms import freeze_running_statistics
from mnagt.nn.shapes import NodeVectors

_random_layers: "WeakSet[nn.Module]" = WeakSet()
"""Layers that have drawn random numbers."""


def run_twice(layer: nn.Module, function: Callable[..., NodeVectors], x: NodeVectors, *args: Any) -> NodeVectors:
    """``function(x, *args)``, a part of ``layer``, of which only ``x`` and ``args`` are kept for the backward pass.

    The random generator is set back before it is computed again, so that dropout draws the same. While a CUDA graph is
    captured that cannot be done: a layer that has drawn random numbers before is then refused.
    """
    is_captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
    if is_captured and layer in _random_layers:
        raise RuntimeError("a layer with dropout cannot be both captured in a CUDA graph and checkpointed")
    before = None if is_captured else _random_state(x.device)
    out = checkpoint(
        function,
        x,
        *args,
        use_reentrant=False,
        preserve_rng_state=not is_captured,
        context_fn=lambda: (nullcontext(), freeze_running_statistics(layer)),
    )
    if before is not None and not torch.equal(before, _random_state(x.device)):
        _random_layers.add(layer)
    return out


class CheckpointedModel(nn.Module):
    """``model``, of which only the inputs of its layers are kept for the backward pass."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        x, graph = self.model.encode(graph)
        for layer in self.model.layers:
            x = run_twice(layer, layer, x, graph)
        return self.model.predict_from(x, graph)


def _random_state(device: torch.device) -> Tensor:
    """The state of the generator that layers on ``device`` draw from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
