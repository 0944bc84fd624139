"""How threads of PyTorch wait for each other."""

from collections.abc import MutableMapping

SPINS = "1000"
"""Turns that a thread of OpenMP waits in a loop before it sleeps. GNU's default is 300,000, about as long as a turn of
the scheduler: on cores that others use too, each wait then costs one, and training takes up to seven times as long
(docs/log.md). On idle cores 1,000 turns are as fast."""


def limit_spinning(environ: MutableMapping[str, str]) -> None:
    """Let threads sleep soon, unless the environment says how they wait. Takes effect if PyTorch is not yet imported.

    >>> environ = {}
    >>> limit_spinning(environ)
    >>> environ
    {'GOMP_SPINCOUNT': '1000'}
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", SPINS)
