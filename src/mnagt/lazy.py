"""Public names of a package that are imported at first use, so that importing the package costs nothing."""

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class _Origin(NamedTuple):
    module: str
    name: str


def lazy_names(package: str, init: str, old_names: Mapping[str, str] | None = None) -> tuple[list[str], Callable]:
    """``__all__`` and ``__getattr__`` of ``package``, whose stub beside ``init`` says where each name is defined.

    ``old_names`` maps names that are kept for one release to those that replaced them.
    """
    stub = ast.parse(Path(init).with_suffix(".pyi").read_text(encoding="utf-8"))
    origins = {
        alias.asname or alias.name: _Origin(str(node.module), alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def find(name: str) -> Any:
        name = (old_names or {}).get(name, name)
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(origins[name].module), origins[name].name)

    return sorted(origins), find
