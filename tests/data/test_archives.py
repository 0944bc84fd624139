"""Archives from outside: what would fill the memory, lead elsewhere or tell lies is refused, and says so."""

import gzip
import os
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from data.tu_files import SMALL, folder, zipped

from mnagt.data import archives
from mnagt.data.archives import BLOCK, Archive
from mnagt.data.readers.jsonl import read_jsonl
from mnagt.data.readers.text_table import read_table
from mnagt.data.readers.tu import read_tu
from mnagt.data.splits import read_split
from mnagt.errors import InputError


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch):
    """Smaller ones, so that small files reach them."""
    monkeypatch.setattr(archives, "BLOCK", 1 << 10)
    monkeypatch.setattr(archives, "CHECKED_FROM", 10_000)
    monkeypatch.setattr(archives, "MAX_COMPRESSION_RATIO", 200)


def zip_with(path: Path, name: str | zipfile.ZipInfo, content: bytes = b"") -> Path:
    """The small data set, and one more entry."""
    zipped(folder(path / "SMALL"), path / "SMALL.zip")
    with zipfile.ZipFile(path / "SMALL.zip", "a") as archive:
        archive.writestr(name, content)
    return path / "SMALL.zip"


@pytest.mark.parametrize(
    "name", ["../SMALL_A.txt", "a/../../b.txt", "/etc/SMALL_A.txt", "..\\b.txt", "C:/b.txt", "a/.."]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"leads out of the zip; do not trust it"):
        read_tu(zip_with(tmp_path, name))


def test_links_are_refused(tmp_path):
    link = zipfile.ZipInfo("SMALL_graph_attributes.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(InputError, match=r"'SMALL_graph_attributes.txt' is a link"):
        read_tu(zip_with(tmp_path, link, b"/etc/passwd"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(tmp_path):
    """Programs do not agree on which of the two counts."""
    with pytest.raises(InputError, match=r"'SMALL_A.txt' is there twice"):
        read_tu(zip_with(tmp_path, "SMALL_A.txt", b"1, 1\n"))


def test_a_folder_of_a_name_twice_mac_leftovers_and_dots_in_names_are_fine(tmp_path):
    path = zip_with(tmp_path, "__MACOSX/../x")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes/", "")
        archive.writestr("notes/v1..2.md", "")
    assert len(read_tu(path)) == 4


def test_bzip2_is_refused(tmp_path):
    """A few bytes of it make gigabytes in one go: Python takes no limit there."""
    path = zipped(folder(tmp_path / "SMALL"), tmp_path / "SMALL.zip", compression=zipfile.ZIP_BZIP2)
    with pytest.raises(InputError, match="zip it with deflate"):
        read_tu(path)


def test_lzma_is_read_in_sips(tmp_path):
    """Nor there, but a packed byte makes at most some thousand."""
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("zeros", bytes(200 << 20))
    blocks = Archive(path).read_blocks("zeros")
    tracemalloc.start()
    assert len(next(blocks)) == BLOCK
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100 << 20


def test_a_bomb_in_a_zip_is_refused(tmp_path, bounds):
    path = zipped(folder(tmp_path / "SMALL", {"graph_indicator": "1\n" * 100_000}), tmp_path / "SMALL.zip")
    with pytest.raises(InputError, match=r"SMALL_graph_indicator.txt: \d+ bytes expand to over 200,000"):
        read_tu(path)


def test_a_bomb_that_lies_about_its_size_is_refused(tmp_path, bounds):
    path = zipped(folder(tmp_path / "SMALL", {"graph_indicator": "1\n" * 100_000}), tmp_path / "SMALL.zip")
    content, true = bytearray(path.read_bytes()), struct.pack("<I", 200_000)
    for lie, told in (
        (900, "Bad CRC-32"),
        (900_000_000, "expand to over 900,000,000"),
        (190_000, "expand to over 190,"),
    ):
        path.write_bytes(content.replace(true, struct.pack("<I", lie)))
        with pytest.raises(InputError, match=told):
            read_tu(path)


def test_growth_is_held_against_the_disk_whatever_the_zip_says(tmp_path, bounds):
    path = zipped(folder(tmp_path / "SMALL", {"graph_indicator": "1\n" * 1_000_000}), tmp_path / "SMALL.zip")
    with zipfile.ZipFile(path) as archive:
        told = archive.getinfo("SMALL_graph_indicator.txt")
    sizes, lies = (struct.pack("<II", packed, told.file_size) for packed in (told.compress_size, 1_900_000))
    path.write_bytes(path.read_bytes().replace(sizes, lies))
    with pytest.raises(InputError, match="expand to over 2,000,000"):
        read_tu(path)


def test_a_bomb_in_a_bomb_is_refused(tmp_path, bounds):
    """Each alone grows little enough."""
    text = "".join(f"{i * i % 997}\n" for i in range(500)).encode() * 200
    packed = gzip.compress(text, mtime=0)
    path = tmp_path / "twice.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.csv.gz", packed)
    assert len(text) < 150 * len(packed)
    assert len(packed) < 150 * path.stat().st_size
    with pytest.raises(InputError, match="expand to over"):
        list(Archive(path).read_blocks("x.csv.gz"))


@pytest.mark.parametrize(
    ("name", "line", "read"),
    [
        ("g.jsonl.gz", b'{"nodes": 1}\n', read_jsonl),
        ("m.csv.gz", b"smiles\n", read_table),
        ("train.csv.gz", b"0\n", lambda path: read_split(path.parent, 3)),
    ],
)
def test_a_gzip_bomb_is_refused(tmp_path, bounds, name, line, read):
    (tmp_path / name).write_bytes(gzip.compress(line * 100_000))
    with pytest.raises(InputError, match=rf"{name}: [\d,]+ bytes expand to over"):
        read(tmp_path / name)


def test_sizes_are_bounded_and_the_bound_can_be_raised(tmp_path, monkeypatch):
    path = folder(tmp_path / "SMALL")
    size = len(SMALL["graph_indicator"])
    monkeypatch.setenv("MNAGT_LARGEST_FILE", str(size - 1))
    with pytest.raises(InputError, match=rf"{size} bytes, and up to {size - 1} are read; .* MNAGT_LARGEST_FILE"):
        read_tu(path)
    monkeypatch.setenv("MNAGT_LARGEST_FILE", "1000")
    assert len(read_tu(path)) == 4
    monkeypatch.setenv("MNAGT_LARGEST_FILE", "1 GB")
    with pytest.raises(InputError, match="MNAGT_LARGEST_FILE: expected a number of bytes, got '1 GB'"):
        read_tu(path)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "g.jsonl")
    with pytest.raises(InputError, match="not a file"):
        read_jsonl(tmp_path / "g.jsonl")
