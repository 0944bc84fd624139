import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import generator

from mnagt.data.splits import PARTS, Split, official_split, random_split, split_from_files, stratified_folds
from mnagt.errors import InputError


def parts(split: Split) -> list[list[int]]:
    return [getattr(split, name).tolist() for name in PARTS]


@given(st.integers(10, 200), st.integers(0, 2**16))
def test_a_random_split_deals_out_every_graph_in_its_shares(graphs, seed):
    split = random_split(graphs, seed)
    assert sorted(g for part in parts(split) for g in part) == list(range(graphs))
    assert [len(part) for part in parts(split)[1:]] == [round(graphs / 10)] * 2


def test_shares_need_not_add_up_to_one():
    assert [len(part) for part in parts(random_split(50, 0, (3, 1, 1)))] == [30, 10, 10]


def test_a_random_split_follows_its_seed_and_nothing_else():
    first = parts(random_split(50, 0))
    torch.rand(3)
    assert parts(random_split(50, 0)) == first
    assert parts(random_split(50, 1)) != first


def test_too_few_graphs_are_refused():
    with pytest.raises(InputError, match="valid part is empty"):
        random_split(3, 0)


@given(st.integers(3, 7), st.integers(0, 99))
def test_every_graph_tests_once_and_validates_once(folds, seed):
    labels = torch.randint(0, 3, (31,), generator=generator(seed))
    splits = stratified_folds(labels, folds, seed)
    assert len(splits) == folds
    for name in ("valid", "test"):
        assert sorted(g for split in splits for g in getattr(split, name).tolist()) == list(range(31))
    for split in splits:
        assert sorted(g for part in parts(split) for g in part) == list(range(31))


@given(st.integers(3, 7), st.integers(0, 99))
def test_folds_hold_the_classes_in_proportion(folds, seed):
    labels = torch.randint(0, 3, (53,), generator=generator(seed))
    for split in stratified_folds(labels, folds, seed):
        expected = torch.bincount(labels, minlength=3) / folds
        assert (torch.bincount(labels[split.test], minlength=3) - expected).abs().max() < 1


def test_folds_follow_their_seed():
    labels = torch.arange(30) % 2
    first, again, other = (parts(stratified_folds(labels, 5, seed)[0]) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("folds", [2, 8])
def test_folds_must_fit_the_graphs(folds):
    with pytest.raises(InputError, match=f"between 3 .* and 7, got {folds}"):
        stratified_folds(torch.zeros(7, dtype=torch.long), folds, 0)


def test_a_graph_in_two_parts_is_refused():
    with pytest.raises(InputError, match="twice in the split"):
        Split(torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([1]))


def test_parts_come_sorted_and_survive_a_dictionary():
    split = Split(torch.tensor([4, 0]), torch.tensor([2]), torch.tensor([3, 1]))
    assert parts(split) == [[0, 4], [2], [1, 3]]
    assert parts(Split.from_dict(split.to_dict())) == parts(split)


def test_a_data_set_may_bring_its_split():
    split = official_split(torch.tensor([2, 0, -1, 1, 0], dtype=torch.int8))
    assert parts(split) == [[1, 4], [3], [0]]


def test_splits_are_read_from_files(tmp_path):
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(b"3\n0\n"))
    (tmp_path / "valid.csv").write_text("2\n\n")
    (tmp_path / "test.txt").write_text("1\n")
    assert parts(split_from_files(tmp_path, graphs=4)) == [[0, 3], [2], [1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [("0\nx\n", "train.csv, line 2: 'x' is not a graph index"), ("0\n\n9\n", "line 3: graph 9 does not exist")],
)
def test_a_bad_line_is_named(tmp_path, text, message):
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        split_from_files(tmp_path, graphs=4)


def test_a_missing_part_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no train\.csv\.gz, train\.csv or train\.txt"):
        split_from_files(tmp_path, graphs=4)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08cut short", "schön".encode("latin-1")])
def test_an_index_file_that_cannot_be_read_is_named(tmp_path, content):
    suffix = ".csv.gz" if content.startswith(b"\x1f") else ".csv"
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}{suffix}").write_bytes(content)
    with pytest.raises(InputError, match=r"train\.csv.*: (cannot be read|not a readable gzip file)"):
        split_from_files(tmp_path, 5)
