"""Every kind of split: the same molecule is in one part, seeds count, and what was used is said."""

import csv
import gzip
import logging
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

from mnagt import RunConfig, SplitConfig, evaluate, load_dataset
from mnagt.cli import main
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.fingerprint_splits import butina_clusters, kennard_stone_order, kmeans_clusters, morgan_bits
from mnagt.data.readers.smiles import find_scaffolds, get_smiles
from mnagt.data.readers.split_columns import SplitColumn
from mnagt.data.splits import PARTS, Split, group_folds
from mnagt.data.table_config import TableConfig
from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger, trial_key
from mnagt.runs.folder import load_run_split
from mnagt.runs.split import (
    SPLITS,
    choose_split,
    describe_absent_classes,
    describe_split,
    make_split,
    resolve_split_kind,
)
from mnagt.tasks import Mixed, MultiLabel, Regression, SingleLabel

pytest.importorskip("rdkit")

GIVEN = ("official", "files")
"""Kinds whose parts are given, not computed."""
RINGS = [
    "c1ccccc1",
    "C1CCCCC1",
    "c1ccncc1",
    "C1CCNCC1",
    "c1ccoc1",
    "C1CC1",
    "C1CCC1",
    "c1ccsc1",
    "C1CCOC1",
    "C1CCSC1",
]
MOLECULES = [ring + "C" * n for ring in RINGS for n in (1, 2, 3)]
COPIES = {0: "Cc1ccccc1.Cl", 4: "C(C)C1CCCCC1", 9: "CC1CCCNC1.OS(=O)(=O)c1ccc(C)cc1"}
"""Other SMILES of some of them, by index: a salt, another spelling, a salt with a ring."""


def write_table(path: Path, rows: list[list[str]], head: list[str]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> PackedDataset:
    """30 molecules, three of them twice, with a class, a group and a date each."""
    smiles = [*MOLECULES, *COPIES.values()]
    rows = [[each, "ab"[i % 2], str(i % 11), f"20{i:02}-01-31"] for i, each in enumerate(smiles)]
    path = write_table(tmp_path_factory.mktemp("tables") / "copies.csv", rows, ["smiles", "y", "group", "date"])
    grouped = load_dataset(path, targets=["y"], group="group")
    return grouped


def is_in_one_part(split: Split, dataset: PackedDataset) -> bool:
    part = {graph: name for name in PARTS for graph in getattr(split, name).tolist()}
    assert dataset.same_as is not None
    molecules = [(int(dataset.same_as[graph]), name) for graph, name in part.items()]
    return len(set(molecules)) == len({first for first, _ in molecules})


def test_every_kind_is_in_the_table():
    kinds = get_args(get_type_hints(SplitConfig)["kind"])
    assert set(kinds) == {"auto", *SPLITS}


@pytest.mark.parametrize("kind", [kind for kind in ("auto", *SPLITS) if kind not in GIVEN])
def test_a_molecule_is_in_one_part_of_every_split(kind, copies):
    assert copies.same_as.tolist()[30:] == list(COPIES)
    for seed in range(3):
        split = make_split(SplitConfig(kind, seed=seed, folds=5), copies)
        assert sorted(graph for name in PARTS for graph in getattr(split, name).tolist()) == list(range(33))
        assert is_in_one_part(split, copies)
        assert make_split(SplitConfig(kind, seed=seed, folds=5), copies).to_dict() == split.to_dict()


@pytest.mark.parametrize("kind", ["scaffold", "random-scaffold", "scaffold-folds"])
def test_a_scaffold_is_in_one_part(kind, copies):
    scaffolds = find_scaffolds(get_smiles(copies))
    first = [scaffolds[graph] for graph in copies.same_as.tolist()]
    for fold in range(5 if kind == "scaffold-folds" else 1):
        part = make_split(SplitConfig(kind, folds=5, fold=fold), copies).to_parts(33).tolist()
        assert len({*zip(first, part, strict=True)}) == len({*first}) > 5


def test_seeds_draw_scaffolds_and_folds_of_them(copies):
    for kind in ("random-scaffold", "scaffold-folds"):
        tested = {tuple(make_split(SplitConfig(kind, seed=seed, folds=5), copies).test.tolist()) for seed in range(5)}
        assert len(tested) > 1
    assert choose_split(SplitConfig("scaffold-folds", folds=5, fold=1), copies).name == "scaffold-folds, fold 1 of 5"


def test_folds_are_of_similar_size_and_need_as_many_groups():
    groups = torch.tensor([0] * 7 + [2] * 5 + [5] * 4 + [1, 3, 4, 4])
    folds = group_folds(groups, 4, seed=0)
    assert sorted(len(split.test) for split in folds) == [4, 4, 5, 7]
    assert sorted(torch.cat([split.test for split in folds]).tolist()) == list(range(20))
    assert all(split.valid.tolist() == folds[(i + 1) % 4].test.tolist() for i, split in enumerate(folds))
    with pytest.raises(InputError, match="the number of groups, 6, got 7"):
        group_folds(groups, 7, seed=0)


def test_groups_that_share_a_molecule_stay_together(copies):
    split = make_split(SplitConfig("group", seed=1), copies)
    part = {graph: name for name in PARTS for graph in getattr(split, name).tolist()}
    assert all(part[graph] == part[graph % 11] for graph in range(33))


def test_without_duplicates_the_random_split_is_as_it_was(copies):
    alone = replace(copies, same_as=torch.arange(33))
    searched = make_split(SplitConfig("random", seed=5), alone)
    assert searched.to_dict() == make_split(SplitConfig("random", seed=5), replace(copies, same_as=None)).to_dict()


def test_molecules_are_split_by_scaffold_by_default_and_others_at_random(copies):
    named = choose_split(SplitConfig(), copies)
    assert named.name == "scaffold (the default for molecules)"
    assert named.split.to_dict() == make_split(SplitConfig("scaffold"), copies).to_dict()
    chains = replace(copies.select(torch.arange(30)), texts=torch.tensor(list("\n".join("C" * 30).encode())).byte())
    assert choose_split(SplitConfig(), chains).name.startswith("random (the molecules have too few scaffolds")
    assert choose_split(SplitConfig(), load_dataset("MUTAG")).name == "random (the default)"


def test_the_ledger_tells_tables_of_0_1_from_those_of_today(tmp_path):
    today = RunConfig("my.csv")
    assert resolve_split_kind(today).split.kind == "scaffold"
    record = '{"config": {"dataset": "my.csv", "split": {"kind": "auto"}}, "result": {"test": {"accuracy": 1.0}}}\n'
    (tmp_path / "old.jsonl").write_text(record)
    assert list(Ledger(tmp_path / "old.jsonl").by_key()) == [trial_key(replace(today, split=SplitConfig("random")))]


# Given splits


def test_a_column_that_is_the_split(tmp_path, caplog):
    names = ["Train"] * 10 + [" val "] * 3 + ["TEST", "testing"] + [""] + ["training"] * 14
    path = write_table(
        tmp_path / "my.csv", [[*row] for row in zip(MOLECULES, "ab" * 15, names, strict=True)], ["smiles", "y", "Set"]
    )
    with caplog.at_level(logging.WARNING):
        load_dataset(path)
    assert "column 'Set' holds the parts of a split and is not used; use it: --split-column Set" in caplog.text
    caplog.clear()
    dataset = load_dataset(path, group=SplitColumn("Set", "parts"))
    assert "not used" not in caplog.text
    assert "1 rows have no Set and are in no part of the split" in caplog.text
    named = choose_split(SplitConfig(column="Set"), dataset)
    assert named.name == "given by column Set"
    assert (named.split.valid.tolist(), named.split.test.tolist()) == ([10, 11, 12], [13, 14])
    with pytest.raises(InputError, match=r"'Set' holds the parts of a split .*leave out --split: --split-column Set"):
        load_dataset(path, group="Set")


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (["train", "test", "tes"], "line 4, column 'part': 'tes' is no part of a split"),
        (["train", "valid", "dev"], r"column 'part' has no row for test \(test, testing, tst\)"),
    ],
)
def test_a_column_that_is_no_split_is_refused(tmp_path, parts, told):
    path = write_table(
        tmp_path / "my.csv", [list(row) for row in zip("CNO", "010", parts, strict=True)], ["smiles", "y", "part"]
    )
    with pytest.raises(InputError, match=told):
        load_dataset(path, targets=["y"], group=SplitColumn("part", "parts"))


def test_index_files_that_share_a_molecule_leave_it_in_the_last_part(copies, tmp_path, caplog):
    for name, graphs in {"train": range(28), "valid": range(28, 30), "test": range(30, 33)}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(map(str, graphs)))
    split = make_split(SplitConfig("files", folder=str(tmp_path)), copies)
    assert is_in_one_part(split, copies)
    assert [len(part) for part in (split.train, split.valid, split.test)] == [25, 2, 3]
    shared = "share 3 molecules: graphs 0 and 30 (c1ccccc1C); graphs 4 and 31 (C1CCCCC1CC); graphs 9 and 32"
    assert shared in caplog.text
    assert "3 rows of them left out of training or validation" in caplog.text


def test_the_description_names_split_sizes_classes_and_duplicates(copies):
    lines = describe_split(choose_split(SplitConfig("group"), copies), copies).splitlines()
    assert lines[0] == "copies: split group"
    assert lines[1].startswith("  train  ")
    assert "a: " in lines[1]
    assert lines[-1] == "  duplicates: 3 molecules in 6 rows, 2 with different targets"


# Sizes, times, files, clusters


def test_parts_have_the_sizes_that_are_asked_for(copies):
    for kind in ("random", "scaffold", "kennard-stone"):
        split = make_split(SplitConfig(kind, sizes=(6, 2, 2)), copies)
        assert [len(part) for part in (split.train, split.valid, split.test)] == pytest.approx([20, 6.5, 6.5], abs=3.1)
    with pytest.raises(InputError, match=r"split.sizes are three shares above 0"):
        SplitConfig("random", sizes=(0.5, 0.5))
    with pytest.raises(InputError, match=r"split.sizes is for a split of kind 'random', and this one is 'stratified'"):
        SplitConfig("stratified", sizes=(0.5, 0.25, 0.25))


def test_the_last_in_time_are_tested(tmp_path):
    rows = [[smiles, str(i % 2), f"{2029 - i}-05-31"] for i, smiles in enumerate(MOLECULES)]
    path = write_table(tmp_path / "my.csv", rows, ["smiles", "y", "date"])
    dataset = load_dataset(path, targets=["y"], group=SplitColumn("date", "times"))
    split = make_split(SplitConfig("time", column="date"), dataset)
    assert (split.test.tolist(), split.valid.tolist()) == ([0, 1, 2], [3, 4, 5])
    rows[6][2] = "31.5.2020"
    with pytest.raises(InputError, match=r"line 8, column 'date': '31.5.2020' is neither a date \(2024-05-31\) nor"):
        load_dataset(
            write_table(path, rows, ["smiles", "y", "date"]), targets=["y"], group=SplitColumn("date", "times")
        )


def test_clusters_hold_similar_molecules():
    bits = morgan_bits([*("C" * n for n in range(6, 12)), *("c1ccccc1" + "O" * n for n in range(1, 3)), "N#N"])
    clusters = butina_clusters(bits, 0.5).tolist()
    assert len(set(clusters[:6])) == 1
    assert clusters[-1] not in clusters[:-1]
    assert set(kmeans_clusters(bits, 3, seed=0).tolist()) == {0, 1, 2}
    order = kennard_stone_order(bits).tolist()
    assert sorted(order) == list(range(9))
    assert order[-1] in range(6)  # chains are alike: the last adds the least
    distances = ((bits[:, None] - bits[None]) ** 2).sum(-1)
    for i in range(2, 9):  # each is the farthest from those before it
        nearest = distances[order[i:]][:, order[:i]].min(axis=1)
        assert nearest[0] == nearest.max()


# Real tables


@pytest.fixture(scope="module")
def bbbp(data_root) -> list[list[str]]:
    """Rows of the table of ogbg-molbbbp, its header first: label, SMILES, name."""
    with gzip.open(data_root / "ogbg_molbbbp" / "mapping" / "mol.csv.gz", "rt") as file:
        return list(csv.reader(file))


@pytest.mark.real_data
def test_duplicates_of_a_real_table_are_found_and_resolved(bbbp, tmp_path, caplog):
    head, *rows = bbbp
    path = write_table(tmp_path / "bbbp.csv", rows[:600], head)
    dataset = load_dataset(path)
    assert "molecules found more than once" in caplog.text
    assert "lines 2 and 378 ([Cl].CC(C)NCC(O)COc1cccc2ccccc12)" in caplog.text  # propranolol and its salt: 1 and 0
    for kind in ("random", "scaffold", "stratified"):
        assert is_in_one_part(make_split(SplitConfig(kind), dataset), dataset)
    sizes = {how: len(load_dataset(path, options=TableConfig(how))) for how in ("keep", "average", "drop")}
    assert dataset.same_as is not None
    copies = torch.bincount(dataset.same_as, minlength=600)
    assert sizes["keep"] == 600
    assert sizes["drop"] == sizes["average"] == int((copies > 0).sum()) - 2  # ties of a pair have no majority
    with pytest.raises(InputError, match="lines 2 and 378 "):
        load_dataset(path, options=TableConfig("error"))


@pytest.mark.real_data
def test_the_command_line_reports_a_real_split_column(bbbp, tmp_path, caplog):
    head, *rows = bbbp
    parts = ["train", "dev", "Test", *["train"] * 5] * 75
    marked = [[*row, part] for row, part in zip(rows, parts, strict=False)]
    path = write_table(tmp_path / "bbbp.csv", marked, [*head, "Split"])
    words = ["--model", "gin", "--dim", "8", "--depth", "1", "--epochs", "1", "--device", "cpu"]
    with caplog.at_level(logging.INFO):
        assert main(["train", str(path), "--split-column", "Split", "--out", str(tmp_path / "run"), *words]) == 0
    assert "bbbp: split given by column Split" in caplog.text
    assert "  train  4" in caplog.text
    assert "rows of them left out of training or validation, so that no tested molecule is trained on" in caplog.text
    dataset, split = load_run_split(tmp_path / "run")
    assert is_in_one_part(split, dataset)
    assert len(split.train) < 450
    assert len(split.test) == 75
    assert main(["train", str(path), "--split", "group", "--split-column", "Split", *words]) == 2


@pytest.mark.real_data
def test_parts_from_files(bbbp, tmp_path, caplog):
    _, *rows = bbbp
    sides = {"train": rows[:60], "valid": rows[60:75], "test": [*rows[75:90], rows[3]]}
    paths = {part: write_table(tmp_path / f"{part}.csv", some, ["y", "smiles", "id"]) for part, some in sides.items()}
    write_table(paths["test"], [[row[1], row[0]] for row in sides["test"]], ["smiles", "y"])  # other columns, no id
    options = TableConfig(valid=str(paths["valid"]), test=str(paths["test"]))
    dataset = load_dataset(paths["train"], options=options)
    assert "two parts of the given split share 1 molecule: lines 5 of train.csv and 17 of test.csv" in caplog.text
    named = choose_split(SplitConfig(), dataset)
    assert named.name == "given by files"
    assert [len(part) for part in (named.split.train, named.split.valid, named.split.test)] == [59, 15, 16]
    averaged = load_dataset(paths["train"], options=replace(options, duplicates="average"))
    assert averaged.official is not None
    assert (len(averaged), averaged.official[3]) == (90, PARTS.index("test")), "one row, and the test part has it"
    without = load_dataset(paths["train"], options=replace(options, valid=None))
    named = choose_split(SplitConfig(), without)
    assert named.name == "given by files, validation part taken from training"
    assert named.split.test.tolist() == list(range(60, 76))
    assert 4 <= len(named.split.valid) <= 9
    with pytest.raises(InputError, match=r"lines 5 of train.csv and 17 of test.csv"):
        load_dataset(paths["train"], options=replace(options, duplicates="error"))
    with pytest.raises(InputError, match="leave out --split random"):
        RunConfig(str(paths["train"]), split=SplitConfig("random"), table=options)
    write_table(paths["test"], [["C", "1"]], ["smiles", "z"])
    with pytest.raises(InputError, match=r"test.csv: no column 'y', which .*train.csv has; there are: smiles, z"):
        load_dataset(paths["train"], options=options)


@pytest.mark.real_data
def test_a_run_on_files_can_be_evaluated_and_says_no_paths(bbbp, tmp_path, monkeypatch):
    _, *rows = bbbp
    monkeypatch.chdir(tmp_path)
    for part, some in {"train": rows[:60], "test": rows[60:90]}.items():
        write_table(Path(f"{part}.csv"), some, ["y", "smiles", "id"])
    words = ["--model", "gin", "--dim", "8", "--depth", "1", "--epochs", "1", "--device", "cpu", "--out", "run"]
    assert main(["train", "train.csv", "--test", "test.csv", *words]) == 0
    monkeypatch.chdir(tmp_path.parent)
    assert evaluate(tmp_path / "run", device="cpu")["graphs"] == 30
    assert str(tmp_path) not in (tmp_path / "run" / "config.json").read_text()


def test_a_part_without_a_class_is_named():
    mutag = load_dataset("MUTAG")
    order = mutag.targets.argsort()  # the first 63 are of class -1
    split = Split(order[:50], order[50:100], order[100:])
    lines = describe_absent_classes(split, mutag)
    assert [line.split(", so ")[0] for line in lines] == [
        "MUTAG: the training part has no graph of class 1",
        "MUTAG: the test part has no graph of class -1",
    ]
    assert "no model can learn it; choose another split, such as --split stratified" in lines[0]
    assert describe_absent_classes(make_split(SplitConfig("random"), mutag), mutag) == []


def test_labels_that_a_part_lacks_and_few_of_a_class_are_named():
    targets = torch.tensor([[1.0, torch.nan], [0, 1], [0, 0], [1, 1], [0, 0], [1, torch.nan]]).repeat(10, 1)
    dataset = replace(load_dataset("MUTAG").select(torch.arange(60)), task=MultiLabel(("a", "b")), targets=targets)
    lines = describe_absent_classes(Split(torch.arange(6, 60), torch.tensor([2, 4]), torch.tensor([0, 1, 5])), dataset)
    assert lines == [
        "MUTAG: the validation part has no graph of class 1 of a, 1 of b, so scores on it say little or leave it out; "
        "choose another split, such as --split stratified",
        "MUTAG: the test part has no graph of class 0 of b, so scores on it say little or leave it out; choose another "
        "split, such as --split stratified",
        "MUTAG: the test part has few graphs of class 0 of a (1), 1 of a (2), 1 of b (1): scores on it are less "
        "certain than their intervals say",
    ]
    constant = replace(dataset, targets=torch.tensor([[1.0, 1], [0, 1]]).repeat(30, 1))
    line, *_ = describe_absent_classes(make_split(SplitConfig("random"), constant), constant)
    assert line == "MUTAG: no graph is of class 0 of b: nothing is learned there, and scores leave it out"
    mixed = replace(dataset, task=Mixed(("a", "b"), (MultiLabel(("a",)), Regression(("b",)))))
    assert mixed.task.count_classes(targets) == {"0 of a": 30, "1 of a": 30}


def test_averages_of_copies():
    task, group = SingleLabel(("a", "b")), torch.tensor([0, 1, 0, 0, 1, 2])
    assert task.merge_targets(torch.tensor([1, 0, 0, 1, 1, -100]), group).tolist() == [1, -100, -100]
