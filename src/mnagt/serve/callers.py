"""Who may send requests, and how many a minute: tokens of callers, from a file or the environment."""

import hmac
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mnagt.errors import InputError, quote
from mnagt.serve.config import ServeConfig
from mnagt.settings import Gt, Settings, from_dict, read_toml

MIN_TOKEN = 16
"""Characters of a token in a file, at least."""
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Caller(Settings):
    """A table of the file of tokens: ``[NAME]``."""

    token: str
    """What the caller sends: ``Authorization: Bearer TOKEN``."""
    per_minute: Annotated[float, Gt(0)] = math.inf
    """Predictions and explanations that may be requested in a minute; so many at once, too."""


def read_callers(path: Path) -> dict[str, Caller]:
    """The callers in a TOML file, by name."""
    callers = {}
    for name, table in read_toml(path).items():
        if not _NAME.fullmatch(name):
            raise InputError(f"{path}: {quote(name)} is no name of a caller; use letters, digits, _, - and .")
        if not isinstance(table, dict) or not isinstance(table.get("token", ""), str):  # it may be a secret: not quoted
            raise InputError(f'{path}: {name}: expected a table, [{name}] with token = "..."')
        callers[name] = from_dict(Caller, table, where=f"{path}: {name}")
        if len(callers[name].token) < MIN_TOKEN:
            raise InputError(f"{path}: the token of {name} has fewer than {MIN_TOKEN} characters; make a longer one")
    if not callers:
        raise InputError(f'{path}: no caller in it; add a table, such as [alice] with token = "..."')
    if len({caller.token for caller in callers.values()}) < len(callers):
        raise InputError(f"{path}: two callers have the same token; give each its own")
    return callers


class Callers:
    """Finds out who sends a request, and whether that is too soon.

    Each caller has a bucket of ``per_minute`` requests that fills up within a minute. Each of several worker processes
    has its share of it. Without any token everybody may send requests, as the caller ''.
    """

    def __init__(self, config: ServeConfig, now: Callable[[], float] = time.monotonic) -> None:
        callers = read_callers(Path(config.tokens)) if config.tokens else {}
        if config.token and "default" in callers:
            raise InputError(f"{config.tokens}: [default] is the caller of MNAGT_TOKEN; give it another name")
        callers |= {"default": Caller(config.token)} if config.token else {}
        for name, caller in callers.items():
            if caller.token != caller.token.strip() or not caller.token.isprintable():
                raise InputError(f"the token of {name} has a line break, or a blank at an end: no header can hold it")
        self._tokens = {name: f"Bearer {caller.token}".encode() for name, caller in callers.items()}
        self._rates = {name: caller.per_minute / config.workers for name, caller in callers.items()}
        self._sizes = {name: max(1.0, rate) for name, rate in self._rates.items()}
        self._left, self._filled = dict(self._sizes), dict.fromkeys(callers, now())
        self._now = now

    def find(self, authorization: bytes) -> str | None:
        """The name of the caller with this header; None if there is none."""
        if not self._tokens:
            return ""
        names = [name for name, token in self._tokens.items() if hmac.compare_digest(authorization, token)]
        return names[0] if names else None

    def count(self, name: str) -> float:
        """Count a request of the caller; the seconds until the next is allowed if this one comes too soon, else 0."""
        rate = self._rates.get(name, math.inf)
        if math.isinf(rate):
            return 0.0
        now = self._now()
        self._left[name] = min(self._sizes[name], self._left[name] + (now - self._filled[name]) * rate / 60)
        self._filled[name] = now
        if self._left[name] < 1:
            return (1 - self._left[name]) * 60 / rate
        self._left[name] -= 1
        return 0.0
