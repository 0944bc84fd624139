"""The devices that tensors can lie on."""

import platform

import torch

from mnagt.errors import InputError


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
