"""Killed, out of room, or not alone: what goes on afterwards is what an undisturbed run gives.

``tests/reliability/crash.py``, which does the work, does more of it.
"""

import fcntl
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reliability import crash, scenes

from mnagt.files import SCRATCH, clear_scratch, scratch_path, write_text

DRAWN = random.Random(3)
WRITER = """
import os, sys
from pathlib import Path
from mnagt.files import scratch_path
with scratch_path(Path(sys.argv[1])) as path:
    path.write_text("half")
    os.kill(os.getpid(), 9)
"""
BOSS = """
import multiprocessing, os
from mnagt.experiments.executors import run_parallel
if __name__ == "__main__":
    with run_parallel(abs, [-1], jobs=2) as outcomes:
        assert [outcome() for _, outcome in outcomes] == [1]
        print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    scenes.prepare()
    return tmp_path_factory.mktemp("crash")


@pytest.fixture(scope="module")
def run(place) -> scenes.Scene:
    (scene := scenes.mutag(epochs=1)).rehearse(place)
    return scene


@pytest.fixture(scope="module")
def trials(place) -> scenes.Scene:
    (scene := scenes.trials(place, seeds=2, epochs=1)).rehearse(place)
    return scene


# --- scratch ---


def test_what_a_killed_writer_left_goes_with_the_next_writing(tmp_path):
    path = tmp_path / "it.json"
    assert subprocess.run([sys.executable, "-c", WRITER, str(path)]).returncode == -9
    assert [left.name.endswith(SCRATCH) for left in tmp_path.iterdir()] == [True]
    write_text(tmp_path / "other.txt", "whole")
    assert os.listdir(tmp_path) == ["other.txt"]


def test_a_writer_at_work_keeps_its_scratch(tmp_path):
    with scratch_path(tmp_path / "it.txt") as scratch:
        scratch.write_text("half")
        clear_scratch(tmp_path)
        write_text(tmp_path / "other.txt", "whole")
        assert scratch.read_text() == "half"


def test_scratch_that_was_cleared_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    lock, made = fcntl.flock, []

    def late(handle: int, how: int) -> None:
        if not made:
            made.extend(tmp_path.glob(f".*{SCRATCH}"))
            made[0].rmdir()
        lock(handle, how)

    monkeypatch.setattr("mnagt.files.fcntl.flock", late)
    write_text(tmp_path / "it.txt", "whole")
    assert len(made) == 1
    assert os.listdir(tmp_path) == ["it.txt"]


def test_what_others_hide_beside_it_stays(tmp_path):
    for name in (".it.txt.12345678", f"it{SCRATCH}"):
        (tmp_path / name).mkdir()
    (tmp_path / f".a{SCRATCH}").symlink_to(tmp_path / f"it{SCRATCH}")
    write_text(tmp_path / "it.txt", "whole")
    assert set(os.listdir(tmp_path)) == {f".a{SCRATCH}", ".it.txt.12345678", "it.txt", f"it{SCRATCH}"}


# --- kills, full disks, races ---


def test_killed_anywhere_it_ends_as_if_undisturbed(run, trials, place):
    tally = crash.kill_many([run, trials], 6, 3, place, DRAWN)
    assert tally.wrong == []


@pytest.mark.parametrize("stop", [crash.fill_disks, crash.limit_files])
def test_without_room_it_says_so_and_with_room_it_goes_on(stop, run, trials, place):
    stopped = 0
    for scene in (run, trials):
        tally = stop(scene, 2, place, DRAWN)
        assert tally.wrong == []
        stopped += sum(tally.counts.values())
    assert stopped >= 2


@pytest.mark.parametrize("kill", [None, 0.05])
def test_a_cache_that_many_build_at_once_is_built(kill, place):
    assert crash.race_for_a_cache("MUTAG", 3, place, kill).wrong == []


@pytest.mark.parametrize("kill", [None, 0.02])
def test_a_trial_that_many_add_at_once_is_there_once(kill, place):
    assert crash.race_for_a_ledger(5, 3, place, DRAWN, kill).wrong == []


def test_a_worker_does_not_outlive_the_process_that_started_it(tmp_path):
    (tmp_path / "boss.py").write_text(BOSS)
    done = subprocess.run([sys.executable, tmp_path / "boss.py"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -9
    (worker,) = (Path("/proc") / pid for pid in done.stdout.split())
    ends = time.monotonic() + 20
    while worker.exists() and "(zombie)" not in (worker / "status").read_text() and time.monotonic() < ends:
        time.sleep(0.01)
    assert time.monotonic() < ends


def test_trials_that_many_run_at_once_are_there_once(trials, place):
    assert crash.race_with_trials(trials, 2, place).wrong == []


# --- the harness itself ---


def test_the_harness_sees_what_is_wrong(run, place):
    with scenes.place_in(place) as here:
        assert run.go(here) == 0
        assert scenes.differences(scenes.contents(here.folder), run.expected) == []
        (here.run / ".half").write_text("")
        (here.run / "split.json").write_text("{}")
        (here.run / "README.md").unlink()
        wrong = scenes.differences(scenes.contents(here.folder), run.expected)
        assert wrong == ["run/.half is left over", "run/README.md is gone", "run/split.json differs"]
        (here.run / "model.safetensors").write_bytes((here.run / "model.safetensors").read_bytes()[:-1])
        assert len(scenes.unreadable(here)) == 1
