"""Options of the command line, made from the fields of settings."""

import argparse
import dataclasses
import types
import typing
from typing import Any, NoReturn

from mnagt.errors import InputError
from mnagt.settings import described, from_word


class Parser(argparse.ArgumentParser):
    """Tells what is wrong as everything else does, in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; `{self.prog} --help` explains")


def add_options(
    parser: argparse.ArgumentParser, cls: type, title: str, *, prefix: str = "", leave_out: tuple[str, ...] = ()
) -> None:
    """An option for each field of ``cls``, explained by the string under it. Unset ones are None."""
    group = parser.add_argument_group(title)
    hints, told = typing.get_type_hints(cls), described(cls)
    for field in dataclasses.fields(cls):
        if field.name not in leave_out:
            text = told.get(field.name, "")
            group.add_argument(
                option(prefix + field.name),
                dest=prefix + field.name,
                metavar=_metavar(hints[field.name]),
                help=(text if field.default is None else f"{text} [{field.default}]").replace("%", "%%"),
            )


def given(args: argparse.Namespace, cls: type, *, prefix: str = "", **spelt: str) -> dict[str, Any]:
    """The fields of ``cls`` that were set on the command line. ``spelt`` holds options not named after their field."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        word = getattr(args, prefix + field.name, None)
        if word is not None:
            name = spelt.get(field.name, option(prefix + field.name))
            values[field.name] = from_word(hints[field.name], word, name)
    return values


def option(name: str) -> str:
    """The option that sets field ``name``."""
    return "--" + name.replace("_", "-")


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _metavar(typing.get_args(hint)[0])
    return {int: "N", float: "X", str: "NAME", bool: "true|false"}.get(hint, "VALUE")


def print_table(head: list[str], rows: list[list[Any]]) -> None:
    """Columns as wide as they need to be; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *cells]) for i in range(len(head))]
    for row in [head, *cells]:
        parts = [c.rjust(w) if c[:1].isdigit() else c.ljust(w) for c, w in zip(row, widths, strict=True)]
        print("  ".join(parts).rstrip())
