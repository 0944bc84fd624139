"""What tests of Triton kernels share. Without a GPU its interpreter runs them (tests/conftest.py)."""

import pytest
import torch

from mnagt import ops


@pytest.fixture(autouse=True)
def _products_of_bfloat16(monkeypatch):
    """The interpreter would multiply the bits of bfloat16 as if they were whole numbers."""
    if torch.cuda.is_available():
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    plain = InterpreterBuilder.create_dot

    def dot(self, a, b, *rest):
        if a.dtype.scalar == tl.bfloat16:
            a, b = self.cast_impl(a, tl.float32), self.cast_impl(b, tl.float32)
        return plain(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)


@pytest.fixture
def _kernels(monkeypatch):
    """The functions of ``ops.functional`` take their kernels, and those of linear maps may round to tf32."""
    monkeypatch.setattr(ops, "is_usable", lambda device: True)
    monkeypatch.setattr(ops, "precision", lambda: "tf32")
