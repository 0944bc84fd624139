import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from data.ogb_files import CODE, MOLECULES, folder, zipped

import mnagt.data.archives as archives
import mnagt.data.readers.ogb as ogb
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.ogb import ATOMS, BONDS, DEEPEST, EDGE_KINDS, Links, pack_links, read_ogb
from mnagt.data.registry import load_dataset
from mnagt.errors import InputError
from mnagt.inference.predict import evaluate
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.split import make_split, resolve_split_kind
from mnagt.tasks import MultiLabel, Regression, SubTokens, Unlabelled, word_key
from mnagt.training.run import train


@pytest.fixture
def molecules(tmp_path: Path) -> PackedDataset:
    return read_ogb(folder(tmp_path / "small"))


@pytest.fixture
def code(tmp_path: Path) -> PackedDataset:
    return read_ogb(folder(tmp_path / "code", CODE))


def edges(dataset: PackedDataset, graph: int) -> list[tuple[int, ...]]:
    """(source, destination, labels...) of a graph's edges."""
    batch = dataset.batch(torch.tensor([graph]))
    assert batch.edge_labels is not None
    return [
        (*ends, *labels) for ends, labels in zip(batch.edge_index.T.tolist(), batch.edge_labels.tolist(), strict=True)
    ]


def assert_same(one: PackedDataset, other: PackedDataset) -> None:
    assert (one.task, one.label_counts, one.vocabularies) == (other.task, other.label_counts, other.vocabularies)
    for name in ("node_ptr", "edge_ptr", "source", "in_degree", "targets", "node_labels", "edge_labels", "official"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), equal_nan=True)


def test_bonds_run_both_ways_with_their_labels(molecules):
    assert molecules.sizes.tolist() == [3, 2, 1, 2]
    assert molecules.is_symmetric
    assert edges(molecules, 0) == [(1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (2, 1, 3, 0, 1), (1, 2, 3, 0, 1)]
    assert edges(molecules, 1) == [(1, 0, 1, 5, 0), (0, 1, 1, 5, 0)]
    assert edges(molecules, 2) == edges(molecules, 3) == []


def test_all_categories_of_ogb_count_whether_met_or_not(molecules):
    assert molecules.features.nodes.labels == ATOMS
    assert molecules.features.edges.labels == BONDS
    assert molecules.batch(torch.tensor([1])).node_labels.tolist() == [
        [118, 0, 4, 5, 3, 0, 2, 0, 0],
        [7, 0, 4, 5, 3, 0, 2, 0, 1],
    ]


def test_answers_may_be_missing(molecules):
    assert molecules.task == MultiLabel(("works", "kills"), "rocauc")
    nan = float("nan")
    torch.testing.assert_close(molecules.targets, torch.tensor([[1, nan], [0, 1], [nan, 0], [1, nan]]), equal_nan=True)


def test_the_metric_may_be_given(tmp_path):
    path = folder(tmp_path / "small")
    assert read_ogb(path, metric="ap").task.metric == "ap"
    assert isinstance(read_ogb(path, metric="rmse").task, Regression)


def test_labels_that_are_no_answers_are_numbers(tmp_path):
    dataset = read_ogb(folder(tmp_path / "small", MOLECULES | {"raw/graph-label": "1.5\n-2\nnan\n0\n"}))
    assert dataset.task == Regression(("target_0",))
    assert dataset.targets[:, 0].tolist()[:2] == [1.5, -2.0]


def test_graphs_without_labels_can_be_read(tmp_path):
    assert read_ogb(folder(tmp_path / "small", without=("raw/graph-label",))).task == Unlabelled()


def test_the_split_comes_with_the_data_set(molecules):
    split = make_split(SplitConfig(), molecules)
    assert split.to_dict() == {"train": [0, 3], "valid": [2], "test": [1]}
    assert make_split(SplitConfig("official"), molecules).to_dict() == split.to_dict()


def test_a_data_set_without_a_split_is_split_at_random(tmp_path):
    files = {field: text for field, text in MOLECULES.items() if not field.startswith("split/")}
    dataset = read_ogb(folder(tmp_path / "small", files))
    assert dataset.official is None
    with pytest.raises(InputError, match="small brings no split of its own; split at random"):
        make_split(SplitConfig("official"), dataset)


def test_code_has_four_kinds_of_edges(code):
    kind = {name: i for i, name in enumerate(EDGE_KINDS)}
    child, parent, after, before = (kind[name] for name in ("child", "parent", "next token", "token before"))
    syntax = [(0, 1, child), (1, 0, parent), (1, 2, child), (2, 1, parent), (1, 3, child), (3, 1, parent)]
    tokens = [(1, 2, after), (2, 1, before), (2, 3, after), (3, 2, before)]
    assert sorted(edges(code, 0)) == sorted(syntax + tokens)
    joined = [edge[:2] for edge in edges(code, 3) if edge[2] == after]
    assert sorted(joined) == [(3, 2), (4, 3)], "in depth-first order, not in that of the nodes"
    assert code.is_symmetric


def test_code_has_types_attributes_and_depths(code):
    assert code.features.nodes.labels == (3, 4, DEEPEST + 1)
    assert code.batch(torch.tensor([3])).node_labels.tolist()[-2:] == [[2, 2, 3], [2, 1, DEEPEST]]
    assert code.vocabularies["node_labels/1"] == ("__NONE__", "a,\nb", '"', "x")
    assert code.vocabularies["edge_labels/0"] == EDGE_KINDS


def test_code_asks_for_sub_tokens(code):
    assert code.task == SubTokens(("get", "user", "set", "name", "of", "the", "old", "one"))
    assert code.targets[3].tolist() == [word_key("set"), word_key("user"), *[-100] * 5]


@pytest.mark.parametrize("within", ["", "hiv/"])
def test_a_zip_is_read_like_a_folder(molecules, tmp_path, within):
    assert_same(read_ogb(zipped(tmp_path / "small", tmp_path / "small.zip", within)), molecules)


@pytest.mark.parametrize("place", ["small", "small/raw", "."])
def test_the_folder_may_be_given_from_above_or_below(molecules, tmp_path, place):
    assert_same(read_ogb(tmp_path / place), molecules)


def test_how_much_is_sorted_at_once_does_not_matter(code, tmp_path, monkeypatch):
    monkeypatch.setattr(ogb, "_EDGES_AT_ONCE", 2)
    assert_same(read_ogb(tmp_path / "code"), code)


def test_edges_are_those_of_a_graph_at_a_time():
    random = np.random.default_rng(0)
    sizes, counts = random.integers(1, 7, 31), [random.integers(0, 11, 31) for _ in range(2)]
    links = [
        Links(np.concatenate([random.integers(0, n, (k, 2)) for n, k in zip(sizes, some, strict=True)]), some, i, i + 2)
        for i, some in enumerate(counts)
    ]
    node_labels = np.zeros((sizes.sum(), 1), np.int8)
    dataset = pack_links("any", sizes, node_labels, links, {"edge_labels": (4,)})
    for graph in range(31):
        expected = []
        for some in links:
            first = int(some.counts[:graph].sum())
            for u, v in some.ends[first : first + some.counts[graph]].tolist():
                expected += [(u, v, some.forward), (v, u, some.backward)]
        got = edges(dataset, graph)
        assert sorted(got) == sorted(expected)
        assert [(v, u) for u, v, _ in got] == sorted((v, u) for u, v, _ in got)


def changed(fields: dict[str, str], files: dict[str, str] = MOLECULES) -> Callable[[Path], Path]:
    return lambda path: folder(path, files | fields)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (changed({"raw/num-node-list": "3\n2\n1\n"}), "num-edge-list.*: 4 lines for 3 graphs"),
        (changed({"raw/num-node-list": "3\n2\n1\n3\n"}), "node-feat.*: 8 lines for 9 nodes"),
        (changed({"raw/num-node-list": "3\n5\n0\n0\n"}), "num-node-list.*, line 3: a graph without nodes"),
        (changed({"raw/num-node-list": "3\n2\n-1\n4\n"}), "num-node-list.*, line 3: -1 is below 0"),
        (changed({"raw/num-node-list": "3\n2\n1\n9999999999\n"}), "more than can be counted"),
        (changed({"raw/num-edge-list": "2\n1\n1\n0\n"}), "edge.csv.gz: 3 lines for 4 edges"),
        (changed({"raw/edge": "1,0\n1,3\n0,1\n"}), r"edge.csv.gz, line 2: edge 1,3 .* graph 0 .* nodes 0 to 2"),
        (changed({"raw/edge": "1,0\n1,2\n0,x\n"}), r"edge.csv.gz, line 3: '0,x' is not a number"),
        (changed({"raw/edge-feat": "0,0,0\n3,0,1\n1,6,0\n"}), "edge-feat.*, line 3: column 2 is 6; it may be 0 to 5"),
        (changed({"raw/edge-feat": "0,0\n3,0\n1,1\n"}), "edge-feat.*, line 1: .* has 2 columns, expected 3"),
        (changed({"raw/graph-label": "1,0\n1,1\n"}), "graph-label.*: 2 lines for 4 graphs"),
        (changed({"split/scaffold/test": "4\n"}), "scaffold/test.*, line 1: graph is 4; it may be 0 to 3"),
        (changed({"split/scaffold/test": "0\n"}), "scaffold/train.*: a graph is twice in the split"),
        (changed({"raw/node-feat": "3,0\n" * 13}, CODE), "node-feat.*, line 1: column 1 is 3; it may be 0 to 2"),
        (changed({"raw/node_depth": "0\n" * 12}, CODE), "node_depth.*: 12 lines for 13 nodes"),
        (changed({"raw/node_is_attributed": "2\n" * 13}, CODE), "node_is_attributed.*, line 1: column 1 is 2"),
        (changed({"raw/graph-label": "a\n\nb\nc\n"}, CODE), "graph-label.*, line 2: no sub-tokens"),
        (changed({"mapping/typeidx2type": "type idx,type\n0,a\n2,b\n"}, CODE), "line 3: expected 1 and its word"),
        (lambda path: folder(path, CODE, without=("mapping/attridx2attr",)), "no mapping/attridx2attr.csv.gz inside"),
        (lambda path: folder(path, without=("raw/edge",)), "no raw/edge.csv.gz inside"),
        (lambda path: folder(path, without=("raw/num-node-list",)), "no raw/num-node-list.csv.gz inside"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path, build, message):
    path = build(tmp_path / "small")
    with pytest.raises(InputError, match=message) as refusal:
        read_ogb(path)
    assert str(refusal.value).startswith(str(path))


@pytest.mark.parametrize("label", ["2", "-1", "yes", "0.5", "1_0", "inf"])
def test_labels_other_than_0_1_and_empty_are_refused(tmp_path, label):
    path = folder(tmp_path / "small", MOLECULES | {"raw/graph-label": f"1,0\n0,{label}\n,\n1,1\n"})
    with pytest.raises(InputError, match=rf"graph-label.csv.gz, line 2: .* holds the label '{label}'; labels are 0, 1"):
        read_ogb(path, metric="rocauc")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_zip_cut_short_is_refused(tmp_path, share):
    path = zipped(folder(tmp_path / "small"), tmp_path / "small.zip")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"small.zip: not a readable zip .*; fetch it again"):
        load_dataset(path)


def test_a_file_cut_short_is_named(tmp_path):
    path = folder(tmp_path / "small") / "raw" / "node-feat.csv.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"node-feat.csv.gz: not a readable gzip file .*; fetch it again"):
        read_ogb(tmp_path / "small")


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch):
    path = folder(tmp_path / "small", MOLECULES | {"raw/edge": "0,1\n" * 100_000})
    monkeypatch.setattr(archives, "CHECKED_FROM", 100_000)
    monkeypatch.setattr(archives, "BLOCK", 1 << 10)
    with pytest.raises(InputError, match="more than a data set does"):
        read_ogb(path)


def test_two_data_sets_in_one_zip_are_one_too_many(tmp_path):
    files = folder(tmp_path / "small")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        for name in ("a", "b"):
            archive.write(files / "raw" / "num-node-list.csv.gz", f"{name}/raw/num-node-list.csv.gz")
    with pytest.raises(InputError, match=r"several data sets inside, 'a/' and 'b/'; give one"):
        read_ogb(tmp_path / "two.zip")


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["ogbg_molbace", "ogbg_molfreesolv"])
def test_real_molecules_are_those_of_a_plain_reading(name, data_root):
    """Every graph, by OGB's documented rule: rows taken graph by graph, each edge followed by its inverse."""

    def table(field: str) -> list[list[str]]:
        text = gzip.decompress((data_root / name / f"{field}.csv.gz").read_bytes()).decode()
        return [line.split(",") for line in text.splitlines()]

    dataset = load_dataset(data_root / name)
    atoms, bonds, ends = (iter(table(f"raw/{field}")) for field in ("node-feat", "edge-feat", "edge"))
    counts = zip(table("raw/num-node-list"), table("raw/num-edge-list"), strict=True)
    for graph, ((nodes,), (links,)) in enumerate(counts):
        expected = []
        for _ in range(int(links)):
            (u, v), bond = map(int, next(ends)), tuple(map(int, next(bonds)))
            expected += [(u, v, *bond), (v, u, *bond)]
        assert sorted(edges(dataset, graph)) == sorted(expected)
        labels = dataset.batch(torch.tensor([graph])).node_labels
        assert labels is not None
        assert labels.tolist() == [list(map(int, next(atoms))) for _ in range(int(nodes))]
    assert [float(label) for (label,) in table("raw/graph-label")] == pytest.approx(dataset.targets[:, 0].tolist())
    split = make_split(SplitConfig(), dataset)
    for part in ("train", "valid", "test"):
        assert getattr(split, part).tolist() == sorted(int(i) for (i,) in table(f"split/scaffold/{part}"))


@pytest.mark.real_data
def test_a_run_on_real_molecules_keeps_to_the_official_split(data_root, tmp_path):
    config = RunConfig(
        str(data_root / "ogbg_molfreesolv"), "gin", {"dim": 8}, TrainConfig(epochs=2, batch_size=64), device="cpu"
    )
    run = train(config, tmp_path / "run")
    assert [len(getattr(run.split, part)) for part in ("train", "valid", "test")] == [513, 64, 65]
    assert run.result.metric == "rmse"
    assert evaluate(tmp_path / "run", device="cpu")["rmse"] == pytest.approx(run.result.test["rmse"], rel=1e-4)


@pytest.mark.parametrize(("name", "kind"), [("MUTAG", "random"), ("ogbg-molhiv", "official"), ("mine", "auto")])
def test_a_name_tells_what_split_it_stands_for(name, kind):
    assert resolve_split_kind(RunConfig(name)).split.kind == kind
    assert resolve_split_kind(RunConfig(name, split=SplitConfig("files", folder="x"))).split.kind == "files"
