"""Learning on whole graphs with multi-neighbourhood attention.

``__init__.pyi`` lists the public names. They are imported at first use, so that ``import mnagt`` costs nothing.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORTS = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_MODULE_OF = {
    alias.name: str(node.module) for node in _IMPORTS if isinstance(node, ast.ImportFrom) for alias in node.names
}
_OLD_NAMES = {"Trained": "TrainedModel", "molecules": "read_smiles"}
"""Names of 0.1 that are kept for one release."""

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    name = _OLD_NAMES.get(name, name)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mnagt' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
