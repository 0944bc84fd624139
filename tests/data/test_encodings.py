"""Encodings of a whole data set, and their cache on disk."""

from pathlib import Path

import pytest
import torch

from mnagt.data import encodings
from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.graphs.encodings import ENCODINGS


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MNAGT_CACHE", str(tmp_path))
    monkeypatch.setattr(encodings, "_LONG", 0.0)
    return tmp_path / "encodings"


def compute(dataset: PackedDataset, name: str = "random-walk", size: int = 5) -> torch.Tensor:
    dataset.encoding_cache.clear()
    return with_encodings(dataset, {name: size}).encodings[name]


def refuse(*_: object) -> torch.Tensor:
    raise AssertionError("computed again")


def test_encodings_of_edges_are_read_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load_dataset("MUTAG")
    expected = ENCODINGS["random-walk"](dataset.batch(torch.arange(len(dataset))), 5)
    torch.testing.assert_close(compute(dataset), expected)
    monkeypatch.setitem(ENCODINGS, "random-walk", refuse)
    torch.testing.assert_close(compute(dataset), expected)
    with pytest.raises(AssertionError):  # another size is another encoding
        compute(dataset, size=6)
    with pytest.raises(AssertionError):  # and so are other graphs
        compute(dataset.select(torch.arange(50)))


def test_a_damaged_file_is_computed_again(cache: Path) -> None:
    dataset = load_dataset("MUTAG")
    expected = compute(dataset)
    (path,) = cache.iterdir()
    content = bytearray(path.read_bytes())
    content[-3] ^= 64
    path.write_bytes(content)
    assert torch.equal(compute(dataset), expected)
    path.write_bytes(content[:100])
    assert torch.equal(compute(dataset), expected)


def test_colours_are_not_cached_for_they_depend_on_labels(cache: Path) -> None:
    compute(load_dataset("MUTAG"), "wl-colours", 2)
    assert not cache.exists()


def test_without_a_folder_to_write_to_there_is_no_cache(cache: Path) -> None:
    cache.write_text("a file in place of the folder")
    assert len(compute(load_dataset("MUTAG"))) == 3371
