"""The scripts in examples/ run, and are short."""

import re
from pathlib import Path
from runpy import run_path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SHOWN = {
    "compare_models": "majority class",
    "layer_for_pyg": "classes [0, 1]",
    "molecules_from_csv": "CCCCCCN",
    "your_own_graphs": "p(ring)",
    "your_own_loop": "test accuracy",
}
"""What each prints."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path, capsys):
    module = run_path(str(path))
    names = module["main"].__globals__
    shorter = {"EPOCHS": 2, "MODELS": ["gin", "mnagt"]}
    names.update({name: value for name, value in shorter.items() if name in names})
    module["main"]()
    assert SHOWN[path.stem] in capsys.readouterr().out


def test_every_example_is_short_and_listed():
    listed = (EXAMPLES[0].parent / "README.md").read_text()
    assert set(SHOWN) == {path.stem for path in EXAMPLES} == set(re.findall(r"\]\((\w+)\.py\)", listed))
    assert all(len(path.read_text().splitlines()) <= 32 for path in EXAMPLES)
