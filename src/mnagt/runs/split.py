"""The split that the settings of a run describe."""

from dataclasses import replace
from pathlib import Path

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import get_smiles, scaffold_split
from mnagt.data.registry import DATASETS
from mnagt.data.splits import Split, official_split, random_group_split, random_split, read_split, stratified_folds
from mnagt.errors import InputError
from mnagt.runs.config import RunConfig, SplitConfig


def resolve_split_kind(config: RunConfig) -> RunConfig:
    """Replace the split kind 'auto' by the kind it stands for, where the name of the data set tells it."""
    if config.split.kind != "auto" or config.dataset not in DATASETS:
        return config
    kind = "official" if DATASETS[config.dataset].has_official_split else "random"
    return replace(config, split=replace(config.split, kind=kind))


def make_split(config: SplitConfig, dataset: PackedDataset) -> Split:
    """The split that ``config`` describes."""
    kind = config.kind
    if kind == "auto":
        kind = "random" if dataset.official is None else "official"
    match kind:
        case "official":
            if dataset.official is None:
                raise InputError(f"{dataset.name} brings no split of its own; split at random")
            return official_split(dataset.official.cpu())
        case "random":
            return random_split(len(dataset), config.seed)
        case "stratified":
            classes = dataset.task.stratification_classes(dataset.targets)
            if not 0 <= config.fold < config.folds:
                raise InputError(f"split.fold must be 0 to {config.folds - 1}, got {config.fold}")
            return stratified_folds(classes, config.folds, config.seed)[config.fold]
        case "group":
            if dataset.groups is None:
                raise InputError(
                    f"{dataset.name}: a split by groups needs the column that names them: --split-column, or column "
                    "under [split] in a recipe"
                )
            return random_group_split(dataset.groups.cpu(), config.seed)
        case "scaffold":
            return scaffold_split(get_smiles(dataset))
        case "files":
            if config.folder is None:
                raise InputError(
                    "a split from files needs their folder: --split-folder, or folder under [split] in a recipe"
                )
            return read_split(Path(config.folder), len(dataset))
