"""Where tensors live."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mnagt.errors import InputError
from mnagt.training.config import RunConfig


def pick_device(name: str) -> torch.device:
    """The device called ``name``; 'auto' is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"no device {name!r}: {torch.cuda.device_count()} GPUs here; use --device cpu or auto")
    return device


def device_name(device: torch.device) -> str:
    """What the device is, for a record."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def spare_workspaces(device: torch.device) -> None:
    """Lets products on a GPU work in 8 MiB a thread and stream, where the environment does not say how much.

    On Hopper PyTorch takes 32, which is more than a small model does.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")


@contextmanager
def room_on(device: torch.device, config: RunConfig) -> Iterator[None]:
    """A GPU without room, told in one line."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{device_name(device)} has no room for batches of {config.train.batch_size} graphs; "
            "lower batch_size or choose a smaller model"
        ) from error
