"""Plugins: modules of others that register models, kernels, mixers, readouts, tasks and data sets.

A plugin is named on the command line (``mnagt --plugin my_models ...``), in ``MNAGT_PLUGINS``, or by an entry point of
the group ``mnagt.plugins`` of an installed package. Nothing is imported before a name is asked for that is not there.
"""

import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from mnagt.errors import InputError

VARIABLE = "MNAGT_PLUGINS"
"""The environment variable with the names of plugins, separated by commas: worker processes have it too."""
GROUP = "mnagt.plugins"


def load_plugins(names: Iterable[str] = ()) -> list[str]:
    """Import the plugins called ``names``, those in ``MNAGT_PLUGINS``, and those of installed packages; their names.

    Those of ``names`` are added to the variable, so that worker processes import them.

    >>> load_plugins()
    []
    """
    listed = list_plugins()
    listed_or_named = [*listed, *(name for name in names if name not in listed)]
    if listed_or_named != listed:
        os.environ[VARIABLE] = ",".join(listed_or_named)
    plugins = [*listed_or_named, *(each for each in find_installed() if each not in listed_or_named)]
    for name in plugins:
        _import(name)
    return plugins


def list_plugins() -> list[str]:
    """The plugins that ``MNAGT_PLUGINS`` names."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def find_plugin(thing: type | object) -> str | None:
    """The module that defines a class or function, if it is not of this package."""
    module = getattr(thing, "__module__", "")
    if module in ("__main__", "__mp_main__"):
        script = getattr(sys.modules[module], "__file__", None)
        return None if script is None else os.path.splitext(os.path.basename(script))[0]
    return None if module.split(".")[0] in ("mnagt", "") else module


def describe_missing(names: Iterable[str]) -> str:
    """How to get the plugins ``names``."""
    listed = ",".join(names)
    return (
        f"it needs the plugin {listed}: install it or put it beside you, then name it with --plugin {listed} or "
        f"{VARIABLE}={listed}"
    )


@cache
def find_installed() -> tuple[str, ...]:
    """The modules that installed packages declare."""
    return tuple(sorted(each.module for each in entry_points(group=GROUP)))


@cache
def _import(name: str) -> None:
    if name in sys.modules:
        return
    folder = os.getcwd()
    try:
        sys.path.append(folder)  # a plugin may be a file in the working directory
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.split(".")[0] and error.name != name:
            raise InputError(f"plugin {name}: {error}; install what it needs") from None
        raise InputError(f"plugin {name}: there is no such module; install it, or go to its folder") from None
    finally:
        sys.path.remove(folder)
