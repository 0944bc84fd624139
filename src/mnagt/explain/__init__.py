"""Why a model says what it says. Names below are imported at first use, so that asking for help costs nothing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnagt.explain.explanation import Explanation, checked_by_deletion, explain
    from mnagt.explain.report import explain_to
    from mnagt.explain.settings import ExplainConfig
    from mnagt.explain.spread import kernel_spread

__all__ = ["ExplainConfig", "Explanation", "checked_by_deletion", "explain", "explain_to", "kernel_spread"]
_HOME = {"ExplainConfig": "settings", "explain_to": "report", "kernel_spread": "spread"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mnagt.explain' has no attribute {name!r}")
    return getattr(import_module(f"mnagt.explain.{_HOME.get(name, 'explanation')}"), name)
