"""Defaults that follow the data, where neither a recipe nor the user sets them."""

import gzip
import math
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import guess_format
from mnagt.data.readers.text_table import find_level, parse_table
from mnagt.data.registry import is_molecule_table
from mnagt.data.splits import Split
from mnagt.errors import InputError, join_names
from mnagt.models.mnagt import MnagtNetworkConfig
from mnagt.models.mnagt_ensemble import MnagtEnsembleConfig
from mnagt.models.registry import MODELS
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.folder import read_run_config

SMALL = 4096
"""Training graphs from which on all defaults are those of the settings."""

ENSEMBLE, ENSEMBLE_EPOCHS = "mnagt-ensemble", 30
_OF_NETWORKS = ("lr", "weight_decay", "schedule", "warmup", "clip", "patience", "selection_window", "ema_decay")
"""Settings of a training by gradients, which fits of scikit-learn do not read."""
_FIRST_LINES = 10
"""Lines of a table that tell whether it is one of reactions."""


def default_model(
    dataset: str, source: Path | str | None = None, smiles: str | None = None, task: str | None = None
) -> str:
    """The model that is trained where none is named: that of the run ``source`` whose weights it starts from, else
    ``mnagt-ensemble`` for tables of molecules and ``mnagt`` for other data, reactions in the column ``smiles`` and
    targets of atoms and bonds (``task``) among them.

    >>> default_model("MUTAG"), default_model("my.csv")
    ('mnagt', 'mnagt-ensemble')
    """
    if source is not None:
        with suppress(InputError):  # a folder without settings of a run, or none: loading its model tells
            return read_run_config(Path(source).expanduser()).model
    has_molecules = (
        is_molecule_table(dataset)
        and find_level(task or "auto") == "graph"
        and not _has_reactions(Path(dataset).expanduser(), smiles)
    )
    return ENSEMBLE if has_molecules and source is None else RunConfig.model


def _has_reactions(path: Path, smiles: str | None) -> bool:
    """Whether the first rows of a table have reactions for SMILES. What cannot be read has none; reading it tells."""
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    with suppress(OSError, EOFError, UnicodeDecodeError, InputError):
        with opener(path, "rt", encoding="utf-8-sig") as file:
            table = parse_table(path, "".join(islice(file, _FIRST_LINES)))
        return guess_format(table.read_rows(table.find_smiles_columns(smiles))).is_reaction
    return False


def defaults_by_size(graphs: int) -> dict[str, int]:
    """The defaults for so many training graphs.

    Below 4,096 training graphs: batches of n / 16 graphs, rounded to a power of two, at least 32. From there on: the
    defaults of the settings.

    >>> defaults_by_size(1200)
    {'batch_size': 64}
    """
    if graphs >= SMALL:
        return {}
    power = round(math.log2(max(graphs, 1)))
    return {"batch_size": 2 ** max(5, power - 4)}


def describe_idle_settings(config: RunConfig) -> list[str]:
    """A line for settings of the training that do nothing, or not what they are for, with the model of ``config``.

    >>> describe_idle_settings(RunConfig("MUTAG", "wl-linear", {}, TrainConfig(patience=3)))
    ['wl-linear is fitted by scikit-learn: patience has no effect on it']
    """
    lines, idle = [], [name for name in _OF_NETWORKS if getattr(config.train, name) != getattr(TrainConfig, name)]
    if idle and MODELS[config.model].is_fitted_by_sklearn:
        has = "has" if len(idle) == 1 else "have"
        lines.append(f"{config.model} is fitted by scikit-learn: {join_names(idle)} {has} no effect on it")
    if config.train.freeze == "encoder" and config.train.init_from is None:
        lines.append("the encoder stays at random weights: --freeze encoder is for one that is trained (--from FOLDER)")
    return lines


def resolve_defaults(config: RunConfig, dataset: PackedDataset, split: Split) -> RunConfig:
    """The settings with those named in ``config.by_data`` set for these graphs.

    The batch size of ``mnagt``, ``mnagt-wl`` and ``mnagt-ensemble`` follows the number of training graphs; other models
    keep their own. The last has 30 epochs. In tables of molecules with two classes, ROC-AUC chooses the epoch, where
    both are in the validation part.
    """
    if not config.by_data:
        return config
    values: dict[str, Any] = {}
    if "rocauc" in dataset.task.metric_names and is_molecule_table(config.dataset) and dataset.task.class_names:
        has_all = all(dataset.task.count_classes(dataset.targets[split.valid]).values())
        values = {"metric": "rocauc"} if has_all else {}
    if issubclass(MODELS[config.model].config, MnagtNetworkConfig):
        values |= defaults_by_size(len(split.train))
    if issubclass(MODELS[config.model].config, MnagtEnsembleConfig):
        values["epochs"] = ENSEMBLE_EPOCHS
    values = {name: value for name, value in values.items() if name in config.by_data}
    return replace(config, train=replace(config.train, **values), by_data=())
