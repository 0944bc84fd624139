"""``mnagt train`` starts itself again with jemalloc where that keeps memory from growing, and nowhere else."""

import subprocess
import sys
from pathlib import Path

import pytest

from mnagt.cli.allocator import OPTIONS, choose_environment, find_jemalloc

OLD, LIBRARY = ("glibc", "2.36"), Path("/usr/lib/libjemalloc.so.2")


@pytest.mark.parametrize(
    ("environ", "libc", "library"),
    [
        ({}, ("glibc", "2.38"), LIBRARY),
        ({}, ("glibc", "3.0"), LIBRARY),
        ({}, ("", ""), LIBRARY),  # musl, macOS, Windows
        ({}, OLD, None),
        ({"LD_PRELOAD": "other.so"}, OLD, LIBRARY),
        ({"MNAGT_ALLOCATOR": "system"}, OLD, LIBRARY),
    ],
)
def test_nothing_is_changed_without_need(environ, libc, library):
    assert choose_environment(environ, libc, library) == {}


def test_own_options_are_kept():
    assert choose_environment({}, OLD, LIBRARY) == {"LD_PRELOAD": str(LIBRARY), "MALLOC_CONF": OPTIONS}
    assert choose_environment({"MALLOC_CONF": "narenas:1"}, OLD, LIBRARY)["MALLOC_CONF"] == "narenas:1"


def test_the_command_is_started_again_as_it_was():
    if find_jemalloc() is None:
        pytest.skip("jemalloc is not installed")
    program = """
import os, platform, sys
import mnagt.cli
platform.libc_ver = lambda: ("glibc", "2.36")
os.execve = lambda path, words, environ: (print(words[-2:], "jemalloc" in environ["LD_PRELOAD"]), sys.exit(0))
mnagt.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program, "train", "--help"], capture_output=True, text=True)
    assert done.stdout == "['train', '--help'] True\n", done.stderr
