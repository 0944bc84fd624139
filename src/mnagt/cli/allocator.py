"""Training and serving with jemalloc, where it is installed and the system's memory allocator would let memory grow.

glibc before 2.38 seldom reuses freed aligned blocks (its bug 14581), and torch asks for no others: the memory of a long
training or service grows. An allocator can only be chosen when a process starts, so the command is started again.
"""

import logging
import os
import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

CHOICE = "MNAGT_ALLOCATOR"
"""Environment variable: ``system`` keeps the allocator of the system."""
OPTIONS = "oversize_threshold:0,dirty_decay_ms:10000,thp:always"
"""Options of jemalloc: freed memory is kept for the next steps, and given back after ten seconds. To give it back at
once costs a tenth of the time or more; never to do so took 2 to 6 GB in some trainings (docs/log.md). What is given
back soon is asked for again, which in small pages takes a quarter more time, in huge ones (``thp``) hardly any."""
PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
FIXED_IN = (2, 38)
"""The version of glibc that has no such growth."""


NOTICE_SECONDS = 600.0
"""A command that takes longer says that its memory may grow: in shorter ones there is little to notice."""

_log = logging.getLogger(__name__)


def restart_with_jemalloc() -> None:
    """Replace this process by the same command with jemalloc, if that helps; else return.

    Where it would help and is not installed, a notice says so once, after ``NOTICE_SECONDS``.
    """
    libc = platform.libc_ver()
    if not is_growing(os.environ, libc):
        return
    jemalloc = find_jemalloc()
    if jemalloc is None:
        remedy = f"install jemalloc (apt install libjemalloc2), or set {CHOICE}=system to be told no more"
        notice = Timer(
            NOTICE_SECONDS, _log.warning, [f"with {' '.join(libc)} the memory of this process grows; {remedy}"]
        )
        notice.daemon = True
        notice.start()
    elif sys.orig_argv[1:]:
        added = {"LD_PRELOAD": str(jemalloc), "MALLOC_CONF": os.environ.get("MALLOC_CONF", OPTIONS)}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})


def is_growing(environ: Mapping[str, str], libc: tuple[str, str]) -> bool:
    """Whether the memory of a long process grows with this C library, unless the environment chooses an allocator.

    >>> is_growing({}, ("glibc", "2.36")), is_growing({}, ("glibc", "2.39"))
    (True, False)
    """
    name, version = libc
    numbers = version.split(".")[:2]
    is_affected = name == "glibc" and all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) < FIXED_IN
    return is_affected and "LD_PRELOAD" not in environ and environ.get(CHOICE) != "system"


def find_jemalloc() -> Path | None:
    """The library of the system (``apt install libjemalloc2``), or the one that Ray comes with."""
    system = (path for folder in PLACES for path in sorted(Path(folder).glob("libjemalloc.so.2")))
    ray = find_spec("ray")
    bundled = Path(ray.origin).parent / "core" / "libjemalloc.so" if ray and ray.origin else None
    return next(system, bundled if bundled and bundled.is_file() else None)
