"""Settings are frozen dataclasses whose annotations hold types, bounds and choices.

From the annotations follow validation, reading from files and words of the command line, and help:

>>> @dataclass(frozen=True)
... class Example(Settings):
...     epochs: Annotated[int, Ge(1)] = 100
...     readout: Annotated[str, OneOf(("sum", "mean"))] = "sum"
>>> Example(epochs=0)
Traceback (most recent call last):
mnagt.errors.InputError: epochs must be at least 1, got 0
"""

import ast
import dataclasses
import inspect
import math
import operator
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from mnagt.errors import InputError, quote
from mnagt.files import read_small_file
from mnagt.migrations import rename_settings
from mnagt.plugins import load_plugins

Config = TypeVar("Config")

LARGEST = 2**40
"""Whole numbers are smaller: seeds are multiplied, and must fit 64 bits after that."""


@dataclass(frozen=True)
class Bound:
    """A limit of a number, such as ``Ge(1)``."""

    text: str
    compare: Callable[[Any, float], bool]
    limit: float

    def accepts(self, value: Any) -> bool:
        return self.compare(value, self.limit)

    def __str__(self) -> str:
        return f"{self.text} {self.limit}"


Ge = partial(Bound, "at least", operator.ge)
Gt = partial(Bound, "above", operator.gt)
Le = partial(Bound, "at most", operator.le)
Lt = partial(Bound, "below", operator.lt)  # infinity as the limit asks for a finite value


@dataclass(frozen=True)
class OneOf:
    """The value is one of ``choices``; a table (``READOUTS``) may get more of them later."""

    choices: Collection[str]

    def accepts(self, value: Any) -> bool:
        if value not in self.choices and isinstance(value, str):
            load_plugins()
        return value in self.choices

    def __str__(self) -> str:
        return f"one of {', '.join(sorted(self.choices))}"


Constraint = Bound | OneOf

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
NonNegativeFloat = Annotated[float, Ge(0), Lt(math.inf)]
Fraction = Annotated[float, Ge(0), Lt(1)]


class Settings:
    """Base of all settings: a frozen dataclass that refuses values outside the bounds and choices of its fields."""

    def __post_init__(self) -> None:
        check_constraints(self)


def check_constraints(config: Any) -> None:
    """Refuse a dataclass with a value outside the bounds or choices of its field. None, where it may be, is not."""
    for name, field in describe_fields(type(config)).items():
        value = getattr(config, name)
        if value is None and type(None) in _alternatives(field.hint):
            continue
        for constraint in field.constraints:
            if not constraint.accepts(value):
                raise InputError(f"{name} must be {constraint}, got {quote(value)}")


class Field(NamedTuple):
    """A setting as its annotation describes it."""

    hint: Any
    """Its type, without constraints."""
    constraints: tuple[Constraint, ...]
    default: Any


@cache
def describe_fields(cls: type) -> dict[str, Field]:
    """The fields of a dataclass by name, in order."""
    bare, annotated = typing.get_type_hints(cls), typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: Field(bare[field.name], tuple(_find_constraints(annotated[field.name])), field.default)
        for field in dataclasses.fields(cls)
    }


def _find_constraints(hint: Any) -> Iterator[Constraint]:
    """Those in the annotation, also of a member of a union; a ``Literal`` is a choice."""
    for kind in _alternatives(hint):
        if typing.get_origin(kind) is typing.Literal:
            yield OneOf(typing.get_args(kind))
        elif typing.get_origin(kind) is Annotated:
            inner, *extras = typing.get_args(kind)
            yield from _find_constraints(inner)
            yield from (extra for extra in extras if isinstance(extra, Constraint))


@cache
def read_field_docs(cls: type) -> dict[str, str]:
    """The string under each field in the source, if any, of ``cls`` and of the dataclasses that it inherits from."""
    docs = {}
    for base in (base for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base)):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):  # a class of a notebook or prompt has no file
            continue
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs


def from_dict(cls: type[Config], values: Mapping[str, Any], *, where: str) -> Config:
    """A dataclass with the given fields.

    Args:
        cls: The dataclass.
        values: Its fields by name, as JSON and TOML hold them; names of 0.1 are renamed.
        where: Where the values come from, for error messages.

    Raises:
        InputError: Names the field that is unknown, has another type, or breaks a constraint.

    >>> from mnagt.runs.config import TrainConfig
    >>> from_dict(TrainConfig, {"epochs": 7}, where="run.toml").epochs
    7
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: expected {_name_type(cls)}, got {quote(values)}")
    fields = describe_fields(cls)
    values = rename_settings(values, fields)
    for name in values:
        if name not in fields:
            raise InputError(f"{where}: no setting {quote(name)}; there are: {', '.join(sorted(fields))}")
    converted = {name: _convert(fields[name].hint, value, f"{where}: {name}") for name, value in values.items()}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise InputError(f"{where}: no {field.name} in it; add it")
    try:
        return cls(**converted)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def from_word(hint: Any, word: str, where: str) -> Any:
    """A value of type ``hint`` from a word of the command line.

    >>> from_word(tuple[int, ...], "2,3,5", "--seeds")
    (2, 3, 5)
    """
    if word.lower() == "none" and type(None) in _alternatives(hint):
        return None
    kind = next(kind for kind in _alternatives(hint) if kind is not type(None))
    if typing.get_origin(kind) is tuple:
        return tuple(from_word(typing.get_args(kind)[0], part, where) for part in word.split(","))
    value: Any = {"true": True, "false": False}.get(word.lower(), word) if kind is bool else word
    if kind in (int, float):
        with suppress(ValueError):
            value = kind(word)
    return _convert(hint, value, where)


def convert_fields(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``cls`` by name as their types want them: an int will do for a float, a list for a tuple.

    >>> from mnagt.runs.config import TrainConfig
    >>> convert_fields(TrainConfig, {"lr": 1})
    {'lr': 1.0}
    """
    fields = describe_fields(cls)
    return {name: _convert(fields[name].hint, value, name) for name, value in values.items()}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _name_type(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    names = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", Path: "a path"}
    return names.get(kind, "a list" if typing.get_origin(kind) is tuple else "a table of settings")


def _convert(hint: Any, value: Any, where: str) -> Any:
    """``value`` as ``hint`` wants it, or an error. An int will do for a float, a list for a tuple."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    for kind in _alternatives(hint):
        origin = typing.get_origin(kind)
        if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
            return from_dict(kind, value, where=where)  # type: ignore[arg-type]
        if origin is typing.Literal and value in typing.get_args(kind):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(_convert(typing.get_args(kind)[0], item, where) for item in value)
        if origin in (dict, Mapping) and isinstance(value, Mapping):
            return dict(value)
        if kind is Path and isinstance(value, str | Path):
            return Path(value)
        if kind is float and is_number:
            try:
                return float(value)
            except OverflowError:
                raise InputError(f"{where}: {quote(value)} is too large") from None
        if kind is int and is_number and isinstance(value, int):
            if abs(value) >= LARGEST:
                raise InputError(f"{where}: {quote(value)} is too large; whole numbers stay below {LARGEST}")
            return value
        if origin is None and isinstance(kind, type) and kind is not int and isinstance(value, kind):
            return value
    wanted = " or ".join(_name_type(kind) for kind in _alternatives(hint) if kind is not type(None))
    raise InputError(f"{where}: expected {wanted}, got {quote(value)}")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, or an error naming the file and the line."""
    content = read_small_file(path)
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, thousands of digits, nested too deeply
        raise InputError(f"{path}: not TOML: {error}") from None
