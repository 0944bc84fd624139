"""The garbage collector while a command starts."""

import gc


def import_torch() -> None:
    """Import PyTorch with the collector off, and leave what is there out of every later search.

    PyTorch makes over a hundred thousand objects, and none is garbage: searches took a sixth of a command's start.
    """
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()
