"""Notebooks run from top to bottom, and keep no outputs."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mnagt import MODELS

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def cells(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def run(name: str, **instead: str) -> dict[str, Any]:
    """What the cells leave behind; ``instead`` are texts to be replaced."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(name)):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            for old, new in instead.items():
                source = source.replace(f"{old} = ", f"{old} = {new} or ")
            exec(compile(source, f"{name}, cell {number}", "exec"), names)
    return names


def test_there_is_one_for_each_kind_of_user():
    assert NAMES == ["engineer", "practitioner", "researcher"]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_not_kept(name):
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(name) if "outputs" in cell)


@pytest.mark.parametrize("name", NAMES)
def test_what_they_import_is_there(name):
    for cell in cells(name):
        source = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(ast.unparse(node), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["practitioner", "researcher"])
def test_they_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(MODELS, "difference", MODELS["gin"])  # the researcher's own; gone afterwards
    run(name, EPOCHS="2")


@pytest.mark.slow
def test_that_of_the_engineer_runs(tmp_path):
    """In a process of its own, where no shapes are checked: an export has none."""
    source = "\n".join("".join(cell["source"]) for cell in cells("engineer") if cell["cell_type"] == "code")
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True)


@pytest.mark.slow
def test_what_the_practitioner_is_told_is_so(tmp_path, monkeypatch):
    """With all epochs, the weightiest atom of each amine is its nitrogen."""
    monkeypatch.chdir(tmp_path)
    left = run("practitioner")
    assert left["run"].result.test["accuracy"] > 0.95
    for each in left["found"]:
        element = each.graph.node_labels[each.attribution.nodes.argmax(), 0]
        assert each.said["prediction"] == "yes"
        assert element == 6, each.smiles  # nitrogen: atomic numbers from 0
