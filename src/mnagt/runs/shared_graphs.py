"""Graphs that a run has seen in training: scores on them are too good."""

import logging
from contextlib import suppress
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import find_duplicates, get_smiles
from mnagt.errors import InputError, count
from mnagt.runs.folder import list_runs, load_run_split, read_split

_log = logging.getLogger(__name__)


def find_seen(folder: Path, dataset: PackedDataset, graphs: Int[Tensor, "some"]) -> Bool[Tensor, "some"]:
    """Which of the graphs were in training or validation of the run, or of one of the runs, in ``folder``.

    Molecules are compared by canonical SMILES after salts, other graphs only within the same data set.
    """
    return torch.stack([_find_seen_by_run(run, dataset, graphs) for run in list_runs(folder)]).any(dim=0)


def _find_seen_by_run(folder: Path, dataset: PackedDataset, graphs: Int[Tensor, "some"]) -> Bool[Tensor, "some"]:
    with suppress(InputError):  # where it was on the same data set
        other = read_split(folder, dataset)
        return torch.isin(graphs, torch.cat([other.train, other.valid]))
    trained, other = load_run_split(folder)
    if dataset.texts is None or trained.texts is None:
        raise InputError("of different data sets only molecules are compared; see to it that no graph is in both")
    smiles = get_smiles(trained.select(torch.cat([other.train, other.valid])))
    first = find_duplicates([*smiles, *get_smiles(dataset.select(graphs))])
    return first[len(smiles) :] < len(smiles)


def warn_of_seen(folder: Path, dataset: PackedDataset) -> None:
    """Warn if the model in ``folder`` has seen graphs of another data set in training, or if this is not known."""
    try:
        number = int(find_seen(folder, dataset, torch.arange(len(dataset))).sum())
    except InputError as error:
        _log.info("whether %s was trained on graphs of %s is not known: %s", folder, dataset.name, error)
        return
    if number:
        _log.warning(
            "%s of the %s of %s were in training or validation of %s: these scores are too good; leave them out",
            *(count(number, "graph"), f"{len(dataset):,}", dataset.name, folder),
        )
