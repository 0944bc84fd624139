"""Training on a CPU with jemalloc, where it is installed and the memory allocator of the system would let memory grow.

glibc before 2.38 seldom reuses freed aligned blocks (its bug 14581), and torch asks for no others: the memory of a long
training grows. An allocator can only be chosen when a process starts, so the command is started again.
"""

import os
import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

CHOICE = "MNAGT_ALLOCATOR"
"""Environment variable: ``system`` keeps the allocator of the system."""
OPTIONS = "oversize_threshold:0,dirty_decay_ms:10000"
"""Options of jemalloc: freed memory is kept for the next steps, and given back after ten seconds. To give it back at
once costs a tenth of the time or more; never to do so took 2 to 6 GB in some trainings (docs/log.md)."""
PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
FIXED_IN = (2, 38)
"""The version of glibc that has no such growth."""


def restart_with_jemalloc() -> None:
    """Replace this process by the same command with jemalloc, if that helps; else return."""
    added = choose_environment(os.environ, platform.libc_ver(), find_jemalloc())
    if added and sys.orig_argv[1:]:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})


def choose_environment(environ: Mapping[str, str], libc: tuple[str, str], jemalloc: Path | None) -> dict[str, str]:
    """The variables to add to the environment; none where nothing is to be changed.

    >>> choose_environment({}, ("glibc", "2.36"), Path("/usr/lib/libjemalloc.so.2"))["LD_PRELOAD"]
    '/usr/lib/libjemalloc.so.2'
    >>> choose_environment({}, ("glibc", "2.39"), Path("/usr/lib/libjemalloc.so.2"))
    {}
    """
    name, version = libc
    numbers = version.split(".")[:2]
    is_affected = name == "glibc" and all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) < FIXED_IN
    is_chosen = "LD_PRELOAD" in environ or environ.get(CHOICE) == "system"
    if not is_affected or is_chosen or jemalloc is None:
        return {}
    return {"LD_PRELOAD": str(jemalloc), "MALLOC_CONF": environ.get("MALLOC_CONF", OPTIONS)}


def find_jemalloc() -> Path | None:
    """The library of the system (``apt install libjemalloc2``), or the one that Ray comes with."""
    system = (path for folder in PLACES for path in sorted(Path(folder).glob("libjemalloc.so.2")))
    ray = find_spec("ray")
    bundled = Path(ray.origin).parent / "core" / "libjemalloc.so" if ray and ray.origin else None
    return next(system, bundled if bundled and bundled.is_file() else None)
