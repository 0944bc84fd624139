"""A data set in a folder is the one that was written, part by part, and is never in memory whole."""

import json
import math
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data.test_packed import anything, packed
from hypothesis import given
from hypothesis import strategies as st
from strategies import TARGETS, assert_same, generator, random_batch

import mnagt.data.packed as packed_module
from mnagt.cli import main
from mnagt.data import encodings
from mnagt.data import memmap as mapped
from mnagt.data.encodings import concatenate_rows
from mnagt.data.memmap import open_packed, pack_jsonl, write_packed
from mnagt.data.packed import WINDOW, PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.errors import InputError
from mnagt.files import read_json
from mnagt.graphs.batch import GraphBatch
from mnagt.tasks import Regression, Unlabelled


@given(batch=anything, data=st.data())
def test_parts_laid_end_to_end_are_the_whole(batch, data, tmp_path_factory):
    whole, everything = packed(batch), torch.arange(batch.num_graphs)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    parts = [
        replace(
            PackedDataset.from_batch("toys", whole.task, whole.batch(some), label_counts=whole.label_counts),
            groups=some,
            texts=torch.frombuffer(bytearray("\n".join(map(str, some.tolist())), "ascii"), dtype=torch.uint8),
        )
        for some in everything.tensor_split(cuts)
        if len(some)
    ]
    folder = tmp_path_factory.mktemp("mapped") / "toys"
    found = write_packed(folder, parts)
    assert_same(found.batch(everything), whole.batch(everything))
    assert found.texts is not None
    assert found.texts.numpy().tobytes().decode().split("\n") == [str(g) for g in range(len(whole))]
    assert found.groups is not None
    assert torch.equal(found.groups, everything)
    assert (found.task, found.label_counts) == (whole.task, whole.label_counts)
    assert_same(load_dataset(folder).batch(everything), whole.batch(everything))


@pytest.fixture
def toys() -> PackedDataset:
    return packed(random_batch([3, 1, 4, 1, 5], 0.5, seed=0, node_labels=True, edge_values=True, targets=True))


@pytest.fixture
def folder(toys, tmp_path) -> Path:
    write_packed(tmp_path / "toys", [toys])
    return tmp_path / "toys"


def test_columns_are_mapped_and_not_to_be_copied(folder):
    dataset = open_packed(folder)
    for column in (dataset.source, dataset.in_degree, dataset.node_labels, dataset.encodings["number"]):
        assert column is not None
        assert mapping(column).startswith("r--s")
    assert dataset.to("cpu").source.data_ptr() == dataset.source.data_ptr()
    assert mapping(dataset.targets).startswith("rw-p")


def mapping(tensor: torch.Tensor) -> str:
    """How the memory of ``tensor`` may be used, and the file that it is of."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, what = line.split(" ", 1)
        first, last = (int(end, 16) for end in place.split("-"))
        if first <= tensor.data_ptr() < last:
            return what
    raise AssertionError("not in memory")


def test_what_is_not_finished_is_not_there(toys, tmp_path):
    def parts():
        yield toys
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_packed(tmp_path / "toys", parts())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_stays_as_it_is(toys, folder):
    with pytest.raises(InputError, match="it is there already"):
        write_packed(folder, [toys])


def test_parts_that_carry_other_columns_are_refused(toys, tmp_path):
    with pytest.raises(InputError, match="after 5 graphs: node_labels is in some parts only"):
        write_packed(tmp_path / "toys", [toys, replace(toys, node_labels=None)])
    with pytest.raises(InputError, match="after 5 graphs: targets has rows of"):
        write_packed(tmp_path / "toys", [toys, replace(toys, targets=toys.targets.double())])
    with pytest.raises(InputError, match="after 5 graphs: has another task"):
        write_packed(tmp_path / "toys", [toys, replace(toys, task=Regression(("other",) * TARGETS))])
    named = replace(toys, vocabularies={"node_labels/0": tuple("abcdefghijklm")})
    for parts in ([toys, named], [named, toys]):
        with pytest.raises(InputError, match="after 5 graphs: categories of node_labels/0 have names in some"):
            write_packed(tmp_path / "toys", parts)
    with pytest.raises(InputError, match="no graphs"):
        write_packed(tmp_path / "toys", [])


def test_categories_go_by_name(toys, tmp_path):
    two = replace(toys, vocabularies={"node_labels/1": tuple("abcdefghijklm")})
    other = replace(toys, vocabularies={"node_labels/1": tuple("zmlkjihgfedcb")})
    found = write_packed(tmp_path / "toys", [two, other])
    assert found.vocabularies == {"node_labels/1": tuple("abcdefghijklmz")}
    assert found.label_counts["node_labels"] == (13, 14)
    said = ["abcdefghijklm", "zmlkjihgfedcb"]
    labels = toys.node_labels
    assert labels is not None
    assert found.node_labels is not None
    names = [word[i] for word in said for i in labels[:, 1].tolist()]
    assert [found.vocabularies["node_labels/1"][i] for i in found.node_labels[:, 1].tolist()] == names
    assert torch.equal(found.node_labels[:, 0], labels[:, 0].repeat(2))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "source.bin").write_bytes((f / "source.bin").read_bytes()[:-1]), "bytes where"),
        (lambda f: _flipped(f / "edge_values.bin"), "edge_values.bin: damaged"),
        (lambda f: (f / "in_degree.bin").unlink(), "not a packed data set, or damaged"),
        (lambda f: _changed(f, tensors={"../../etc/passwd": {}}), "has no '../../etc/passwd'"),
        (lambda f: _changed(f, version=2), "another version"),
        (lambda f: _changed(f, block=-1), "block counts graphs, got -1"),
        (lambda f: _changed(f, task={"kind": "magic"}), "no task 'magic'"),
        (lambda f: _changed(f, label_counts=3), "not a packed data set, or damaged"),
        (lambda f: _changed(f, label_counts={}), "label_counts does not fit the columns of node_labels"),
        (lambda f: _changed(f, label_counts={"node_labels": [2]}), "label_counts does not fit the columns of node"),
        (lambda f: _changed(f, label_counts={"node_labels": ["7", 3]}), "node_labels/0 has '7' categories"),
        (lambda f: _changed(f, label_counts={"node_labels": [1, 1]}), "has rows beyond its 1 categories"),
        (lambda f: _changed(f, vocabularies={"node_labels/0": ["a"]}), "which does not fit"),
        (lambda f: (f / "packed.json").write_text("{"), "not JSON"),
        (lambda f: _retold(f, "source", dtype="|O"), "cannot be object"),
        (lambda f: _retold(f, "source", shape=[-1]), "cannot be int32"),
        (lambda f: _retold(f, "source", shape=[10**300]), "cannot be int32 of shape"),
        (lambda f: _rewritten(f, "node_ptr", np.array([0, 3, 2, 8, 9, 14])), "does not count up from 0"),
        (lambda f: _rewritten(f, "node_ptr", np.array([0, 3, 4, 8, 9, 13])), "rows, not 13"),
    ],
)
def test_a_damaged_folder_is_refused(folder, spoil, message):
    spoil(folder)
    with pytest.raises(InputError, match=message):
        open_packed(folder)


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _changed(folder: Path, **fields: object) -> None:
    header = read_json(folder / "packed.json")
    (folder / "packed.json").write_text(json.dumps(header | fields))


def _retold(folder: Path, name: str, **about: object) -> None:
    header = read_json(folder / "packed.json")
    header["tensors"][name] |= about
    (folder / "packed.json").write_text(json.dumps(header))


def _rewritten(folder: Path, name: str, rows: np.ndarray) -> None:
    rows.tofile(folder / f"{name}.bin")
    _retold(folder, name, crc32=mapped._checksum(folder / f"{name}.bin"))


# Shuffling


def in_blocks(graphs: int, block: int) -> PackedDataset:
    """So many single nodes."""
    batch = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1] * graphs, targets=torch.zeros(graphs, 1))
    return replace(PackedDataset.from_batch("dots", Regression(("y",)), batch), block=block)


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_blocks_leave_out_no_graph_and_can_be_taken_up_in_the_middle(is_shuffled):
    dataset, some = in_blocks(2011, 3), torch.arange(0, 2011, 2)

    def drawn(seed: int, start: int = 0) -> list[list[int]]:
        chance = generator(seed) if is_shuffled else None
        return [chunk.tolist() for chunk in dataset.batch_indices(some, 64, chance, start)]

    assert sorted(g for chunk in drawn(0) for g in chunk) == some.tolist()
    assert drawn(0, start=5) == drawn(0)[5:]
    assert (drawn(0) == drawn(1)) is not is_shuffled


def test_a_window_is_all_that_is_in_use_at_a_time():
    dataset = in_blocks(8192, 8)
    for chance in (generator(0), None):
        order = torch.cat(list(dataset.batch_indices(torch.arange(8192), 64, chance)))
        blocks = [set((part // 8).tolist()) for part in order.split(8 * WINDOW)]
        assert [len(each) for each in blocks] == [WINDOW] * 4
        assert not set.intersection(*blocks)


def test_the_next_window_is_asked_for_while_one_is_in_use(monkeypatch):
    dataset, asked = in_blocks(4 * WINDOW * 2 + 5, 2), []
    monkeypatch.setattr(packed_module, "prefetch_rows", lambda column, first, last: asked.append((first, last)))
    for chance in (generator(0), None):
        chunks, seen = dataset.batch_indices(torch.arange(len(dataset)), WINDOW, chance), 0
        asked.clear()
        for chunk in chunks:
            rows = {row for first, last in asked for row in range(first, last)}
            assert rows >= set(chunk.tolist())
            seen += len(chunk)
            assert len(rows) >= min(len(dataset), seen + WINDOW)
        assert sum(last - first for first, last in asked) in (len(dataset), 2 * len(dataset))  # in_degree, and no edges


def test_blocks_mix_classes_that_lie_apart():
    """Half of the file of one class, half of the other: batches as mixed as the window allows, order gone."""
    dataset, graphs, size = in_blocks(65536, 64), 65536, 256
    share = [
        (chunk < graphs // 2).double().mean().item()
        for chunk in dataset.batch_indices(torch.arange(graphs), size, generator(0))
    ]
    ideal = math.sqrt(0.25 / size)  # of a full shuffle
    window = math.sqrt(0.25 / WINDOW)  # of the blocks that chance brings together
    assert np.std(share) < 1.3 * math.hypot(ideal, window)
    order = torch.cat(list(dataset.batch_indices(torch.arange(graphs), size, generator(0)))).double()
    assert abs(np.corrcoef(order.numpy(), np.arange(graphs))[0, 1]) < 0.2
    neighbours = (order.diff().abs() <= 1).double().mean().item()
    assert neighbours < 0.001


def test_a_large_data_set_is_shuffled_by_blocks(toys, tmp_path, monkeypatch):
    assert write_packed(tmp_path / "small", [toys]).block == 0
    monkeypatch.setattr(mapped, "LARGE", 100)
    monkeypatch.setattr(mapped, "BLOCK", toys.nbytes // 2)
    assert write_packed(tmp_path / "large", [toys]).block == 2
    assert write_packed(tmp_path / "told", [toys], block=0).block == 0


# Elsewhere


def test_a_data_set_that_is_not_resident_sends_its_batches():
    toys = packed(random_batch([3, 1, 4], 0.5, seed=0, node_labels=True, targets=True))
    away = toys.to("meta", resident=False)
    assert not away.is_resident
    assert away.source.device.type == "cpu"
    batch = away.batch(torch.tensor([2, 0]))
    told = (batch.source, batch.node_ptr, batch.targets, batch.node_labels, batch.encodings["number"])
    assert {t.device.type for t in told if t is not None} == {"meta"}
    assert batch.sizes.tolist() == [4, 3]
    assert toys.to("meta").is_resident


def test_encodings_that_are_too_many_go_to_a_file(monkeypatch):
    parts = [torch.randn(5, 3), torch.randn(4, 3)]
    for most in (9 * 12, 9 * 12 - 1):
        monkeypatch.setattr(encodings, "IN_MEMORY", most)
        joined = concatenate_rows(iter(parts), 9)
        assert torch.equal(joined, torch.cat(parts))
        assert mapping(joined).startswith("rw-p" if most == 9 * 12 else "r--s")


# From JSONL


def lines(graphs: int) -> list[dict]:
    return [
        {
            "nodes": [{"element": "CNO"[(i + j) % 3], "charge": j / 2} for j in range(2 + i % 3)],
            "edges": [[0, 1, {"bond": i % 2}]],
            "y": None if i % 7 == 3 else ["no", "yes"][i % 2],
            "family": i // 4,
        }
        for i in range(graphs)
    ]


def write_lines(path: Path, graphs: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, graphs)) + "\n")
    return path


def test_a_packed_file_is_the_file_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("mnagt.data.memmap.GRAPHS_AT_ONCE", 4)
    path = write_lines(tmp_path / "my.jsonl", lines(19))
    whole, found = load_dataset(path, group="family"), pack_jsonl(path, tmp_path / "my", group="family")
    assert (found.task, found.columns, len(found)) == (whole.task, whole.columns, len(whole))
    assert torch.equal(found.targets, whole.targets)
    torch.testing.assert_close(found.groups, whole.groups)
    everything = torch.arange(len(whole))
    one, other = found.batch(everything), whole.batch(everything)
    assert_same(*(replace(batch, node_labels=None, edge_labels=None) for batch in (one, other)))
    for kind in ("node_labels", "edge_labels"):
        said = [
            [data.vocabularies[f"{kind}/0"][i] for i in getattr(batch, kind)[:, 0].tolist()]
            for data, batch in ((found, one), (whole, other))
        ]
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"element": 3.5, "charge": 0.5}, r"line 6, nodes\[0\].element: 3.5 is a number"),
        (
            {"element": "C", "charge": 0.5, "new": 1},
            r"line 6, nodes\[0\].new: a column that the first graphs do not have",
        ),
        ({"element": "C"}, r"line 6, nodes\[0\].charge: expected a finite number, got nothing"),
        ({"element": "C", "charge": 3}, None),
        ({"charge": 0.5}, None),
    ],
)
def test_later_graphs_are_read_as_the_first(tmp_path, monkeypatch, node, message):
    monkeypatch.setattr("mnagt.data.memmap.GRAPHS_AT_ONCE", 5)
    path = write_lines(tmp_path / "my.jsonl", [*lines(5), {"nodes": [node], "edges": [], "y": "no", "family": 1}])
    if message is None:
        assert len(pack_jsonl(path, tmp_path / "my")) == 5  # one has no target
        return
    with pytest.raises(InputError, match=message):
        pack_jsonl(path, tmp_path / "my")
    assert not (tmp_path / "my").exists()


def test_the_command_packs_what_can_be_trained_on(tmp_path, capsys):
    path = write_lines(tmp_path / "my.jsonl", lines(40))
    assert main(["pack", str(path), "--out", str(tmp_path / "my"), "--block", "8"]) == 0
    assert "34 graphs" in capsys.readouterr().out
    assert load_dataset(tmp_path / "my").block == 8
    assert main(["train", str(tmp_path / "my"), "--model", "gin", "--epochs", "1", "--out", str(tmp_path / "run")]) == 0
    assert main(["pack", str(tmp_path / "my.csv"), "--out", str(tmp_path / "other")]) == 2
    assert "packed from JSONL only" in capsys.readouterr().err


# Ten times the memory

TRAIN = """
import resource, sys, torch
from pathlib import Path
from mnagt import RunConfig, TrainConfig, train
from mnagt.data import encodings, memmap as mapped
from mnagt.data.packed import PackedDataset
from mnagt.graphs.batch import GraphBatch
from mnagt.tasks import Regression, Unlabelled

folder, headroom, times = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
encodings.IN_MEMORY = 1 << 20

def status(field):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(field + ":")]
    return int(line.split()[1]) * 1024

def parts(graphs=256, nodes=2, width=1024):
    place = torch.arange(graphs * nodes)
    ends = torch.stack([place, (place + 1) % nodes + place // nodes * nodes])
    made, one = 0, graphs * nodes * width * 4
    while made < size:
        yield PackedDataset.from_batch("ten", Regression(("y",)), GraphBatch.from_edges(
            torch.cat([ends, ends.flip(0)], dim=1), [nodes] * graphs,
            node_values=torch.randn(graphs * nodes, width), targets=torch.randn(graphs, 1)))
        made += one

def trained(dataset):
    settings = {"dim": 8, "depth": 1, "heads": 1, "head_dim": 8, "max_hop": 1}
    config = RunConfig("ten", "mnagt", settings=settings, train=TrainConfig(epochs=1, batch_size=256))
    return train(config, dataset=dataset).result.valid

size = 1 << 24
trained(next(parts()))  # what PyTorch takes for itself
limit = status("VmData") + headroom if times == 0 else headroom
size = 10 * (headroom if times == 0 else limit)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
dataset = mapped.write_packed(folder, parts(), block=64)
before = status("RssAnon")
try:
    torch.cat([dataset.node_values, dataset.node_values[:0]])
except (RuntimeError, MemoryError):
    print("does not fit")
valid = trained(dataset)
assert valid == valid
print(dataset.nbytes, limit, status("RssAnon"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def trained_in(folder: Path, headroom: int, times: int) -> list[int]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    words = [sys.executable, "-c", TRAIN, str(folder / "ten"), str(headroom), str(times)]
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, told = done.stdout.splitlines()
    assert refused == "does not fit"
    return [int(word) for word in told.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_ten_times_what_may_be_taken_still_trains(tmp_path):
    size, *_ = trained_in(tmp_path, 64 << 20, 0)
    assert size > 10 * (64 << 20)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_ten_times_the_memory_of_the_whole_process_still_trains(tmp_path):
    size, limit, anonymous, _ = trained_in(tmp_path, 512 << 20, 1)
    assert size > 10 * limit
    assert anonymous < limit


@pytest.mark.parametrize(
    ("name", "task"), [("classes", "auto"), ("numbers", "regression"), ("unlabelled", Unlabelled())]
)
def test_folders_that_version_0_1_packed_still_open(tmp_path, name, task):
    with zipfile.ZipFile(Path(__file__).parents[1] / "fixtures" / "packed-v0.1.zip") as archive:
        archive.extractall(tmp_path)
    opened, read = load_dataset(tmp_path / name), load_dataset(tmp_path / "graphs.jsonl", task=task)
    assert_same(opened.batch(torch.arange(3)), read.batch(torch.arange(3)))
    for field in ("task", "label_counts", "vocabularies", "columns"):
        assert getattr(opened, field) == getattr(read, field)
