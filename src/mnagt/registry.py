"""Names live in visible tables; this is how they are looked up."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TypeVar

from mnagt.errors import InputError, quote, suggest
from mnagt.plugins import load_plugins

Entry = TypeVar("Entry")

TASK_CHOICES = [
    "auto",
    "single-label",
    "multi-label",
    "regression",
    "censored-regression",
    "mixed",
    "node-regression",
    "edge-regression",
]
"""What the setting ``task`` may be: 'auto', and tasks whose targets columns hold. ``register_task`` adds one."""


def lookup(table: Mapping[str, Entry], name: str, kind: str = "entry", also: Iterable[str] = ()) -> Entry:
    """The entry called ``name``, or an error that lists what there is, and the nearest of that and of ``also``.

    >>> lookup({"sum": 1, "mean": 2}, "means", "readout")
    Traceback (most recent call last):
    mnagt.errors.InputError: no readout 'means'; did you mean 'mean'? there are: mean, sum
    """
    if isinstance(name, str) and name not in table:
        load_plugins()
    if not isinstance(name, str) or name not in table:
        hint = suggest(name, (*also, *table)) if isinstance(name, str) else ""
        raise InputError(f"no {kind} {quote(name)}; {hint}there are: {', '.join(sorted(table))}")
    return table[name]


def add_entry(table: MutableMapping[str, Entry], name: str, entry: Entry, kind: str) -> None:
    """Add ``entry`` to ``table`` as ``name``. The same definition may be added again, as a notebook does.

    >>> add_entry({"sum": 1}, "sum", 2, "readout")
    Traceback (most recent call last):
    mnagt.errors.InputError: there is a readout 'sum' already; choose another name
    """
    if name in table and _where(table[name]) != _where(entry):
        raise InputError(f"there is a {kind} {name!r} already; choose another name")
    table[name] = entry


def _where(entry: object) -> tuple[object, ...]:
    """The module and name of a definition; numbers and such are their own."""
    entry = getattr(entry, "build", entry)
    definition = getattr(entry, "__module__", None), getattr(entry, "__qualname__", None)
    return definition if all(definition) else (entry,)


def register_class(table: MutableMapping[str, Entry], name: str, kind: str) -> Callable[[Entry], Entry]:
    """A decorator that adds a class to ``table``."""

    def add(entry: Entry) -> Entry:
        add_entry(table, name, entry, kind)
        return entry

    return add
