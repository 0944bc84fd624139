"""GPU kernels written in Triton, each with a slow, obvious twin in torch.

A file holds one operation: its kernels and the ``autograd.Function`` around them; the callers are in ``functional.py``.
Nothing waits for the GPU and no shape depends on what the tensors hold, so every call can be captured in a CUDA graph.
No kernel adds atomically: the same input gives the same output, bit for bit. Triton is imported with the operations,
never by this file: the library runs without it.
"""

import os
import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Literal

import torch
from torch import Tensor

from mnagt.errors import InputError

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""What the kernels take, unless they say otherwise. All of them sum in float32."""


def once_differentiable(
    backward: Callable[..., tuple[Tensor | None, ...]],
) -> Callable[..., tuple[Tensor | None, ...]]:
    """Decorate a ``backward`` that has no derivative: with ``create_graph`` it is an error.

    PyTorch's decorator of this name leaves terms of a second derivative out where what comes back needs no gradient.
    """

    @wraps(backward)
    def call(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "attention and its kernels are differentiated once; for second derivatives (create_graph) give layers "
                "backend='reference', and on a GPU set MNAGT_TRITON=0"
            )
        return backward(ctx, *grads)

    return call


def is_usable(device: torch.device) -> bool:
    """Whether the kernels run on ``device``. A Triton that should be there and is not is warned of, once."""
    return device.type == "cuda" and why_not() is None


def precision() -> Literal["tf32", "ieee"]:
    """How torch's settings would have float32 matrices multiplied."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The type in which autocast wants matrices multiplied; None where there is no autocast."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


@cache
def why_not() -> str | None:
    """What keeps Triton from running on this machine's GPU; None if nothing does."""
    if os.environ.get("MNAGT_TRITON", "1") == "0":
        return "MNAGT_TRITON=0"
    if torch.version.hip is None and torch.cuda.get_device_capability() < (7, 5):
        return f"the GPU is of compute capability {torch.cuda.get_device_capability()}, and Triton needs 7.5"
    try:
        import triton  # noqa: F401
    except Exception as error:
        reason = f"Triton cannot be imported ({' '.join(str(error).split())})"
        warnings.warn(f"{reason}; attention and propagation take the slower way", stacklevel=3)
        return reason
    return None
