import logging
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data.tu_files import SMALL, folder, zipped

import mnagt.data.archives as module
from mnagt.data.packed import PackedDataset
from mnagt.data.readers import number_tables
from mnagt.data.readers.tu import read_tu
from mnagt.data.registry import EMBEDDED
from mnagt.errors import InputError
from mnagt.tasks import Regression, SingleLabel, Unlabelled


def edges(dataset: PackedDataset) -> list[tuple[int, int]]:
    return list(map(tuple, dataset.batch(torch.arange(len(dataset))).edge_index.T.tolist()))


def assert_same(one: PackedDataset, other: PackedDataset) -> None:
    for name in ("node_ptr", "edge_ptr", "source", "in_degree", "targets", "node_labels", "edge_labels"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
    for name in ("node_values", "edge_values"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))
    assert (one.name, one.task, one.vocabularies) == (other.name, other.task, other.vocabularies)


@pytest.fixture
def small(tmp_path: Path) -> PackedDataset:
    return read_tu(folder(tmp_path / "SMALL"))


def test_graphs_are_those_of_the_indicator(small):
    assert small.name == "SMALL"
    assert small.sizes.tolist() == [3, 2, 1, 2]
    assert small.edge_ptr.tolist() == [0, 4, 6, 6, 6]
    assert small.is_symmetric


def test_edges_are_sorted_by_destination_then_source(small):
    assert edges(small) == [(1, 0), (0, 1), (2, 1), (1, 2), (4, 3), (3, 4)]
    assert small.source.dtype == small.in_degree.dtype == torch.int32


def test_classes_are_the_labels_in_order(small):
    assert small.task == SingleLabel(("-1", "3", "7"))
    assert small.targets.tolist() == [2, 0, 2, 1]


def test_label_columns_become_categories_in_order_of_their_values(small):
    assert small.label_counts == {"node_labels": (3, 2), "edge_labels": (3,)}
    assert small.vocabularies["node_labels/0"] == ("2", "4", "9")
    assert small.vocabularies["node_labels/1"] == ("0", "1")
    assert small.node_labels.T.tolist() == [[1, 0, 1, 2, 0, 0, 1, 1], [0, 0, 1, 0, 1, 0, 0, 0]]
    assert small.edge_labels[:, 0].tolist() == [1, 1, 0, 0, 2, 2]


def test_attributes_become_values(small):
    torch.testing.assert_close(small.node_values[2], torch.tensor([2.5, -0.2, 0.0]))
    assert small.edge_values[:, 0].tolist() == [0.25, 0.25, 1000.0, 1000.0, -2.0, -2.0]


def test_edge_columns_follow_their_edge_when_the_file_is_shuffled(small, tmp_path):
    order = [5, 2, 0, 4, 3, 1]
    shuffled = {
        field: "".join(SMALL[field].splitlines(keepends=True)[i] for i in order)
        for field in ("A", "edge_labels", "edge_attributes")
    }
    assert_same(read_tu(folder(tmp_path / "shuffled", shuffled)), small)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("within", ["", "SMALL/", "some/where/"])
def test_a_zip_reads_like_its_folder(small, tmp_path, compression, within):
    archive = zipped(tmp_path / "SMALL", tmp_path / "other.zip", within, compression)
    assert_same(read_tu(archive), small)


def test_pytorch_geometrics_raw_folder_is_found(small, tmp_path):
    folder(tmp_path / "pyg" / "raw")
    assert_same(read_tu(tmp_path / "pyg"), small)


def test_where_graphs_count_from_zero_nodes_do_too_though_none_is_called_zero(tmp_path):
    changed = {"A": "1, 2\n2, 1\n4, 5\n5, 4\n", "graph_indicator": "0\n0\n0\n1\n1\n1\n", "graph_labels": "0\n1\n"}
    dataset = read_tu(
        folder(
            tmp_path / "ZERO",
            changed,
            without=tuple(f"{k}_{w}" for k in ("node", "edge") for w in ("labels", "attributes")),
        )
    )
    assert dataset.in_degree.tolist() == [0, 1, 1, 0, 1, 1]


def test_graphs_without_targets_can_be_read(small, tmp_path):
    dataset = read_tu(folder(tmp_path / "unasked", without=("graph_labels",)))
    assert isinstance(dataset.task, Unlabelled)
    assert dataset.targets.shape == (4, 0)
    assert dataset.source.equal(small.source)


def test_ids_may_count_from_zero(small, tmp_path):
    zero_based = {
        field: re.sub(r"\d+", lambda m: str(int(m[0]) - 1), SMALL[field]) for field in ("A", "graph_indicator")
    }
    assert_same(read_tu(folder(tmp_path / "zero", zero_based)), small)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(", ", ","),
        lambda text: text.replace(", ", " ,\t"),
        lambda text: text.rstrip("\n"),
        lambda text: text + "\n \n\n",
        lambda text: "\ufeff" + text,
    ],
    ids=["windows", "no spaces", "more spaces", "no last newline", "blank end", "byte order mark"],
)
def test_ways_to_write_the_same(small, tmp_path, change):
    assert_same(read_tu(folder(tmp_path / "same", {field: change(text) for field, text in SMALL.items()})), small)


def test_integers_may_be_written_as_floats(small, tmp_path):
    labels = SMALL["graph_labels"].replace("\n", ".0\n")
    assert_same(read_tu(folder(tmp_path / "same", {"graph_labels": labels})), small)


def test_self_loops_and_repeats_go_and_reverse_edges_come(small, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    untidy = folder(
        tmp_path / "untidy",
        {
            "A": "1, 1\n1, 2\n2, 1\n2, 3\n3, 2\n2, 3\n4, 5\n",
            "edge_labels": "5\n1\n1\n0\n0\n1\n5\n",
            "edge_attributes": "0\n0.25\n0.25\n1e3\n1e3\n4\n-2\n",
        },
    )
    assert_same(read_tu(untidy), small)
    assert [record.message for record in caplog.records] == [
        "SMALL: 1 self loops were dropped",
        "SMALL: 1 repeated edges were dropped; the first of them counts",
        "SMALL: 1 missing reverse edges were added",
    ]


def test_edges_without_columns_are_tidied_alike(small, tmp_path):
    bare = folder(
        tmp_path / "bare", {"A": "5, 4\n3, 3\n2, 3\n3, 2\n2, 3\n1, 2\n"}, without=("edge_labels", "edge_attributes")
    )
    dataset = read_tu(bare)
    assert edges(dataset) == edges(small)
    assert dataset.edge_labels is None
    assert dataset.edge_values is None


def test_the_two_ways_of_an_edge_may_carry_different_labels(tmp_path):
    dataset = read_tu(folder(tmp_path / "directed", {"edge_labels": "1\n2\n3\n4\n5\n6\n"}))
    assert dataset.edge_labels is not None
    by_edge = dict(zip(edges(dataset), dataset.edge_labels[:, 0].tolist(), strict=True))
    assert by_edge == {(0, 1): 0, (1, 0): 1, (1, 2): 2, (2, 1): 3, (3, 4): 4, (4, 3): 5}


def test_only_self_loops_leave_no_edges(tmp_path):
    dataset = read_tu(folder(tmp_path / "loops", {"A": "1,1\n" * 6}))
    assert len(dataset.source) == 0
    assert dataset.edge_labels is not None
    assert dataset.edge_labels.shape == (0, 1)
    assert dataset.in_degree.tolist() == [0] * 8


def test_graph_attributes_are_targets_when_there_are_no_classes(tmp_path):
    attributes = {"graph_attributes": "0.5, 1\n-2, 3\n4, 5\n6, 7\n"}
    path = folder(tmp_path / "regression", attributes, without=("graph_labels",))
    dataset = read_tu(path)
    assert dataset.task == Regression(("target_0", "target_1"))
    assert dataset.targets.tolist() == [[0.5, 1.0], [-2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A": "1, 2\n2, 9\n"}, "SMALL_A.txt, line 2: edge 2, 9 names a missing node; .* nodes 1 to 8"),
        ({"A": "1, 2\n-2, 1\n"}, "SMALL_A.txt, line 2: edge -2, 1 names a missing node"),
        ({"A": "0, 2\n2, 8\n"}, "SMALL_A.txt, line 2: edge 2, 8 names a missing node; .* nodes 0 to 7"),
        ({"A": "1, 2\n3, 4\n"}, "SMALL_A.txt, line 2: edge 3, 4 joins two graphs, number 1 and 2"),
        ({"A": "1, 2\n3\n"}, "SMALL_A.txt, line 2: '3' has 1 columns, expected 2"),
        ({"A": "1, 2, 3\n"}, "SMALL_A.txt, line 1: '1, 2, 3' has 3 columns, expected 2"),
        ({"A": "1, 2\n2 1\n"}, "SMALL_A.txt, line 2: '2 1' has 1 columns"),
        ({"A": "1, 2\n1 2, 1\n"}, "SMALL_A.txt, line 2: '1 2, 1' is not a number"),
        ({"A": "1, 2\n\n2, 1\n"}, "SMALL_A.txt, line 2: the line is empty"),
        ({"A": "1, 2\n2, two\n"}, "SMALL_A.txt, line 2: '2, two' is not a number"),
        ({"A": "1, 2\n2, 1_0\n"}, "SMALL_A.txt, line 2: '2, 1_0' is not an integer"),
        ({"A": "1, 2\n2, 1.5\n"}, "SMALL_A.txt, line 2: '2, 1.5' is not an integer"),
        ({"A": f"1, 2\n2, {10**30}\n"}, "SMALL_A.txt, line 2: .* is not an integer of 64 bits"),
        ({"A": b"1, 2\n2, \xff\xfe\n"}, "SMALL_A.txt, line 2: .* is not a number"),
        ({"A": ""}, "SMALL_A.txt: the file is empty"),
        ({"A": " \n\n"}, "SMALL_A.txt: the file is empty"),
        ({"graph_indicator": "1\n1\n2\n1\n"}, "graph_indicator.txt, line 4: graph 1 comes after graph 2; sort"),
        ({"graph_indicator": "1\n1\n3\n"}, "graph_indicator.txt, line 3: graph 2 has no nodes"),
        ({"graph_indicator": "2\n2\n3\n"}, "graph_indicator.txt, line 1: graph 1 has no nodes"),
        ({"graph_indicator": "-1\n2\n3\n"}, "graph_indicator.txt, line 1: graph -1 is below 0"),
        ({"graph_labels": "1\n2\n"}, "graph_labels.txt: 2 lines for 4 graphs"),
        ({"graph_labels": "2\n" * 4}, "graph_labels.txt: every graph is of class 2"),
        ({"node_labels": "2\n" * 7}, "node_labels.txt: 7 lines for 8 nodes"),
        ({"node_labels": "2\n" * 7 + "1, 2\n"}, "node_labels.txt, line 8: '1, 2' has 2 columns, expected 1"),
        ({"edge_labels": "2\n" * 7}, "edge_labels.txt: 7 lines for 6 edges"),
        ({"edge_attributes": "2\n" * 5}, "edge_attributes.txt: 5 lines for 6 edges"),
        ({"node_attributes": "1\n" * 7 + "nan\n"}, "node_attributes.txt, line 8: 'nan' is not a finite"),
        ({"node_attributes": "1\n" * 7 + "-inf\n"}, "node_attributes.txt, line 8: '-inf' is not a finite"),
        ({"node_attributes": "1\n" * 7 + "1e300\n"}, "node_attributes.txt, line 8: '1e300' is not a finite"),
        ({"node_attributes": "1\n" * 7 + "1, 2\n"}, "node_attributes.txt, line 8: '1, 2' has 2 columns"),
        ({"node_attributes": "1\n" * 7 + "one\n"}, "node_attributes.txt, line 8: 'one' is not a number"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path, change, message):
    for path in (folder(tmp_path / "folder", change), zipped(tmp_path / "folder", tmp_path / "SMALL.zip", "SMALL/")):
        with pytest.raises(InputError, match=message) as caught:
            read_tu(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (("A",), "no NAME_A.txt inside"),
        (("graph_indicator",), "no SMALL_graph_indicator.txt"),
    ],
)
def test_a_missing_file_is_named(tmp_path, without, message):
    with pytest.raises(InputError, match=message):
        read_tu(folder(tmp_path / "SMALL", without=without))


def test_two_data_sets_in_one_folder_are_told_apart_by_its_name(tmp_path):
    folder(tmp_path / "both", name="one")
    with pytest.raises(InputError, match="several data sets inside"):
        read_tu(folder(tmp_path / "both", name="two"))
    assert read_tu(folder(tmp_path / "both", name="both")).name == "both"


def test_a_path_to_nothing_is_said(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        read_tu(tmp_path / "nothing.zip")


def test_a_file_that_is_no_zip_is_said(tmp_path):
    (tmp_path / "SMALL.zip").write_text("hello")
    with pytest.raises(InputError, match="not a readable zip"):
        read_tu(tmp_path / "SMALL.zip")


def test_every_truncation_of_a_zip_is_refused(tmp_path):
    whole = zipped(folder(tmp_path / "SMALL"), tmp_path / "SMALL.zip").read_bytes()
    cut = tmp_path / "cut.zip"
    for length in range(0, len(whole), 97):
        cut.write_bytes(whole[:length])
        with pytest.raises(InputError, match="not a readable zip"):
            read_tu(cut)


def test_damage_inside_a_zip_member_is_noticed(tmp_path):
    stored = zipped(folder(tmp_path / "SMALL"), tmp_path / "SMALL.zip", compression=zipfile.ZIP_STORED)
    stored.write_bytes(stored.read_bytes().replace(b"1, 2\n2, 1", b"1, 2\n2, 3"))
    with pytest.raises(InputError, match=r"not a readable zip \(Bad CRC-32"):
        read_tu(stored)


def test_an_encrypted_zip_is_refused(tmp_path):
    path = zipped(folder(tmp_path / "SMALL"), tmp_path / "SMALL.zip")
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for at in (match.start() for match in re.finditer(re.escape(signature), bytes(content))):
            content[at + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="encrypted"):
        read_tu(path)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(number_tables, "MAX_LINE_BYTES", 1 << 10)
    monkeypatch.setattr(module, "BLOCK", 1 << 8)
    with pytest.raises(InputError, match="this is not a table"):
        read_tu(folder(tmp_path / "SMALL", {"graph_indicator": "1" * 5000}))


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_where_blocks_end_does_not_matter(small, tmp_path, monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    assert_same(read_tu(tmp_path / "SMALL"), small)


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_quick_integers_are_those_of_int(columns):
    rows = np.random.default_rng(0).integers(0, 10 ** np.arange(1, 9).repeat(101)[:, None], size=(808, columns))
    text = "".join(", ".join(map(str, row)) + "\n" for row in rows.tolist()).encode()
    np.testing.assert_array_equal(number_tables.plain_integers(text, columns), rows)
    np.testing.assert_array_equal(number_tables.parse_lines(text, columns, number_tables.INTEGERS, "", 1), rows)


@pytest.mark.parametrize(
    "text", [b"1, 2\n3\n", b"-1, 2\n", b"1,,2\n", b"\n", b"1 2, 3\n", b"123456789, 1\n", b"1;2\n", b"1\n2\n"]
)
def test_quick_integers_leave_odd_text_to_care(text):
    assert number_tables.plain_integers(text, 2) is None


def test_mutag_is_what_pytorch_geometric_reads(tmp_path):
    read_tu_data = pytest.importorskip("torch_geometric.io").read_tu_data
    path = EMBEDDED / "MUTAG.zip"
    ours = read_tu(path)
    assert ours.node_labels is not None
    assert ours.edge_labels is not None
    zipfile.ZipFile(path).extractall(tmp_path)
    theirs, slices, _ = read_tu_data(str(tmp_path / "MUTAG"), "MUTAG")
    whole = ours.batch(torch.arange(len(ours)))
    first = torch.repeat_interleave(ours.node_ptr[:-1], slices["edge_index"].diff())
    source, destination = theirs.edge_index + first
    order = (destination * whole.num_nodes + source).argsort()
    torch.testing.assert_close(whole.edge_index, torch.stack([source, destination])[:, order])
    torch.testing.assert_close(ours.node_labels[:, 0].long(), theirs.x.argmax(dim=1))
    torch.testing.assert_close(ours.edge_labels[:, 0].long(), theirs.edge_attr[order].argmax(dim=1))
    torch.testing.assert_close(ours.targets, theirs.y)
    torch.testing.assert_close(ours.node_ptr, slices["x"])
