"""Files are written whole or not at all, whatever the disk says."""

import errno
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mnagt.files
from mnagt.errors import InputError
from mnagt.files import (
    csv_writer,
    hold_lock,
    make_folder,
    read_json,
    write_atomically,
    write_folder_atomically,
    write_json,
    write_text,
)
from mnagt.inference.weights import load_tensors, save_tensors


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a small disk; the test without one says the same")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reaches the disk any more."""

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mnagt.files.os.fsync", refuse)


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "a" / "b" / "it.txt"
    with write_atomically(path) as scratch:
        scratch.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"
    assert os.listdir(path.parent) == ["it.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_whatever_ends_the_writing_the_old_file_stays(tmp_path, error):
    path = tmp_path / "it.txt"
    write_text(path, "old")

    def write_and_fail() -> None:
        with write_atomically(path) as scratch:
            scratch.write_text("new")
            raise error

    with pytest.raises(error):
        write_and_fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["it.txt"]


def test_on_a_full_disk_the_old_file_stays(tmp_path, request):
    path = tmp_path / "it.txt"
    write_text(path, "old")
    request.getfixturevalue("full_disk")
    with pytest.raises(InputError, match=r"cannot write .*it\.txt: No space left on device; .* free some space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["it.txt"]


def test_on_a_full_disk_the_old_checkpoint_stays(small_disk):
    path = small_disk / "last.safetensors"
    save_tensors(path, {"w": torch.arange(7)}, {"epoch": 3})
    with pytest.raises(InputError, match=r"cannot write .*last\.safetensors: .*No space left.* free some space"):
        save_tensors(path, {"w": torch.zeros(100_003)}, {"epoch": 4})
    tensors, note = load_tensors(path)
    assert tensors["w"].tolist() == list(range(7))
    assert note == {"epoch": 3}
    assert os.listdir(small_disk) == ["last.safetensors"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "it.txt", tmp_path / "file" / "deep" / "it.txt"):
        with pytest.raises(InputError, match=f"cannot write {path}: there is a file where its folder would be"):
            write_text(path, "text")
    with pytest.raises(InputError, match=r"cannot write .*: it is a folder; choose another name"):
        write_text(tmp_path, "text")
    with pytest.raises(InputError, match="there is a file where its folder would be"):
        make_folder(tmp_path / "file")


def test_a_place_one_may_not_write_is_named(tmp_path, monkeypatch):
    def refuse(*args: object, **named: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("mnagt.files.tempfile.mkdtemp", refuse)
    with pytest.raises(InputError, match="Permission denied; choose a place that can be written"):
        write_text(tmp_path / "it.txt", "text")


def test_json_comes_back_as_it_was(tmp_path):
    content = {"a": [1, 2.5, None], "ö": {"b": True}}
    write_json(tmp_path / "it.json", content)
    assert read_json(tmp_path / "it.json") == content


@pytest.mark.parametrize("content", [b"", b'{"a": 1,\n', b"\xff\xfe"])
def test_damaged_json_is_refused_by_name(tmp_path, content):
    (tmp_path / "it.json").write_bytes(content)
    with pytest.raises(InputError, match=r"it\.json: not JSON \(.*\); it is damaged"):
        read_json(tmp_path / "it.json")


def test_missing_or_unreadable_json_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"gone\.json: no such file"):
        read_json(tmp_path / "gone.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path)


def test_formulas_can_be_quoted(tmp_path):
    rows = [
        ["=cmd", "p"],
        ["=1+1", "+x"],
        ["-3.5", "-"],
        [" @SUM(A1)", "1"],
        ["plain", ""],
        [None, "a=b"],
        [-2.5, "-inf"],
    ]
    for quotes_formulas, mark in ((False, ""), (True, "'")):
        with (tmp_path / "a.csv").open("w", newline="") as file:
            csv_writer(file, quotes_formulas=quotes_formulas)(rows)
        lines = (tmp_path / "a.csv").read_text().splitlines()
        assert lines[:4] == [f"{mark}=cmd,p", f"{mark}=1+1,{mark}+x", f"-3.5,{mark}-", f"{mark} @SUM(A1),1"]
        assert lines[4:] == ["plain,", ",a=b", "-2.5,-inf"]


def test_files_are_written_where_there_are_no_locks(tmp_path, monkeypatch):
    """As on Windows."""
    monkeypatch.setattr("mnagt.files.fcntl", None)
    write_json(tmp_path / "a.json", [1])
    with write_folder_atomically(tmp_path / "folder") as scratch:
        (scratch / "b").write_text("b")
    with hold_lock(tmp_path / "a.json", "busy"), hold_lock(tmp_path / "a.json", "busy"):
        assert read_json(tmp_path / "a.json") == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "folder"]


def test_modules_that_import_what_windows_lacks_do_without():
    package = Path(mnagt.files.__file__).parent
    posix = re.compile(r"^\s*(?:import|from) (?:fcntl|resource|pwd|grp|termios)\b", re.MULTILINE)
    tried = re.compile(r"^( *)try:\n\1    import (?:fcntl|resource)\n\1except ImportError:", re.MULTILINE)
    counts = {}
    for path in package.rglob("*.py"):
        text = path.read_text()
        if posix.search(text):
            counts[path.name] = (len(posix.findall(text)), len(tried.findall(text)))
    assert {"files.py", "onnx_worker.py"} <= counts.keys()
    assert all(imported == guarded for imported, guarded in counts.values()), counts
