"""Packs a JSONL file into a memory-mapped data set, some graphs at a time, so that it may be larger than memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mnagt.data.memmap import open_packed, packed_writer
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.attributed_graphs import GraphTable, encode_groups
from mnagt.data.readers.jsonl import SUFFIXES, iterate_jsonl
from mnagt.data.readers.text_table import has_any_target, read_targets
from mnagt.errors import InputError
from mnagt.tasks import Task, Unlabelled

GRAPHS_AT_ONCE = 1024
"""Graphs in memory at a time. The first so many decide which columns there are, and of what kind."""


def pack_jsonl(
    path: Path | str,
    folder: Path | str,
    *,
    targets: Sequence[str] | None = None,
    task: str | Task = "auto",
    group: str | None = None,
    block: int | None = None,
) -> PackedDataset:
    """The graphs of a JSONL file as a memory-mapped data set in ``folder``; ``load_dataset(folder)`` opens it again.

    The result is that of ``load_dataset`` with the same ``targets``, ``task`` and ``group``, except that categories are
    numbered in order of appearance. Of each graph only its targets, its group and its line stay in memory.
    """
    path = Path(path)
    if not path.name.lower().removesuffix(".gz").endswith(SUFFIXES):
        raise InputError(f"{path}: packed from JSONL only ({', '.join(SUFFIXES)}); from Python, see write_packed")
    columns, names = None, ()
    kept: dict[str, list[str]] = {}
    locations: list[str] = []
    with packed_writer(Path(folder)) as writer:
        for part in iterate_jsonl(path, GRAPHS_AT_ONCE):
            dataset = part.pack(task=Unlabelled(), columns=columns, is_continued=columns is not None)
            if columns is None:
                columns = dataset.columns
                targets = targets if isinstance(task, str) else task.target_columns(targets)
                names = part.table.find_targets(targets, group)
                kept = {name: [] for name in (*names, *([group] if group else []))}
            rows = range(len(dataset))
            if names:
                present = [name for name in names if name in part.table.columns]
                rows = np.flatnonzero(has_any_target(part.table, present)).tolist()
            for name, texts in kept.items():
                column = part.table.columns.get(name)
                texts += [""] * len(rows) if column is None else [column[row] for row in rows]
            locations += [part.table.locations[row] for row in rows]
            writer.add(dataset if len(rows) == len(dataset) else dataset.select(torch.tensor(rows, dtype=torch.long)))
        if not locations:
            raise InputError(f"{path}: no graph in it has a target; nothing is left")
        table = GraphTable(str(path), dict(kept), range(len(locations)), locations=locations)
        parsed_task, target, _ = read_targets(table, names, task)
        groups = None if group is None else encode_groups(table, group)
        writer.finish(task=parsed_task, targets=target, groups=groups, block=block)
    return open_packed(folder, check=False)
