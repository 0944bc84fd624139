"""Names live in visible tables; this is how they are looked up."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from mnagt.errors import InputError, quote

Entry = TypeVar("Entry")


def lookup(table: Mapping[str, Entry], name: str, kind: str = "entry") -> Entry:
    """The entry called ``name``, or an error that lists what there is.

    >>> lookup({"sum": 1, "mean": 2}, "means", "readout")
    Traceback (most recent call last):
    mnagt.errors.InputError: no readout 'means'; did you mean 'mean'? there are: mean, sum
    """
    if not isinstance(name, str) or name not in table:
        close = difflib.get_close_matches(name[:100], table, n=1) if isinstance(name, str) else []
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"no {kind} {quote(name)}; {hint}there are: {', '.join(sorted(table))}")
    return table[name]
