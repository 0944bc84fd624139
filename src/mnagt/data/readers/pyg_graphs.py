"""Data sets from graphs of PyTorch Geometric: ``Data``, batches, and data sets of them.

A column has the name of its field and its index there: ``x/7``. A range, ``x/0:7``, is a one-hot vector, which is read
as one column of categories. Models keep the names, and so read single graphs as those that they were trained on.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int, Num
from torch import Tensor

from mnagt.data.categories import NO_CATEGORY
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.attribute_columns import EncodedColumns
from mnagt.errors import InputError, join_names
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.pyg_fields import read_fields
from mnagt.tasks import Unlabelled

Names = Mapping[str, Sequence[str]]
Fields = Mapping[str, Num[Tensor, "rows _"]]
"""The fields of nodes or edges that there are."""

_FIELDS = {"node": ("x", "node_labels"), "edge": ("edge_attr", "edge_labels")}


class ReadGraphs(NamedTuple):
    """Graphs in memory as a data set without targets, and the targets that they carry."""

    dataset: PackedDataset
    targets: Sequence[Any] | Tensor | None
    notes: list[str]
    """What was recognised, and what is not read."""


def read_pyg(
    graphs: Any,
    name: str,
    *,
    target: str | None = None,
    of_nodes: bool = False,
    columns: Names | None = None,
    features: Features | None = None,
    vocabularies: Names | None = None,
) -> ReadGraphs:
    """The data set of a graph, a batch or a list of both.

    Args:
        graphs: ``Data`` or ``Batch``.
        name: The name of the data set.
        target: The field that holds the targets; None to read none.
        of_nodes: Whether there is a target for each node.
        columns: The columns to read, by kind ('node_labels', ...); 'x' are all of its columns. None to find out.
        features: The columns that a model reads which has no names for them, as it was trained on other sources.
        vocabularies: The categories of that model.
    """
    fields = read_fields(graphs, name, target, of_nodes=of_nodes)
    for graph in (fields.sizes == 0).nonzero()[:, 0].tolist():
        raise InputError(f"graph {graph} has no nodes; leave it out")
    encoded, notes = {}, []
    for kind, its_fields in _FIELDS.items():
        tensors = {field: column for field in its_fields if (column := fields.columns[field]) is not None}
        names, first_values = columns, {}
        if names is None and features is not None:
            names, first_values = _guess_model_columns(kind, tensors, getattr(features, f"{kind}s"), vocabularies or {})
        if names is None:
            names = _find_columns(kind, tensors)
            one_hot = [each for each in names[f"{kind}_labels"] if ":" in each]
            notes += [f"{join_names(one_hot)} are one-hot and read as categories"] if one_hot else []
        encoded[kind] = _encode(kind, tensors, names, first_values)
    batch = GraphBatch.from_edges(
        fields.edge_index,
        fields.sizes,
        targets=torch.zeros(len(fields.sizes), 0),
        **encoded["node"].tensors,
        **encoded["edge"].tensors,
    )
    dataset = PackedDataset.from_batch(
        name,
        Unlabelled(),
        batch,
        vocabularies={**encoded["node"].vocabularies, **encoded["edge"].vocabularies},
        columns={**encoded["node"].names, **encoded["edge"].names},
    )
    notes += [unread] if (unread := fields.describe_unread()) else []
    return ReadGraphs(dataset, fields.columns["y"], notes)


def find_one_hot(columns: Num[Tensor, "rows columns"]) -> list[range]:
    """Ranges of columns with a single 1 in every row, and 0 in the others. The first column has a 1 in some row.

    >>> find_one_hot(torch.tensor([[0.5, 1, 0, 0, 1], [0.1, 0, 1, 1, 0]]))
    [range(1, 3), range(3, 5)]
    """
    ranges: list[range] = []
    width = columns.shape[1] if len(columns) else 0
    can_be = ((columns == 0) | (columns == 1)).all(dim=0).tolist()
    is_empty = (columns == 0).all(dim=0).tolist()
    start = 0
    while start < width:
        end, total = start, torch.zeros(len(columns))
        while end < width and can_be[end] and not is_empty[start] and not (total == 1).all():
            total = total + columns[:, end]
            end += 1
            if (total > 1).any():
                break
        if end == start or not (total == 1).all():
            start += 1
            continue
        while end < width and is_empty[end]:  # categories that do not occur
            end += 1
        ranges.append(range(start, end))
        start = end
    return ranges


def _find_columns(kind: str, fields: Fields) -> dict[str, list[str]]:
    """Names of the columns of nodes or edges: one-hot vectors and integers are labels, other numbers values."""
    names: dict[str, list[str]] = {f"{kind}_labels": [], f"{kind}_values": []}
    for field, columns in fields.items():
        if not columns.is_floating_point():
            names[f"{kind}_labels"] += [f"{field}/{i}" for i in range(columns.shape[1])]
            continue
        one_hot = find_one_hot(columns)
        names[f"{kind}_labels"] += [f"{field}/{block.start}:{block.stop}" for block in one_hot]
        taken = {i for block in one_hot for i in block}
        names[f"{kind}_values"] += [f"{field}/{i}" for i in range(columns.shape[1]) if i not in taken]
    return names


def _guess_model_columns(
    kind: str, fields: Fields, has: Columns, vocabularies: Names
) -> tuple[dict[str, list[str]] | None, dict[str, int]]:
    """The columns for a model that has no names for them, and which value the first column of a range stands for.

    ``TUDataset`` has attributes first, then a range for each column of labels, from its lowest value to its highest.
    A model of plain numbers reads all columns as such. None where the model fits neither.
    """
    field = _FIELDS[kind][0]
    if list(fields) != [field] or not fields[field].is_floating_point():
        return None, {}
    names, first_values, at = {f"{kind}_values": [f"{field}/{i}" for i in range(has.values)]}, {}, has.values
    for column in range(len(has.labels)):
        categories = vocabularies.get(f"{kind}_labels/{column}", ())
        if not categories or not all(re.fullmatch(r"-?\d+", each) for each in categories):
            return None, {}
        values = [int(each) for each in categories]
        name = f"{field}/{at}:{at + max(values) - min(values) + 1}"
        names.setdefault(f"{kind}_labels", []).append(name)
        first_values[name] = min(values)
        at += max(values) - min(values) + 1
    return (names, first_values) if at == fields[field].shape[1] else (None, {})


def _encode(kind: str, fields: Fields, names: Names, first_values: Mapping[str, int]) -> EncodedColumns:
    """The tensors, categories and names of the columns called ``names`` of nodes or edges."""
    labels, values, vocabularies = {}, {}, {}
    for name in names.get(f"{kind}_labels", ()):
        for each, index in _resolve(kind, fields, name):
            columns = fields[each.partition("/")[0]]
            if ":" not in each:
                labels[each] = columns[:, index[0]].long()
                continue
            labels[each], present = _decode_one_hot(each, columns[:, index])
            first = first_values.get(each)
            field, _, start = each.partition(":")[0].partition("/")
            vocabularies[f"{kind}_labels/{len(labels) - 1}"] = tuple(
                f"{field}/{int(start) + i}" if first is None else str(first + i) for i in present
            )
    for name in names.get(f"{kind}_values", ()):
        for each, index in _resolve(kind, fields, name):
            values[each] = fields[each.partition("/")[0]][:, index[0]].float()
    by_kind = {f"{kind}_labels": labels, f"{kind}_values": values}
    return EncodedColumns(
        {what: torch.stack(list(columns.values()), dim=1) for what, columns in by_kind.items() if columns},
        vocabularies,
        {} if first_values else {what: tuple(columns) for what, columns in by_kind.items() if columns},
    )


def _resolve(kind: str, fields: Fields, name: str) -> list[tuple[str, list[int]]]:
    """The columns that ``name`` stands for, each with its indices in its field."""
    parts = re.fullmatch(r"(\w+)(?:/(\d+)(?::(\d+))?)?", name)
    field, start, end = parts.groups() if parts else ("", None, None)
    width = fields[field].shape[1] if field in fields else 0
    if field in fields and start is None:
        return [(f"{field}/{i}", [i]) for i in range(width)]
    stop = 0 if start is None else int(end or int(start) + 1)
    if not 0 < stop <= width:
        available = ", ".join(f"{each} with {columns.shape[1]} columns" for each, columns in fields.items())
        raise InputError(f"the model reads {name!r} of {kind}s, which is not there; there are: {available or 'none'}")
    return [(name, list(range(int(start or 0), stop)))]


def _decode_one_hot(name: str, block: Num[Tensor, "rows columns"]) -> tuple[Int[Tensor, "rows"], list[int]]:
    """The category of each row, counted among those that occur, and the columns of these. Rows of 0 have none."""
    is_one = block == 1
    is_wrong = (is_one.sum(dim=1) > 1) | ~(is_one | (block == 0)).all(dim=1)
    if is_wrong.any():
        row = int(is_wrong.long().argmax())
        raise InputError(f"{name} is not one-hot in row {row}; the model was trained on graphs where it is")
    present = is_one.any(dim=0)
    index = torch.where(present, present.cumsum(dim=0) - 1, NO_CATEGORY)
    category = torch.where(is_one.any(dim=1), index[is_one.long().argmax(dim=1)] if block.shape[1] else 0, NO_CATEGORY)
    return category, present.nonzero()[:, 0].tolist()
