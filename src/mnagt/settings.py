"""Settings are frozen dataclasses; this is how they are read from files and words, checked and described."""

import ast
import dataclasses
import inspect
import textwrap
import tomllib
import types
import typing
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from mnagt.errors import InputError, shown
from mnagt.reading import read_record

Config = TypeVar("Config")

LARGEST = 2**40
"""Whole numbers are smaller: seeds are multiplied, and must fit 64 bits after that."""


def at_least(config: Any, least: float, *names: str) -> None:
    """Refuse settings below ``least``."""
    for name in names:
        value = getattr(config, name)
        if not value >= least:
            raise InputError(f"{name} must be at least {least}, got {value}")


def below(config: Any, limit: float, *names: str) -> None:
    """Refuse settings that reach ``limit``."""
    for name in names:
        value = getattr(config, name)
        if not value < limit:
            raise InputError(f"{name} must be below {limit}, got {value}")


def literals(config: Any) -> None:
    """Refuse settings that are not among the words their type lists."""
    for name, hint in typing.get_type_hints(type(config)).items():
        if typing.get_origin(hint) is typing.Literal:
            one_of(config, **{name: typing.get_args(hint)})


def one_of(config: Any, **choices: Container[str]) -> None:
    """Refuse settings that are not among their choices."""
    for name, allowed in choices.items():
        value = getattr(config, name)
        if value not in allowed:
            raise InputError(f"{name} must be one of {', '.join(sorted(allowed))}, got {shown(value)}")  # type: ignore[type-var]


def from_dict(cls: type[Config], values: Mapping[str, Any], *, where: str) -> Config:
    """``cls`` with the given fields; unknown or ill-typed ones are refused by name. ``where`` is for the message."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: expected {_spoken(cls)}, got {shown(values)}")
    hints = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise InputError(f"{where}: no setting {shown(name)}; there are: {', '.join(sorted(known))}")
    read = {name: _checked(hints[name], value, f"{where}: {name}") for name, value in values.items()}
    try:
        return cls(**read)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def from_word(hint: Any, word: str, where: str) -> Any:
    """A value of type ``hint`` from a word of the command line."""
    options = [option for option in _options(hint) if option is not type(None)]
    if word.lower() == "none" and type(None) in _options(hint):
        return None
    kind = options[0]
    if kind is bool:
        if word.lower() not in ("true", "false"):
            raise InputError(f"{where}: expected true or false, got {word!r}")
        return word.lower() == "true"
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(from_word(inner, part, where) for part in word.split(","))
    if kind in (int, float):
        try:
            value = kind(word)
        except ValueError:
            raise InputError(f"{where}: expected {_spoken(kind)}, got {word!r}") from None
        return _checked(hint, value, where)
    return _checked(hint, Path(word) if kind is Path else word, where)


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _spoken(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", Path: "a path"}
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    return words.get(kind, "a list" if typing.get_origin(kind) is tuple else "a table of settings")


def _checked(hint: Any, value: Any, where: str) -> Any:
    """``value`` as ``hint`` wants it, or an error. An int will do for a float, a list for a tuple."""
    for kind in _options(hint):
        origin = typing.get_origin(kind)
        if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
            return from_dict(kind, value, where=where)  # type: ignore[arg-type]
        if origin is typing.Literal and value in typing.get_args(kind):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(_checked(typing.get_args(kind)[0], item, where) for item in value)
        if origin in (dict, Mapping) and isinstance(value, Mapping):
            return dict(value)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise InputError(f"{where}: {shown(value)} is too large") from None
        if kind is Path and isinstance(value, str | Path):
            return Path(value)
        if (
            isinstance(kind, type)
            and origin is None
            and isinstance(value, kind)
            and (kind is bool) == isinstance(value, bool)
        ):
            if kind is int and abs(value) >= LARGEST:
                raise InputError(f"{where}: {shown(value)} is too large; whole numbers stay below {LARGEST}")
            return value
    wanted = " or ".join(_spoken(kind) for kind in _options(hint) if kind is not type(None))
    raise InputError(f"{where}: expected {wanted}, got {shown(value)}")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, or an error naming the file and the line."""
    try:
        return tomllib.loads(read_record(path).decode("utf-8"))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, thousands of digits, nested too deeply
        raise InputError(f"{path}: not TOML: {error}") from None


@cache
def described(cls: type) -> dict[str, str]:
    """What the string under each field says."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    told = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                told[name] = " ".join(text.split())
    return told
