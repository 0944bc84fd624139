"""Everything one uses or extends with is on the page of the API, with arguments and an example."""

import ast
import importlib
import inspect
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import mnagt
import mnagt.nn as mnn

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
ON_PAGE = re.findall(r"^::: (\S+)", PAGE, re.MULTILINE)
EXTENDED = ("mnagt.data.registry.Source", "mnagt.models.registry.Entry", "mnagt.tasks.TASKS", "mnagt.tasks.base.Task")
"""What plugins extend and is imported from its own module."""
WITH_EXAMPLES = ("mnagt.attention", "mnagt.metrics", "mnagt.models", "mnagt.nn", "mnagt.settings", "mnagt.tasks")
"""Packages in which all that is on the page has an example."""


def find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


PUBLIC = {
    **{f"mnagt.{name}": getattr(mnagt, name) for name in mnagt.__all__ if name != "__version__"},
    **{f"mnagt.nn.{name}": getattr(mnn, name) for name in mnn.__all__},
    **{path: find(path) for path in EXTENDED},
}


def followed_by_text(source: str) -> dict[str, str]:
    """The string under each assignment of a class or module."""
    tree = ast.parse(textwrap.dedent(source))
    body = tree.body[0].body if len(tree.body) == 1 and isinstance(tree.body[0], ast.ClassDef) else tree.body
    texts = {}
    for first, after in pairwise(body):
        match first, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = text
    return texts


def classes_of(thing: Any) -> list[type]:
    """A class and those of the package that it inherits from."""
    return [cls for cls in inspect.getmro(thing) if cls.__module__.startswith("mnagt")]


def undescribed(thing: Any) -> list[str]:
    """The arguments of a function or class that neither its docstring nor a string under the field tells of."""
    if not inspect.isclass(thing):
        text, fields = inspect.getdoc(thing) or "", {}
    elif issubclass(thing, Exception):
        return []
    else:
        text = "\n".join(cls.__doc__ or "" for cls in classes_of(thing))
        fields = {name for cls in classes_of(thing) for name in followed_by_text(inspect.getsource(cls))}
    parameters = inspect.signature(thing).parameters.values()
    names = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return [name for name in names if name not in fields and not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("path", PUBLIC)
def test_public_names_are_on_the_page_with_arguments_and_an_example(path):
    thing = PUBLIC[path]
    (place,) = [place for place in ON_PAGE if find(place) is thing] or [None]
    assert place is not None, "add it to docs/api.md"
    if isinstance(thing, dict):
        module, _, name = place.rpartition(".")
        assert name in followed_by_text(inspect.getsource(importlib.import_module(module)))
        return
    assert ">>> " in (thing.__doc__ or ""), "its docstring needs an example"
    assert not undescribed(thing), "its docstring, or a string under the field, tells what these are"


@pytest.mark.parametrize("place", ON_PAGE)
def test_what_is_on_the_page_is_described(place):
    thing = find(place)
    if not isinstance(thing, dict):
        assert thing.__doc__
        assert ">>> " in thing.__doc__ or not place.startswith(WITH_EXAMPLES)


def test_nothing_is_on_the_page_twice():
    assert len(ON_PAGE) == len(set(ON_PAGE))
