"""What this installation has and uses."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from mnagt.attention.attend import active_backend
from mnagt.data.cache import cache_root
from mnagt.data.registry import data_root
from mnagt.devices import device_name, pick_device
from mnagt.version import __version__


def environment() -> dict[str, str]:
    """Versions, devices and folders of this installation, by name.

    >>> "torch" in environment()
    True
    """

    def find_version(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed"

    device = pick_device("auto")
    facts = {"mnagt": __version__, "python": platform.python_version(), "torch": torch.__version__}
    facts |= {"device": f"{device.type} ({device_name(device)})", "attention backend": active_backend(device)}
    facts |= {"data root": str(data_root()), "cache": str(cache_root())}
    return facts | {name: find_version(name) for name in ("torch_geometric", "rdkit", "tensorboard", "triton")}
