"""Explanations of predictions. Names are imported at first use, so that ``--help`` does not wait for PyTorch."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mnagt.settings import PositiveInt, Settings

if TYPE_CHECKING:
    from mnagt.explain.explanation import Explanation, check_by_deletion, explain
    from mnagt.explain.kernel_statistics import compute_kernel_statistics
    from mnagt.explain.report import explain_to

__all__ = ["ExplainConfig", "Explanation", "check_by_deletion", "compute_kernel_statistics", "explain", "explain_to"]


@dataclass(frozen=True)
class ExplainConfig(Settings):
    """Settings of ``explain_to``."""

    target: str | None = None
    """The class, label or number to explain, if not the predicted one."""
    steps: PositiveInt = 8
    """Intervals that the path of the integrated gradients begins with."""
    drawn: PositiveInt = 12
    """How many graphs are drawn."""
    checked: PositiveInt = 50
    """How many graphs are checked by deletion."""
    orders: PositiveInt = 5
    """Random orders of deletion that each is compared with."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mnagt.explain' has no attribute {name!r}")
    homes = {"explain_to": "report", "compute_kernel_statistics": "kernel_statistics"}
    return getattr(import_module(f"mnagt.explain.{homes.get(name, 'explanation')}"), name)
