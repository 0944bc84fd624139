"""Options of the command line, made from the fields of settings."""

import argparse
import math
import sys
import types
import typing
from collections.abc import Container, Mapping, Sequence
from typing import Any, NoReturn

from mnagt.errors import InputError
from mnagt.migrations import OLD_NAMES
from mnagt.settings import Field, describe_fields, from_word, read_field_docs


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; `{self.prog} --help` explains")


def add_options(
    parser: argparse.ArgumentParser,
    cls: type,
    title: str,
    *,
    prefix: str = "",
    leave_out: Container[str] = (),
    into: Any = None,
    **spelt: str,
) -> None:
    """An option for each field of ``cls``, explained by the string under it. Unset ones are None.

    They form a group of their own, or go ``into`` another. ``spelt`` holds the options that are not named after their
    field.
    """
    group = into or parser.add_argument_group(title)
    docs = read_field_docs(cls)
    for name, field in describe_fields(cls).items():
        if name not in leave_out:
            spelling, text = spelt.get(name, option(prefix + name)), _help(docs.get(name, ""), field)
            group.add_argument(spelling, dest=prefix + name, metavar=_metavar(field.hint), help=text)
            if old := OLD_NAMES.get(name):
                group.add_argument(option(prefix + old), dest=prefix + name, action=_OldOption)


def _help(text: str, field: Field) -> str:
    """What the setting means, its default, and its bounds or choices."""
    default = "no limit" if field.default == math.inf else "" if field.default in (None, ()) else str(field.default)
    is_literal = "|" in _metavar(field.hint)
    bounds = [str(bound) for bound in field.constraints if not is_literal and str(bound) != "below inf"]
    notes = "; ".join(note for note in (default, *bounds) if note)
    return (f"{text} [{notes}]" if notes else text).replace("%", "%%")


class _OldOption(argparse.Action):
    """An option under the name that it had in 0.1: it is not listed, and says what it is called now."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, help=argparse.SUPPRESS)

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        print(f"mnagt: {option_string} is now {option(self.dest)}", file=sys.stderr)
        setattr(namespace, self.dest, values)


def read_options(args: argparse.Namespace, cls: type, *, prefix: str = "", **spelt: str) -> dict[str, Any]:
    """The fields of ``cls`` that were set on the command line; ``spelt`` as for `add_options`."""
    words = {name: getattr(args, prefix + name, None) for name in describe_fields(cls)}
    return {
        name: from_word(describe_fields(cls)[name].hint, word, spelt.get(name, option(prefix + name)))
        for name, word in words.items()
        if word is not None
    }


def option(name: str) -> str:
    """The option that sets field ``name``."""
    return "--" + name.replace("_", "-")


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _metavar(typing.get_args(hint)[0])
    if typing.get_origin(hint) is tuple:
        return f"{_metavar(typing.get_args(hint)[0])},..."
    return {int: "N", float: "X", str: "NAME", bool: "true|false"}.get(hint, "VALUE")


def print_scores(scores: Mapping[str, float], intervals: Mapping[str, Sequence[float]]) -> None:
    """A line for each metric, with its bootstrap interval."""
    ends = {name: f"{low:.4f} to {high:.4f}" for name, (low, high) in intervals.items()}
    rows = [[name, f"{score:.4f}", ends.get(name, "-")] for name, score in scores.items()]
    print_table(["metric", "score", "95 % interval (bootstrap)"], rows)


def print_table(head: list[str], rows: list[list[Any]]) -> None:
    """Columns as wide as they need to be; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *cells]) for i in range(len(head))]
    for row in [head, *cells]:
        parts = [c.rjust(w) if c[:1].isdigit() else c.ljust(w) for c, w in zip(row, widths, strict=True)]
        print("  ".join(parts).rstrip())
