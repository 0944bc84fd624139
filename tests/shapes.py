"""Shapes in annotations are checked while the tests run: in the first calls of a function in each test, then in some.

Every call checked would take half of the suite's time.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import _decorator

FIRST, EVERY = 5, 50
"""The calls that are checked in a test: so many at first, and then one of so many."""

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A typechecker to whom an int is a float."""
_check_all = _decorator.jaxtyped
_tests = 0
"""Tests that have begun."""


def begin_test() -> None:
    """Count calls anew."""
    global _tests
    _tests += 1


def check_some_calls(*given: Any, **options: Any) -> Any:
    """As ``jaxtyping.jaxtyped``, which decorates classes and properties by way of their functions."""
    made = _check_all(*given, **options)
    if not given or not inspect.isfunction(given[0]):
        return made
    return _choose(given[0], made)


def _choose(function: Callable[..., Any], checking: Callable[..., Any]) -> Callable[..., Any]:
    test, calls = 0, 0

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal test, calls
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        test, calls = _tests, calls + 1 if test == _tests else 1
        is_checked = calls <= FIRST or calls % EVERY == 0
        return (checking if is_checked else function)(*args, **kwargs)

    return call


def install() -> None:
    """Let jaxtyping's decorator check some calls; before its import hook is installed."""
    jaxtyping.jaxtyped = _decorator.jaxtyped = check_some_calls
