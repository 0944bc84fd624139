"""Whatever happens to the files, reading them gives a consistent data set or one line that says what is wrong."""

import tempfile
import zipfile
from pathlib import Path

import torch
from data.tu_files import SMALL, folder, zipped
from hypothesis import given, settings
from hypothesis import strategies as st

from mnagt.data.packed import PackedDataset
from mnagt.data.tu import read_tu
from mnagt.errors import InputError

NUMBERS = ("0", "1", "-1", "8", "9", "2147483648", "99999999", "100000000", "9223372036854775808", "-9" * 30)
ODDITIES = (*NUMBERS, "9" * 5000, "1e400", "nan", "inf", "1_0", "0x1", "", " ", ",", "\n", "\r", "\0", "é", "１", "1.5")

texts = st.sampled_from(sorted(SMALL))


def lines_of(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


@st.composite
def flipped(draw, content: bytes) -> bytes:
    at = draw(st.integers(0, len(content) - 1))
    return content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]


@st.composite
def truncated(draw, content: bytes) -> bytes:
    return content[: draw(st.integers(0, len(content)))]


@st.composite
def line_deleted(draw, content: bytes) -> bytes:
    lines = lines_of(content)
    del lines[draw(st.integers(0, len(lines) - 1))]
    return b"".join(lines)


@st.composite
def line_doubled(draw, content: bytes) -> bytes:
    lines = lines_of(content)
    lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(lines)))
    return b"".join(lines)


@st.composite
def lines_swapped(draw, content: bytes) -> bytes:
    return b"".join(draw(st.permutations(lines_of(content))))


@st.composite
def columns_swapped(draw, content: bytes) -> bytes:
    lines = lines_of(content)
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = b",".join(reversed(lines[at].strip().split(b","))) + b"\n"
    return b"".join(lines)


@st.composite
def field_replaced(draw, content: bytes) -> bytes:
    lines = lines_of(content)
    at = draw(st.integers(0, len(lines) - 1))
    fields = lines[at].strip().split(b",")
    fields[draw(st.integers(0, len(fields) - 1))] = draw(st.sampled_from(ODDITIES)).encode()
    lines[at] = b",".join(fields) + b"\n"
    return b"".join(lines)


@st.composite
def replaced_by_anything(draw, content: bytes) -> bytes:
    return draw(st.binary(max_size=60))


MUTATIONS = (
    flipped,
    truncated,
    line_deleted,
    line_doubled,
    lines_swapped,
    columns_swapped,
    field_replaced,
    replaced_by_anything,
)


@st.composite
def broken_texts(draw) -> dict[str, bytes]:
    """Some files of the small data set, each broken in one way or more."""
    broken = {field: text.encode() for field, text in SMALL.items()}
    for _ in range(draw(st.integers(1, 3))):
        field = draw(texts)
        if broken[field]:
            broken[field] = draw(draw(st.sampled_from(MUTATIONS))(broken[field]))
    return broken


def assert_consistent_or_refused(path: Path) -> None:
    try:
        dataset = read_tu(path)
    except InputError as refusal:
        message = str(refusal)
    else:
        assert_consistent(dataset)
        return
    assert message.startswith(str(path))
    assert "\n" not in message


def assert_consistent(dataset: PackedDataset) -> None:
    sizes, edges, nodes = dataset.sizes, len(dataset.source), int(dataset.node_ptr[-1])
    assert bool((sizes >= 1).all())
    assert len(dataset.targets) == len(dataset)
    assert int(dataset.edge_ptr[-1]) == int(dataset.in_degree.sum()) == edges
    for column, rows in (
        (dataset.node_labels, nodes),
        (dataset.node_values, nodes),
        (dataset.edge_labels, edges),
        (dataset.edge_values, edges),
    ):
        assert column is None or len(column) == rows
    for kind in ("node_labels", "edge_labels"):
        labels = getattr(dataset, kind)
        for i, count in enumerate(dataset.label_counts.get(kind, ())):
            assert len(dataset.vocabularies[f"{kind}/{i}"]) == count
            assert not len(labels) or 0 <= int(labels[:, i].min()) <= int(labels[:, i].max()) < count
    batch = dataset.batch(torch.arange(len(dataset)))
    source, destination = batch.edge_index
    assert not edges or int(source.max()) < nodes
    assert bool((batch.graph_of_node[source] == batch.graph_of_node[destination]).all())
    assert bool((source != destination).all())
    key = destination * nodes + source
    assert bool((key.diff() > 0).all())
    assert torch.equal((source * nodes + destination).sort().values, key)


@settings(max_examples=200, deadline=None)
@given(broken=broken_texts(), is_zipped=st.booleans())
def test_broken_text_is_read_consistently_or_refused(broken, is_zipped):
    with tempfile.TemporaryDirectory() as scratch:
        path = folder(Path(scratch) / "SMALL", broken)
        assert_consistent_or_refused(zipped(path, Path(scratch) / "SMALL.zip") if is_zipped else path)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), compression=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]))
def test_a_broken_zip_is_read_consistently_or_refused(data, compression):
    with tempfile.TemporaryDirectory() as scratch:
        path = zipped(folder(Path(scratch) / "SMALL"), Path(scratch) / "SMALL.zip", compression=compression)
        content = path.read_bytes()
        for _ in range(data.draw(st.integers(1, 3))):
            mutation = data.draw(st.sampled_from((flipped, truncated, replaced_by_anything)))
            content = data.draw(mutation(content)) or b"\0"
        path.write_bytes(content)
        assert_consistent_or_refused(path)


@settings(max_examples=50, deadline=None)
@given(without=st.sets(texts))
def test_missing_files_are_done_without_or_named(without):
    with tempfile.TemporaryDirectory() as scratch:
        assert_consistent_or_refused(folder(Path(scratch) / "SMALL", without=tuple(without)))
