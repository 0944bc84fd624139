"""Outputs of a model for the graphs of a data set."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.graphs.batch import GraphBatch

Reduce = Callable[[Tensor], Tensor]
"""From outputs to what is needed of them (``Task.reduce_output``)."""


def compute_outputs(
    model: Callable[[GraphBatch], Tensor],
    dataset: PackedDataset,
    indices: Int[Tensor, "some"],
    batch_size: int = 256,
    reduce: Reduce = lambda output: output,
) -> Float[Tensor, "some outputs"]:
    """Outputs of ``model`` in evaluation mode for the graphs ``indices``, in that order, on the data set's device."""
    if isinstance(model, nn.Module) and model.training:
        model.eval()
    if len(indices) == 0:
        return reduce(torch.empty(0, dataset.task.num_outputs, device=dataset.device))
    graphs, position = indices.cpu().unique(return_inverse=True)
    with torch.inference_mode():
        batches = [(chunk, reduce(model(batch))) for chunk, batch in dataset.batches(graphs, batch_size)]
    chunks, outputs = zip(*batches, strict=True)
    order = torch.cat(chunks).argsort()[position]
    return join_outputs(outputs)[order.to(dataset.device)]


def join_outputs(parts: Sequence[Tensor]) -> Tensor:
    """The outputs for parts of the graphs, end to end; rows of targets of nodes are as wide as the largest graph."""
    if len({part.shape[1:] for part in parts}) < 2:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[1]), value=torch.nan) for part in parts])


@contextmanager
def matmul_precision(device: torch.device, precision: str) -> Iterator[None]:
    """Within the block fp32 matrices are multiplied exactly on a CPU and in 'fp32', otherwise in tf32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if device.type == "cpu" or precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Automatic mixed precision for ``precision`` 'bf16'; weights stay fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
