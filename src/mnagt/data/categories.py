"""Categories by name: the labels of a data set, renumbered as a model or another data set numbers them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.tasks import UNKNOWN

NO_CATEGORY = -1
"""The label of a node or edge without a category."""


def category_indices(names: Iterable[Any], vocabulary: Sequence[Any]) -> list[int]:
    """The first index of each name in ``vocabulary``; for others that of ``UNKNOWN``, or -1 where that is missing.

    >>> category_indices(["b", "z"], ["a", "b"])
    [1, -1]
    """
    index = {name: number for number, name in reversed(list(enumerate(vocabulary)))}
    unknown = index.get(UNKNOWN, NO_CATEGORY)
    return [index.get(name, unknown) for name in names]


def renumber(labels: Int[Tensor, "rows"], indices: Sequence[int]) -> Int[Tensor, "rows"]:
    """``indices[label]`` for each label; -1 stays -1."""
    return torch.tensor([*indices, NO_CATEGORY], device=labels.device).to(labels.dtype)[labels.long()]


def align_categories(
    dataset: PackedDataset,
    features: Features,
    vocabularies: Mapping[str, Sequence[str]],
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    trained_on: str = "other graphs",
    unknown_as_none: bool = False,
) -> PackedDataset:
    """The data set with its categories numbered as a model numbers them, and its columns checked.

    Two files may number the same categories differently, since each may lack some. Categories are matched by name where
    both ``dataset.vocabularies`` and the model's ``vocabularies`` ('node_labels/0', ...) have names.

    Args:
        dataset: the graphs.
        features: the columns that the model reads, with their numbers of categories.
        vocabularies: the model's categories by column, in its order.
        columns: names of the columns by kind, for messages.
        trained_on: the model's data set, for messages.
        unknown_as_none: read categories that the model does not know as none (-1) instead of refusing them. Where the
            model's vocabulary has ``UNKNOWN``, they are read as that in either case.
    """
    _check_columns(dataset, features, trained_on)
    counts = {"node_labels": features.nodes.labels, "edge_labels": features.edges.labels}
    changed: dict[str, Tensor] = {}
    columns_of_model = [(kind, column) for kind, widths in counts.items() for column in range(len(widths))]
    for kind, column in columns_of_model:
        labels: Tensor | None = getattr(dataset, kind)
        if labels is None:
            continue
        key = f"{kind}/{column}"
        names, model_names = dataset.vocabularies.get(key, ()), vocabularies.get(key, ())
        if not (names and model_names):  # matched by number
            names = tuple(map(str, range(dataset.label_counts.get(kind, counts[kind])[column])))
            model_names = tuple(map(str, range(counts[kind][column])))
        if list(names) == list(model_names[: len(names)]):
            continue
        indices = category_indices(names, model_names)
        if NO_CATEGORY in indices and not unknown_as_none:
            title = f" ({columns[kind][column]!r})" if columns and kind in columns else ""
            raise InputError(
                f"{dataset.name}: column {column}{title} of {kind} holds {names[indices.index(NO_CATEGORY)]}, which "
                f"the model does not know; it was trained on {trained_on}"
            )
        if kind not in changed:
            fits = max(counts[kind]) - 1 <= torch.iinfo(labels.dtype).max
            changed[kind] = labels.clone() if fits else labels.int()
        changed[kind][:, column] = renumber(changed[kind][:, column], indices)
    if not changed:
        return dataset
    return replace(
        dataset,
        **changed,
        label_counts={**dataset.label_counts, **{kind: counts[kind] for kind in changed}},
        vocabularies={**dataset.vocabularies, **{key: tuple(names) for key, names in vocabularies.items()}},
    )


def _check_columns(dataset: PackedDataset, features: Features, trained_on: str) -> None:
    """Refuse graphs that have other numbers of columns than the model reads."""
    for kind in ("nodes", "edges"):
        has, reads = getattr(dataset.features, kind), getattr(features, kind)
        if has.values != reads.values or len(has.labels) != len(reads.labels):
            raise InputError(
                f"{dataset.name}: the model reads {len(reads.labels)} categorical and {reads.values} continuous "
                f"columns of {kind}, and these graphs carry {len(has.labels)} and {has.values}; "
                f"it was trained on {trained_on}"
            )
