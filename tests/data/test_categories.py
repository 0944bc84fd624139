import pytest
import torch

from mnagt.data.categories import align_categories, category_indices, renumber
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.tasks import Unlabelled


def labelled(labels: list[int], names: tuple[str, ...] | None, dtype: torch.dtype = torch.long) -> PackedDataset:
    """One graph whose nodes have these labels."""
    batch = GraphBatch.from_edges(
        torch.zeros(2, 0, dtype=torch.long),
        [len(labels)],
        node_labels=torch.tensor(labels, dtype=dtype)[:, None],
        targets=torch.zeros(1, 0),
    )
    vocabularies = {} if names is None else {"node_labels/0": names}
    return PackedDataset.from_batch("atoms", Unlabelled(), batch, vocabularies=vocabularies)


def align(dataset: PackedDataset, *names: str, **options) -> list[int]:
    aligned = align_categories(dataset, Features(Columns((len(names),))), {"node_labels/0": names}, **options)
    assert aligned.node_labels is not None
    assert aligned.features == Features(Columns((len(names),))) or aligned is dataset
    return aligned.node_labels[:, 0].tolist()


def test_names_have_their_first_index_or_that_of_unknown():
    assert category_indices(["b", "z", "a"], ["a", "b", "a"]) == [1, -1, 0]
    assert category_indices(["b", "z"], ["b", "__UNK__"]) == [0, 1]


def test_no_category_stays_no_category():
    assert renumber(torch.tensor([0, -1, 1]), [5, 3]).tolist() == [5, -1, 3]


def test_categories_are_numbered_as_the_model_does():
    assert align(labelled([0, 1, -1], ("O", "C")), "C", "N", "O") == [2, 0, -1]


def test_alignment_twice_is_alignment_once():
    features, names = Features(Columns((3,))), {"node_labels/0": ("C", "N", "O")}
    once = align_categories(labelled([0, 1], ("O", "C")), features, names)
    assert align_categories(once, features, names) is once


def test_categories_that_are_numbered_alike_are_left_as_they_are():
    dataset = labelled([0, 1], ("C", "N"))
    assert align_categories(dataset, Features(Columns((3,))), {"node_labels/0": ("C", "N", "O")}) is dataset


def test_a_category_that_the_model_does_not_know_is_refused_or_none():
    dataset = labelled([0, 1], ("C", "Xx"))
    with pytest.raises(InputError, match=r"column 0 \('element'\) of node_labels holds Xx, .* trained on MUTAG"):
        align(dataset, "C", "N", columns={"node_labels": ("element",)}, trained_on="MUTAG")
    assert align(dataset, "C", "N", unknown_as_none=True) == [0, -1]
    assert align(dataset, "N", "__UNK__", "C") == [2, 1]


def test_numbers_without_names_are_compared_with_the_models_count():
    with pytest.raises(InputError, match="column 0 of node_labels holds 2, which the model does not know"):
        align_categories(labelled([0, 3], None), Features(Columns((2,))), {})
    aligned = align_categories(labelled([0, 3, 1], None), Features(Columns((2,))), {}, unknown_as_none=True)
    assert aligned.node_labels is not None
    assert aligned.node_labels[:, 0].tolist() == [0, -1, 1]


def test_a_large_vocabulary_does_not_overflow_small_labels():
    names = [f"word {i}" for i in range(300)]
    assert align(labelled([0, 1], ("word 299", "word 7"), torch.int8), *names) == [299, 7]


def test_graphs_with_other_columns_are_refused():
    with pytest.raises(InputError, match=r"reads 2 categorical and 1 continuous columns of nodes, .* carry 1 and 0"):
        align_categories(labelled([0], None), Features(Columns((2, 2), 1)), {})
