"""Explanations of predictions. Names are imported at first use, so that ``--help`` does not wait for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnagt.explain.explanation import Explanation, check_by_deletion, explain
    from mnagt.explain.kernel_statistics import compute_kernel_statistics
    from mnagt.explain.report import explain_to
    from mnagt.explain.settings import ExplainConfig

__all__ = ["ExplainConfig", "Explanation", "check_by_deletion", "compute_kernel_statistics", "explain", "explain_to"]
_HOME = {"ExplainConfig": "settings", "explain_to": "report", "compute_kernel_statistics": "kernel_statistics"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mnagt.explain' has no attribute {name!r}")
    return getattr(import_module(f"mnagt.explain.{_HOME.get(name, 'explanation')}"), name)
