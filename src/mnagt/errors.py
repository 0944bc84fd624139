"""Errors in the user's input, as messages of one line, and the parts of such messages."""

import difflib
import json
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class InputError(ValueError):
    """Bad input. The message names the file, line or field at fault, and the remedy.

    >>> from mnagt import TrainConfig
    >>> TrainConfig(epochs=0)
    Traceback (most recent call last):
    mnagt.errors.InputError: epochs must be at least 1, got 0
    """


@contextmanager
def explain_missing(what: str, extra: str) -> Iterator[None]:
    """Within the block, a package that is not installed is an error: ``what`` needs it, and ``extra`` installs it."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        raise InputError(f"{what} needs {package}, which is not installed: {install_command(extra)}") from None


def install_command(extra: str) -> str:
    """The line that installs an extra for this copy of the package: of the clone that it is in or came from, if any."""
    from importlib.metadata import PackageNotFoundError, distribution  # takes a while

    clone = Path(__file__).parents[2]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    with suppress(PackageNotFoundError, ValueError):
        if source := json.loads(distribution("mnagt").read_text("direct_url.json") or "{}").get("url"):
            return f"pip install 'mnagt[{extra}] @ {source}'"
    return f"pip install 'mnagt[{extra}]'"


def join_names(names: Iterable[str], most: int = 300) -> str:
    """Names as messages list them: on one line, cut short."""
    text = ", ".join(names) or "nothing"
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= most else f"{text[:most]}..."


def suggest(name: str, names: Iterable[str]) -> str:
    """The nearest of ``names``, as messages propose it; capitals do not matter.

    >>> suggest("means", ["sum", "Mean"]), suggest("logs", ["logS (mol/L)"]), suggest("x", ["sum"])
    ("did you mean 'Mean'? ", "did you mean 'logS (mol/L)'? ", '')
    """
    by_lower, lower = {each.lower(): each for each in names}, name[:100].lower()
    longer = [each for each in by_lower if len(lower) > 2 and each.startswith(lower)]
    close = difflib.get_close_matches(lower, by_lower, n=1) or longer
    return f"did you mean {by_lower[close[0]]!r}? " if close else ""


def count(number: int, noun: str) -> str:
    """So many of something, as messages say it.

    >>> count(1, "molecule"), count(1200, "molecule")
    ('1 molecule', '1,200 molecules')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def one_line(error: BaseException, most: int = 300) -> str:
    """The message of an error of another package, on one line and cut short; its kind, where it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def quote(value: object, most: int = 60) -> str:
    """A value as messages show it: cut short, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list in a list in a list, ...
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}..."
