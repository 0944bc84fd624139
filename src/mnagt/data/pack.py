"""From a file of graphs to a data set larger than memory: read once, some graphs at a time."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mnagt.data.jsonl import SUFFIXES, jsonl_parts
from mnagt.data.mapped import open_packed, packed_writer
from mnagt.data.molecule_table import has_any, targets_of
from mnagt.data.named import GraphTable, group_numbers
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.tasks import Task, Unasked

AT_ONCE = 1024
"""Graphs in memory at a time. The first so many say which columns there are, and of what kind."""

_log = logging.getLogger(__name__)


def pack_jsonl(
    path: Path | str,
    folder: Path | str,
    *,
    targets: Sequence[str] | None = None,
    task: str | Task = "auto",
    group: str | None = None,
    block: int | None = None,
) -> PackedDataset:
    """The graphs of a JSONL file as a data set in ``folder``, mapped; ``load_dataset(folder)`` finds it again.

    The outcome is that of reading the file whole (``targets``, ``task`` and ``group`` as in ``load_dataset``), but that
    categories are numbered as they come. Of each graph only its targets, its group and its line stay in memory.
    """
    path = Path(path)
    if not path.name.lower().removesuffix(".gz").endswith(SUFFIXES):
        raise InputError(f"{path}: packed from JSONL only ({', '.join(SUFFIXES)}); from Python, see write_packed")
    columns, names = None, ()
    rows: list[list[str]] = []
    places: list[str] = []
    with packed_writer(Path(folder)) as writer:
        for part in jsonl_parts(path, AT_ONCE):
            if columns is None:
                names = () if isinstance(task, Unasked) else part.table.named_targets(targets, group)
            dataset = (part if columns is None else part.like(columns)).packed(task=Unasked(), columns=columns)
            columns = dataset.columns if columns is None else columns
            kept = list(range(len(dataset)))
            if names:
                kept = np.flatnonzero(has_any(part.table, _there(part.table, names))).tolist()
            table = part.table.taken(kept)
            asked = [*names, *([group] if group else [])]
            cells = [table.column(name) if name in table.columns else [""] * len(kept) for name in asked]
            rows += map(list, zip(*cells, strict=True)) if asked else [[] for _ in kept]
            places += [part.table.places[row] for row in kept]
            writer.add(_only(dataset, kept))
        table = GraphTable(str(path), (*names, *([group] if group else [])), rows, [], tuple(places))
        if not places:
            raise InputError(f"{path}: no graph in it has a target; nothing is left")
        found, answers, _ = targets_of(table, tuple(names), task)
        groups = None if group is None else group_numbers(table, group)
        if task == "auto" and names:
            _log.info("%s: %s taken as %s", path, ", ".join(names), found.kind)
        writer.finish(task=found, targets=answers, groups=groups, block=block)
    return open_packed(folder, check=False)


def _there(table: GraphTable, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in table.columns]


def _only(dataset: PackedDataset, kept: list[int]) -> PackedDataset:
    """These graphs of it."""
    if len(kept) == len(dataset):
        return dataset
    batch = dataset.batch(torch.tensor(kept, dtype=torch.long))
    counted = {"label_counts": dataset.label_counts, "vocabularies": dataset.vocabularies}
    return replace(PackedDataset.from_batch(dataset.name, dataset.task, batch, **counted), columns=dataset.columns)
