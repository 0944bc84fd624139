"""The package's own shape: imports point one way."""

import ast
from pathlib import Path

import pytest

import mnagt

SOURCE = Path(mnagt.__file__).parent
ROOMS = ["fused", "graphs", "attention", "models", "data", "training", "experiments", "explain", "serve", "cli"]
"""Each may import from those before it, and from the single files of the package."""
FORBIDDEN = {("models", "data"), ("data", "attention"), ("data", "models")}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path):
    room = path.relative_to(SOURCE).parts[0]
    if room not in ROOMS:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mnagt."):
            other = node.module.split(".")[1]  # type: ignore[union-attr]
            if other in ROOMS:
                assert ROOMS.index(other) <= ROOMS.index(room), f"{room} may not import {other}"
                assert (room, other) not in FORBIDDEN
