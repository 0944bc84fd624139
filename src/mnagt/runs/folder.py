"""Reading the folder of a run: its settings, its data set and its split."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.descriptor_columns import KIND, find_descriptor_columns
from mnagt.data.readers.split_columns import SplitColumn
from mnagt.data.registry import is_molecule_table, load_dataset
from mnagt.data.splits import Split
from mnagt.errors import InputError, quote
from mnagt.files import read_json
from mnagt.graphs.molecules import COMPUTED_DESCRIPTORS
from mnagt.runs.config import RunConfig
from mnagt.runs.fingerprint import dataset_fingerprint, matches_fingerprint
from mnagt.runs.recipes import parse_run_config

RUN, SPLIT, LAST, RESULT = "run.json", "split.json", "last.safetensors", "result.json"
RUNS = "runs.json"
"""In a folder of several runs (``training/several_runs.py``): their kind, number and settings."""


def list_runs(folder: Path) -> list[Path]:
    """The folders of the runs in a folder of several; the folder itself, if it is that of one."""
    if not (folder / RUNS).exists():
        return [folder]
    content = read_json(folder / RUNS)
    names = content.get("runs") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise InputError(f"{folder / RUNS}: damaged or not of several runs; restore it or train again")
    return [folder / name for name in names]


_COLUMN_HOLDS: dict[str, Literal["groups", "times"]] = {"group": "groups", "group-folds": "groups", "time": "times"}
"""What the split column holds, by the kind of the split; else parts."""


def load_run_dataset(config: RunConfig) -> PackedDataset:
    """Load the data set that a run is about."""
    return load_dataset(**dataset_arguments(config))


def dataset_arguments(config: RunConfig) -> dict[str, Any]:
    """What ``load_dataset`` takes to load the data set of a run."""
    config = name_descriptors(config)
    column = config.split.column
    described = [name for name in config.settings.get("descriptors", ()) if name not in COMPUTED_DESCRIPTORS]
    if config.table.descriptor_file and not described:
        raise InputError(
            "--descriptor-file: none of its columns is read; name some with --descriptors, or leave it out"
        )
    return {
        "name_or_path": config.dataset,
        "smiles": config.smiles,
        "targets": config.targets,
        "task": config.task,
        "group": column and SplitColumn(column, _COLUMN_HOLDS.get(config.split.kind, "parts")),
        "columns": {KIND: described} if described else None,
        "options": config.table,
    }


def name_descriptors(config: RunConfig) -> RunConfig:
    """The settings with the names of its columns in place of a table (my.csv) among the model's ``descriptors``."""
    descriptors = list(config.settings.get("descriptors", ()))
    files = [name for name in descriptors if is_molecule_table(name)]
    if not files:
        return config
    if len(files) > 1 or config.table.descriptor_file:
        raise InputError(f"descriptors of one table are read, and there are more ({files[-1]}); join them")
    names = (
        *(name for name in descriptors if name not in files),
        *find_descriptor_columns(Path(files[0]).expanduser(), config.smiles),
    )
    settings, table = config.settings | {"descriptors": names}, replace(config.table, descriptor_file=files[0])
    return replace(config, settings=settings, table=table)


def read_run_config(folder: Path) -> RunConfig:
    """Read the settings of the run in ``folder``."""
    return parse_run_config(_read_field(folder, "config"), str(folder / RUN))


def _read_field(folder: Path, what: str) -> Any:
    if not (folder / RUN).exists() and (folder / RUNS).exists():
        first = list_runs(folder)[0]
        raise InputError(
            f"{folder}: its runs have parts of their own, so there is no test part of them all; the scores of each are "
            f"in {folder / RESULT}; name one run ({first})"
        )
    if not (folder / RUN).exists():
        raise InputError(f"{folder / RUN}: no such file; `mnagt train DATASET --out {folder}` starts a run")
    record = read_json(folder / RUN)
    if not isinstance(record, dict) or what not in record:
        raise InputError(f"{folder / RUN}: no {what!r} in it; it is damaged or not a run's: restore it or train again")
    return record[what]


def read_split(folder: Path, dataset: PackedDataset) -> Split:
    """Read the split of the run in ``folder``; refuse a ``dataset`` that is not the one that the run began on."""
    saved = _read_field(folder, "dataset")
    if not matches_fingerprint(saved, dataset):
        raise InputError(
            f"{folder / RUN}: the run began on {quote(saved, 300)}, and the data set is now "
            f"{dataset_fingerprint(dataset)}; put the old one back"
        )
    try:
        split = Split.from_dict(read_json(folder / SPLIT))
        dataset.sizes[torch.cat([split.train, split.valid, split.test])]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError):
        raise InputError(f"{folder / SPLIT}: damaged or not a split; restore it or train again") from None
    return split


def load_run_split(folder: Path) -> tuple[PackedDataset, Split]:
    """Load the data set of the run in ``folder``, and its split."""
    dataset = load_run_dataset(read_run_config(folder))
    return dataset, read_split(folder, dataset)
