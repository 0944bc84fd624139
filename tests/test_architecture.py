"""docs/architecture.md and its picture name files, functions and tables that exist."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mnagt"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "tools"))

import architecture_figure  # type: ignore[import-not-found]  # noqa: E402

STEPS = [step for steps in architecture_figure.ROWS.values() for step in steps if step.file]
NAMED = {(step.file, step.name) for step in STEPS}
NAMED |= set(re.findall(r"\| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE))
NAMED |= {(file, table) for table, file in re.findall(r"`([A-Z]+)`, `([\w/]+\.py)`", PAGE)}


@cache
def names_in(file: str) -> set[str]:
    """Functions, classes, their methods and the tables of a file."""
    names = set()
    for node in ast.parse((SOURCE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize(("file", "name"), sorted(NAMED))
def test_names_of_the_page_and_the_picture_exist(file, name):
    assert name in names_in(file), f"{file} has no {name}: change docs/architecture.md and tools/architecture_figure.py"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w]+/[\w/.]*)`", PAGE))))
def test_paths_of_the_page_exist(path):
    assert (SOURCE / path).exists() or (ROOT / path).exists()


def test_the_picture_is_the_one_that_the_script_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(architecture_figure, "OUT", tmp_path / "architecture.svg")
    architecture_figure.main()
    drawn = (tmp_path / "architecture.svg").read_text(encoding="utf-8")
    kept = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    words = re.compile(r"<text[^>]*>([^<]*)<")
    assert words.findall(drawn) == words.findall(kept), "run tools/architecture_figure.py"
    assert "prefers-color-scheme:dark" in kept
