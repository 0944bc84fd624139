"""Every name of ``mnagt.nn`` is there, is described, and is on the page of layers."""

import ast
import inspect
from pathlib import Path

import pytest

import mnagt.nn as mnn

STUB = Path(mnn.__file__).with_suffix(".pyi")
PAGE = (Path(__file__).parents[2] / "docs" / "layers.md").read_text(encoding="utf-8")


def test_the_stub_lists_the_names_that_it_imports():
    (listed,) = (node.value for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(listed)) == mnn.__all__ == dir(mnn)
    with pytest.raises(AttributeError, match=r"module 'mnagt\.nn' has no attribute 'GPSConv'"):
        mnn.GPSConv  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", mnn.__all__)
def test_names_are_described_and_on_the_page(name):
    thing = getattr(mnn, name)
    assert isinstance(thing, dict) or inspect.getdoc(thing)
    assert f"`{name}`" in PAGE or name == "AttentionWeights"
