"""Commands that may run for long start themselves again with jemalloc where that helps, and nowhere else."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mnagt.cli import COMMANDS, allocator
from mnagt.cli.allocator import OPTIONS, find_jemalloc, is_growing, restart_with_jemalloc

OLD, LIBRARY = ("glibc", "2.36"), Path("/usr/lib/libjemalloc.so.2")


@pytest.mark.parametrize(
    ("environ", "libc"),
    [
        ({}, ("glibc", "2.38")),
        ({}, ("glibc", "3.0")),
        ({}, ("", "")),  # musl, macOS, Windows
        ({"LD_PRELOAD": "other.so"}, OLD),
        ({"MNAGT_ALLOCATOR": "system"}, OLD),
    ],
)
def test_nothing_is_changed_without_need(environ, libc):
    assert not is_growing(environ, libc)


@pytest.fixture
def old_glibc(monkeypatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: OLD)
    for name in ("LD_PRELOAD", "MNAGT_ALLOCATOR", "MALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def test_own_options_are_kept(old_glibc, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda path, words, environ: started.append(environ))
    monkeypatch.setattr(allocator, "find_jemalloc", lambda: LIBRARY)
    restart_with_jemalloc()
    monkeypatch.setenv("MALLOC_CONF", "narenas:1")
    restart_with_jemalloc()
    assert [each["LD_PRELOAD"] for each in started] == [str(LIBRARY)] * 2
    assert [each["MALLOC_CONF"] for each in started] == [OPTIONS, "narenas:1"]


def test_where_it_is_not_installed_a_long_process_says_so_once(old_glibc, monkeypatch, caplog):
    monkeypatch.setattr(allocator, "find_jemalloc", lambda: None)
    monkeypatch.setattr(allocator, "NOTICE_SECONDS", 0.2)
    restart_with_jemalloc()
    assert not caplog.messages
    time.sleep(1)
    (notice,) = caplog.messages
    assert notice.startswith("with glibc 2.36 the memory of this process grows; install jemalloc (apt install")


def test_commands_that_may_run_for_long_are_started_again_as_they_were():
    if find_jemalloc() is None:
        pytest.skip("jemalloc is not installed")
    program = """
import os, platform, sys
import mnagt.cli
platform.libc_ver = lambda: ("glibc", "2.36")
os.execve = lambda path, words, environ: print(words[-1], "jemalloc" in environ["LD_PRELOAD"])
for name in mnagt.cli.COMMANDS:
    sys.argv[1:] = sys.orig_argv[-1:] = [name]
    mnagt.cli.load_plugins = mnagt.cli._parser = lambda *_: sys.exit(0)
    try:
        mnagt.cli.main()
    except SystemExit:
        pass
"""
    environ = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "MNAGT_ALLOCATOR")}
    done = subprocess.run([sys.executable, "-c", program, ""], capture_output=True, text=True, env=environ)
    expected = ["train", "serve", "trials", "compare", "tune", "reproduce"]
    assert done.stdout.splitlines() == [f"{name} True" for name in expected], done.stderr
    assert [name for name, command in COMMANDS.items() if command.is_long_running] == expected
