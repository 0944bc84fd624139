"""Copies of parameters in a narrow dtype, kept up to date by an optimizer, so that no layer has to cast its weights."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_COPIES = WeakTensorKeyDictionary()


def register(parameter: Tensor, copy: Tensor) -> None:
    """From now on :func:`cast` returns ``copy`` for ``parameter``; whoever registers it keeps it up to date."""
    _COPIES[parameter] = copy


def release(parameters: Iterable[Tensor]) -> None:
    """Forget the copies of ``parameters``: nobody keeps them up to date any longer."""
    for parameter in parameters:
        _COPIES.pop(parameter, None)


def cast(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """The parameter in ``dtype``, detached: its registered copy where that has this dtype."""
    copy = _COPIES.get(parameter)
    return copy if copy is not None and copy.dtype == dtype else parameter.detach().to(dtype)
