"""Peptides-func, in the layout of its authors."""

import gzip
from pathlib import Path

import pytest
import torch

from mnagt.data.readers.peptides import CLASSES
from mnagt.data.registry import DATASETS, load_dataset
from mnagt.errors import InputError
from mnagt.tasks import MultiLabel

pytest.importorskip("rdkit")
ROWS = [
    "0,NCC(=O)O,G,\"[1, 0, 0, 0, 0, 0, 0, 0, 0, 1]\",4",
    "1,CC(N)C(=O)O,A,\"[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\",7",
    "2,NCC(=O)NCC(=O)O,GG,\"[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]\",9",
    "3,CC(C)C(N)C(=O)O,V,\"[0, 0, 0, 0, 1, 0, 0, 0, 0, 0]\",11",
]  # fmt: skip


def root_with(tmp_path: Path, rows: list[str], **parts: str) -> Path:
    """A data root with these rows and index files."""
    folder = tmp_path / "peptides_func"
    for name in ("raw", "split"):
        (folder / name).mkdir(parents=True)
    text = "\n".join([",smiles,peptide_seq,labels,identifier", *rows, ""])
    (folder / "raw" / "peptide_multi_class_dataset.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name, indices in ({"train": "1\n3\n", "valid": "0\n", "test": "2\n"} | parts).items():
        (folder / "split" / f"{name}.csv").write_text(indices)
    return tmp_path


def test_the_table_is_read_with_its_labels_and_split(tmp_path):
    dataset = load_dataset("peptides-func", root=root_with(tmp_path, ROWS))
    assert dataset.sizes.tolist() == [5, 6, 9, 8]
    assert dataset.task == MultiLabel(CLASSES, metric="ap")
    assert dataset.targets.nonzero().tolist() == [[0, 0], [0, 9], [2, 1], [3, 4]]
    assert dataset.official is not None
    assert dataset.official.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("4,NCC(=O)O,G,\"[1, 0]\",4", "line 6, column 'labels': '\\[1, 0\\]' is no list of 10 labels"),
        ("4,NCC(=O)O,G,\"[2, 0, 0, 0, 0, 0, 0, 0, 0, 1]\",4", "that are 0 or 1"),
        ("4,NCC(=O)O,G,none,4", "'none' is no list"),
        ("4,NCC(=O,G,\"[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\",4", "line 6: .*; official scores are over all peptides"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_named(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        load_dataset("peptides-func", root=root_with(tmp_path, [*ROWS, row]))


def test_an_index_beyond_the_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"test\.csv"):
        load_dataset("peptides-func", root=root_with(tmp_path, ROWS, test="4\n"))


def test_where_it_is_missing_the_message_says_what_to_put_where(tmp_path):
    with pytest.raises(InputError, match=r"put peptide_multi_class_dataset\.csv\.gz .* into .*peptides_func/raw"):
        load_dataset("peptides-func", root=tmp_path)


@pytest.mark.slow
@pytest.mark.real_data
def test_the_real_one_has_the_published_statistics(data_root):
    source, dataset = DATASETS["peptides-func"], load_dataset("peptides-func", root=data_root)
    assert len(dataset) == source.graphs
    assert dataset.sizes.double().mean().item() == pytest.approx(source.mean_nodes, abs=0.0051)
    assert len(dataset.source) / 2 / len(dataset) == pytest.approx(source.mean_edges, abs=0.0051)
    assert dataset.official is not None
    assert torch.bincount(dataset.official).tolist() == [10_873, 2_331, 2_331]
