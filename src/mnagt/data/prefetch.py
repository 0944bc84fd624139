"""Rows of a mapped file, asked for before they are needed."""

import ctypes
import mmap
import sys
from functools import cache
from typing import Any

from torch import Tensor


def prefetch_rows(column: Tensor, first: int, last: int) -> None:
    """Have the system bring in these rows of a column that may be mapped, and do not wait for it."""
    advise = _madvise()
    if advise is None or first >= last or not column.numel():
        return
    row = column.stride(0) * column.element_size()
    start, end = column.data_ptr() + first * row, column.data_ptr() + last * row
    start -= start % mmap.PAGESIZE
    advise(start, end - start, mmap.MADV_WILLNEED)


@cache
def _madvise() -> Any:
    """The system's call; None where there is none such."""
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return call
