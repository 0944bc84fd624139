"""Whatever happens to the files, reading them gives a consistent data set or one line that says what is wrong."""

import tempfile
from pathlib import Path

from data.ogb_files import CODE, MOLECULES, folder, zipped
from data.test_tu_fuzz import MUTATIONS, flipped, replaced_by_anything, truncated
from hypothesis import given, settings
from hypothesis import strategies as st

from mnagt.data.ogb import read_ogb
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import official_split
from mnagt.errors import InputError

layouts = st.sampled_from([MOLECULES, CODE])


@st.composite
def broken_texts(draw) -> dict[str, bytes]:
    """Some files of a small data set, each broken in one way or more."""
    broken = {field: text.encode() for field, text in draw(layouts).items()}
    for _ in range(draw(st.integers(1, 3))):
        field = draw(st.sampled_from(sorted(broken)))
        if broken[field]:
            broken[field] = draw(draw(st.sampled_from(MUTATIONS))(broken[field]))
    return broken


def assert_consistent_or_refused(path: Path) -> None:
    try:
        dataset = read_ogb(path)
    except InputError as refusal:
        message = str(refusal)
    else:
        assert_consistent(dataset)
        return
    assert message.startswith(str(path))
    assert "\n" not in message


def assert_consistent(dataset: PackedDataset) -> None:
    assert bool((dataset.sizes >= 1).all())
    assert len(dataset.targets) == len(dataset)
    assert dataset.node_labels is not None
    assert dataset.edge_labels is not None
    assert len(dataset.node_labels) == int(dataset.node_ptr[-1]) == len(dataset.in_degree)
    assert len(dataset.edge_labels) == int(dataset.edge_ptr[-1]) == int(dataset.in_degree.sum())
    for kind in ("node_labels", "edge_labels"):
        labels = getattr(dataset, kind)
        for column, count in zip(labels.T, dataset.label_counts[kind], strict=True):
            assert not len(column) or 0 <= int(column.min()) <= int(column.max()) < count
    size_at_edge = dataset.sizes.repeat_interleave(dataset.edge_ptr.diff())
    assert bool(((dataset.source >= 0) & (dataset.source < size_at_edge)).all())
    if dataset.official is not None:
        official_split(dataset.official)


@settings(max_examples=80, deadline=None)
@given(broken=broken_texts(), is_zipped=st.booleans())
def test_broken_text_is_read_consistently_or_refused(broken, is_zipped):
    with tempfile.TemporaryDirectory() as scratch:
        path = folder(Path(scratch) / "small", broken)
        assert_consistent_or_refused(zipped(path, Path(scratch) / "small.zip") if is_zipped else path)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), files=layouts, is_zipped=st.booleans())
def test_a_broken_archive_is_read_consistently_or_refused(data, files, is_zipped):
    with tempfile.TemporaryDirectory() as scratch:
        path = folder(Path(scratch) / "small", files)
        broken = path = zipped(path, Path(scratch) / "small.zip") if is_zipped else path
        if not is_zipped:
            broken = path / f"{data.draw(st.sampled_from(sorted(files)))}.csv.gz"
        content = broken.read_bytes()
        mutation = data.draw(st.sampled_from((flipped, truncated, replaced_by_anything)))
        broken.write_bytes(data.draw(mutation(content)) or b"\0")
        assert_consistent_or_refused(path)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), files=layouts)
def test_missing_files_are_done_without_or_named(data, files):
    with tempfile.TemporaryDirectory() as scratch:
        path = folder(Path(scratch) / "small", files, tuple(data.draw(st.sets(st.sampled_from(sorted(files))))))
        path.mkdir(exist_ok=True)
        assert_consistent_or_refused(path)
