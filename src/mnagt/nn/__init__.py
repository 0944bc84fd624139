"""Layers for models on PyTorch Geometric's tensors (docs/layers.md), and what they are made of.

``__init__.pyi`` lists the public names. They are imported at first use: the modules of this package import one another
by their full names, never from here.
"""

from mnagt.lazy import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
