import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data.tu_files import folder
from safetensors.torch import save_file

from mnagt.data.cache import cache_root, load_or_build, load_packed, save_packed
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.tu import read_tu
from mnagt.errors import InputError
from mnagt.tasks import MultiLabel, Regression, SingleLabel, task_from_dict, task_to_dict


@pytest.fixture
def dataset(tmp_path: Path) -> PackedDataset:
    small = read_tu(folder(tmp_path / "SMALL"))
    return replace(small, encodings={"walk": torch.randn(8, 3)})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MNAGT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def assert_same(one: PackedDataset, other: PackedDataset) -> None:
    for name, value in vars(other).items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(getattr(one, name), value, rtol=0, atol=0)
    torch.testing.assert_close(dict(one.encodings), dict(other.encodings), rtol=0, atol=0)
    for name in ("name", "task", "is_symmetric", "label_counts", "vocabularies"):
        assert getattr(one, name) == getattr(other, name)


def never() -> PackedDataset:
    pytest.fail("the data set was read again")


def test_what_is_saved_is_loaded(dataset, tmp_path):
    save_packed(dataset, tmp_path / "one.safetensors")
    assert_same(load_packed(tmp_path / "one.safetensors"), dataset)


def test_missing_columns_stay_missing(tmp_path):
    bare = read_tu(folder(tmp_path / "bare", without=("edge_labels", "edge_attributes", "node_attributes")))
    save_packed(bare, tmp_path / "one.safetensors")
    loaded = load_packed(tmp_path / "one.safetensors")
    assert loaded.edge_labels is None
    assert loaded.node_values is None


@pytest.mark.parametrize(
    "task",
    [SingleLabel(("a", "b")), MultiLabel(("x", "y", "z")), Regression(("r",)), Regression(("r",), (0.1,), (1 / 3,))],
)
def test_tasks_come_back_from_their_dictionaries(task):
    assert task_from_dict(json.loads(json.dumps(task_to_dict(task)))) == task


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"kind": "singel-label"}, "did you mean 'single-label'"),
        ({"kind": "single-label", "classes": ["a", "b"], "colour": "red"}, "task 'single-label': .*colour"),
        ({}, "no task ''"),
    ],
)
def test_a_task_that_is_not_known_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        task_from_dict(content)


def test_a_data_set_is_built_once(dataset, cache):
    assert_same(load_or_build("some", "key", build=lambda: dataset), dataset)
    assert_same(load_or_build("some", "key", build=never), dataset)


def test_the_content_of_the_source_is_the_key(dataset, cache, tmp_path):
    source = tmp_path / "source"
    other = replace(dataset, name="other")
    source.write_text("one")
    load_or_build("reader", source, build=lambda: dataset)
    source.rename(tmp_path / "moved")
    assert load_or_build("reader", tmp_path / "moved", build=never).name == dataset.name
    source.write_text("two")
    assert load_or_build("reader", source, build=lambda: other).name == "other"
    assert load_or_build("new reader", tmp_path / "moved", build=lambda: other).name == "other"


def test_parts_of_a_key_do_not_run_together(dataset, cache):
    load_or_build("ab", "c", build=lambda: dataset)
    assert load_or_build("a", "bc", build=lambda: replace(dataset, name="other")).name == "other"


def test_changing_a_loaded_tensor_leaves_the_file_as_it_was(dataset, cache):
    load_or_build("key", build=lambda: dataset)
    load_or_build("key", build=never).source.zero_()
    assert_same(load_or_build("key", build=never), dataset)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_built_again(dataset, cache, caplog, keep):
    load_or_build("key", build=lambda: dataset)
    (path,) = cache.rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    assert_same(load_or_build("key", build=lambda: dataset), dataset)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert_same(load_or_build("key", build=never), dataset)


def test_a_flipped_bit_is_noticed(dataset, cache, caplog):
    load_or_build("key", build=lambda: dataset)
    (path,) = cache.rglob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert_same(load_or_build("key", build=lambda: dataset), dataset)
    assert "is damaged; reading the source again" in caplog.text


def test_other_safetensors_files_are_refused(tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="not a packed data set"):
        load_packed(tmp_path / "model.safetensors")


def test_without_a_writable_cache_there_is_a_warning_and_a_data_set(dataset, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MNAGT_CACHE", str(tmp_path / "file"))
    assert load_or_build("key", build=lambda: dataset) is dataset
    assert "continuing without a cache" in caplog.text


def test_a_source_that_cannot_be_read_is_said(cache, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_or_build(tmp_path / "nothing", build=never)


def test_the_cache_is_in_the_home_folder_unless_told(monkeypatch):
    monkeypatch.delenv("MNAGT_CACHE")
    assert cache_root() == Path.home() / ".cache" / "mnagt"
