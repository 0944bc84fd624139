"""Rows of a table that hold the same molecule: found, reported with their lines, and merged."""

import logging
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import SEPARATOR, get_smiles
from mnagt.data.readers.split_columns import NO_PART
from mnagt.data.readers.text_table import Table
from mnagt.data.splits import PARTS
from mnagt.errors import InputError, count

_MAX_LISTED, _MAX_SMILES = 5, 40
"""Molecules that a message names one by one, and characters of a SMILES in it."""
_DONE = {
    "keep": "all rows are kept (--duplicates average, drop or error does otherwise)",
    "average": "their targets are averaged, for classes the majority is taken",
    "drop": "one row of each is kept",
}

_log = logging.getLogger(__name__)


class DuplicateCounts(NamedTuple):
    """How many molecules are there more than once, in how many rows, and how many of them have different targets."""

    molecules: int
    rows: int
    conflicts: int


def count_duplicates(dataset: PackedDataset) -> DuplicateCounts:
    """The duplicates of a data set; all zero where it was not searched for them."""
    if dataset.same_as is None:
        return DuplicateCounts(0, 0, 0)
    copies = torch.bincount(dataset.same_as, minlength=len(dataset))
    conflicts = int(has_conflict(dataset).sum())
    return DuplicateCounts(int((copies > 1).sum()), int(copies[copies > 1].sum()), conflicts)


def has_conflict(dataset: PackedDataset) -> Bool[Tensor, "graphs"]:
    """Which graphs are the first of several copies with different targets; missing targets differ from none."""
    dataset = replace(dataset, targets=dataset.task.comparable_targets(dataset.targets))
    assert dataset.same_as is not None
    target = dataset.targets.double().reshape(len(dataset), -1).where(~_is_missing(dataset), torch.nan)
    index = dataset.same_as[:, None].expand_as(target)

    def reduce(fill: float, how: str) -> Float[Tensor, "graphs columns"]:
        return torch.full_like(target, fill).scatter_reduce(0, index, target.nan_to_num(nan=fill), how)

    return (reduce(-torch.inf, "amax") > reduce(torch.inf, "amin")).any(dim=1)


class Resolved(NamedTuple):
    """A data set without the graphs that were merged or left out, and which are kept."""

    dataset: PackedDataset
    kept: Int[Tensor, "some"]


def _is_missing(dataset: PackedDataset) -> Bool[Tensor, "graphs columns"]:
    target = dataset.targets.reshape(len(dataset), -1)
    return target.isnan() | (target == dataset.task.missing_target)


def resolve_duplicates(dataset: PackedDataset, table: Table, duplicates: str) -> Resolved:
    """The data set with duplicates treated as ``TableConfig.duplicates`` says; they are reported with their lines.

    ``table`` has the row of each graph.
    """
    counts, same_as, every = count_duplicates(dataset), dataset.same_as, torch.arange(len(dataset))
    if same_as is None or not counts.molecules:
        return Resolved(dataset, every)
    report = f"{table.label}: {count(counts.molecules, 'molecule')} found more than once, in {counts.rows:,} rows"
    if duplicates == "error":
        is_copied = torch.bincount(same_as, minlength=len(dataset)) > 1
        raise InputError(f"{report}: {list_copies(dataset, table, is_copied)}; remove them, or leave out --duplicates")
    is_conflict, is_first = has_conflict(dataset), same_as == every
    done = _DONE[duplicates]
    if counts.conflicts:
        left_out = ", which are left out" if duplicates == "drop" else ""
        done += f"; targets differ for {counts.conflicts:,}{left_out}: {list_copies(dataset, table, is_conflict)}"
    _log.warning("%s; %s", report, done)
    if duplicates == "keep":
        return Resolved(dataset, every)
    if duplicates == "average":
        merged = dataset.task.merge_targets(dataset.targets, (is_first.cumsum(dim=0) - 1)[same_as])
        dataset = replace(dataset, targets=dataset.targets.index_copy(0, is_first.nonzero()[:, 0], merged))
        if (weights := dataset.row_weights) is not None:
            mean = weights.scatter_reduce(0, same_as, weights, "mean", include_self=False)
            dataset = replace(dataset, row_weights=mean)
        is_kept = is_first & ~_is_missing(dataset).all(dim=1)
        if ties := int((is_first & ~is_kept).sum()):
            _log.warning("%s: left out for want of a majority: %s", table.label, count(ties, "molecule"))
    else:
        is_kept = is_first & ~is_conflict
    indices = is_kept.nonzero()[:, 0]
    return Resolved(dataset.select(indices), indices)


def list_copies(dataset: PackedDataset, table: Table, is_listed: Bool[Tensor, "graphs"]) -> str:
    """The lines and SMILES of the molecules whose first copies are listed, as a message names them."""
    assert dataset.same_as is not None
    smiles, listed = get_smiles(dataset), []
    first = is_listed.nonzero()[:, 0].tolist()
    for graph in first[:_MAX_LISTED]:
        copies = (dataset.same_as == graph).nonzero()[:, 0].tolist()
        lines = [table.name_line(copy) for copy in copies[:_MAX_LISTED]]
        lines += ["..."] * (len(copies) > _MAX_LISTED)
        listed.append(f"{table.line_name}s {', '.join(lines[:-1])} and {lines[-1]} ({_shorten(smiles[graph])})")
    if len(first) > _MAX_LISTED:
        listed.append(f"and {len(first) - _MAX_LISTED:,} more")
    return "; ".join(listed)


def _shorten(smiles: str) -> str:
    """A SMILES as messages show it."""
    smiles = smiles.replace(SEPARATOR, ", ")
    return smiles if len(smiles) <= _MAX_SMILES else f"{smiles[:_MAX_SMILES]}..."


def separate_parts(dataset: PackedDataset, table: Table, duplicates: str) -> PackedDataset:
    """The data set with each molecule in one part of its given split (``dataset.official``), the last that has it.

    Of molecules in two parts, test before validation before training, the copies in the other parts are in none; those
    that are about to be merged are all in the last. They are reported; for 'error' they are an error.
    """
    part, same_as = dataset.official, dataset.same_as
    if part is None or same_as is None:
        return dataset
    last = torch.full_like(part, NO_PART).scatter_reduce(0, same_as, part, "amax")[same_as]
    is_early = (part >= 0) & (part < last)
    if not is_early.any():
        return dataset
    shared = torch.zeros(len(dataset), dtype=torch.bool).index_fill_(0, same_as[is_early], True)
    report = (
        f"{table.label}: two parts of the given split share {count(int(shared.sum()), 'molecule')}: "
        f"{list_copies(dataset, table, shared)}"
    )
    if duplicates == "error":
        raise InputError(f"{report}; remove them from {PARTS[1]} and {PARTS[2]}")
    if duplicates == "keep":
        rows = count(int(is_early.sum()), "row")
        message = "%s; %s of them left out of training or validation, so that no tested molecule is trained on"
        _log.warning(message, report, rows)
        return replace(dataset, official=part.where(~is_early, NO_PART))
    _log.warning("%s; each goes to the last part that has it", report)
    return replace(dataset, official=last)
