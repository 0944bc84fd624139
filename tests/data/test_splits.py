import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import generator

from mnagt.data.splits import (
    PARTS,
    Split,
    TrainValidSplit,
    official_split,
    ordered_group_split,
    random_group_split,
    random_split,
    read_split,
    stratified_folds,
)
from mnagt.errors import InputError


def parts(split: Split) -> list[list[int]]:
    return [getattr(split, name).tolist() for name in PARTS]


@given(st.integers(10, 200), st.integers(0, 2**16))
def test_a_random_split_deals_out_every_graph_in_its_shares(graphs, seed):
    split = random_split(graphs, seed)
    assert sorted(g for part in parts(split) for g in part) == list(range(graphs))
    assert [len(part) for part in parts(split)[1:]] == [round(graphs / 10)] * 2


def test_shares_need_not_add_up_to_one():
    assert [len(part) for part in parts(random_split(60, 0, (3, 2, 1)))] == [30, 20, 10]
    groups = torch.arange(100) // 5
    assert parts(random_group_split(groups, 0, (5, 3, 2))) == parts(random_group_split(groups, 0, (0.5, 0.3, 0.2)))


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


def test_a_negative_index_is_refused():
    for part in range(3):
        indices = [torch.tensor([2 * p, 2 * p + 1]) for p in range(3)]
        indices[part][1] = -1
        with pytest.raises(InputError, match="the split has graph -1; graphs count from 0"):
            Split(*indices)
    with pytest.raises(InputError, match="graph -3"):
        Split.from_dict({"train": [0], "valid": [1], "test": [-3]})


def test_an_empty_part_is_refused():
    for part, name in enumerate(PARTS):
        indices = [torch.tensor([p]) for p in range(3)]
        indices[part] = indices[part][:0]
        with pytest.raises(InputError, match=f"the split's {name} part is empty; 2 graphs"):
            Split(*indices)


def test_training_and_validation_may_overlap_where_nothing_is_tested():
    split = TrainValidSplit(torch.tensor([1, 0]), torch.tensor([0]), torch.tensor([], dtype=torch.long))
    assert parts(split) == [[1, 0], [0], []]
    again = TrainValidSplit.from_dict(split.to_dict())
    assert parts(again) == parts(split)
    assert again.test.dtype == torch.long


def test_validation_is_the_fold_after_that_of_the_test():
    splits = stratified_folds(torch.arange(20) % 2, 4, 0)
    for i, split in enumerate(splits):
        assert split.valid.tolist() == splits[(i + 1) % 4].test.tolist()


def test_three_folds_and_as_many_as_graphs_are_allowed():
    labels = torch.zeros(7, dtype=torch.long)
    assert len(stratified_folds(labels, 3, 0)) == 3
    assert [len(split.test) for split in stratified_folds(labels, 7, 0)] == [1] * 7


def test_the_largest_groups_train_and_the_rarest_test():
    groups = ["a"] * 5 + ["b"] * 3 + ["c", "d"]
    split = ordered_group_split(groups, (0.8, 0.1, 0.1))
    assert parts(split) == [[0, 1, 2, 3, 4, 5, 6, 7], [9], [8]]


def test_each_part_takes_groups_up_to_its_own_share():
    groups = "aaaaaaaabbbbcccdddef"
    assert parts(ordered_group_split(groups, (6, 3, 1))) == [[*range(12)], [*range(12, 18)], [18, 19]]


def test_of_equal_groups_the_one_that_begins_last_goes_first():
    assert parts(ordered_group_split(["a", "b", "c"], (1, 1, 1))) == [[2], [1], [0]]


@given(st.lists(st.integers(0, 9), min_size=30, max_size=60), st.integers(0, 99))
def test_groups_stay_together(groups, seed):
    groups = [*range(10), *groups]
    split = random_group_split(torch.tensor(groups), seed)
    assert sorted(g for part in parts(split) for g in part) == list(range(len(groups)))
    assert sum(len({groups[g] for g in part}) for part in parts(split)) == 10


def test_a_random_group_split_follows_seed_and_shares():
    groups = torch.arange(100) // 5
    first, again, other = (parts(random_group_split(groups, seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert [len(part) for part in first] == [80, 10, 10]
    assert [len(part) for part in parts(random_group_split(groups, 0, (0.5, 0.3, 0.2)))] == [50, 30, 20]


def test_the_smallest_group_is_taken_where_none_fits_its_share():
    groups = torch.tensor([0] * 10 + [1] * 6 + [2] * 4)
    for seed in range(5):
        assert [len(part) for part in parts(random_group_split(groups, seed))] == [10, 6, 4]


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
    assert parts(read_split(tmp_path, graphs=4)) == [[0, 3], [2], [1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\nx\n", "train.csv, line 2: 'x' is not a number"),
        ("0\n\n3\n", "line 2: the line is empty"),
        ("0\n4\n", "line 2: graph is 4; it may be 0 to 3"),
        ("0\n-1\n", "line 2: graph is -1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, message):
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_split(tmp_path, graphs=4)


def test_a_missing_part_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no train\.csv\.gz, train\.csv or train\.txt"):
        read_split(tmp_path, graphs=4)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08cut short", "schön".encode("latin-1")])
def test_an_index_file_that_cannot_be_read_is_named(tmp_path, content):
    suffix = ".csv.gz" if content.startswith(b"\x1f") else ".csv"
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}{suffix}").write_bytes(content)
    with pytest.raises(InputError, match=r"train\.csv.*: (not a readable gzip file|'sch.*' is not a number)"):
        read_split(tmp_path, 5)
