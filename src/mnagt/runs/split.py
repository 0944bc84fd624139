"""The split that the settings of a run describe. A new kind is a function and a line in ``SPLITS``."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.duplicates import count_duplicates, separate_parts
from mnagt.data.readers.fingerprint_splits import butina_clusters, kennard_stone_order, kmeans_clusters, morgan_bits
from mnagt.data.readers.smiles import find_scaffolds, get_smiles
from mnagt.data.readers.text_table import Table
from mnagt.data.registry import DATASETS, is_molecule_table
from mnagt.data.splits import (
    PARTS,
    Split,
    cut_order,
    group_folds,
    official_split,
    ordered_group_split,
    random_group_split,
    random_split,
    read_split,
    stratified_folds,
)
from mnagt.errors import InputError, count, join_names
from mnagt.graphs.molecules import choose_row_format
from mnagt.runs.config import RunConfig, SplitConfig

FEW_GRAPHS = 50
"""Graphs below which a run warns of what its figures are worth."""
FEW_OF_CLASS = 5
"""Test graphs of a class below which a run warns that scores are uncertain."""
_MAX_LISTED = 5
_BY_STRUCTURE = ("scaffold", "random-scaffold", "scaffold-folds", "butina", "kmeans", "kennard-stone")
"""Splits by the structure of molecules: of the first component, and of the reactants."""


class NamedSplit(NamedTuple):
    """A split, and which it is, in words."""

    split: Split
    name: str


def resolve_split_kind(config: RunConfig) -> RunConfig:
    """Replace the split kind 'auto' by the kind it stands for, where the name of the data set tells it."""
    if config.split.kind != "auto":
        return config
    if config.dataset in DATASETS:
        kind = "official" if DATASETS[config.dataset].has_official_split else "random"
    elif is_molecule_table(config.dataset):
        kind = "official" if config.split.column or config.table.part_files else "scaffold"
    else:
        return config
    return replace(config, split=replace(config.split, kind=kind))


def make_split(config: SplitConfig, dataset: PackedDataset) -> Split:
    """The split that ``config`` describes. Graphs of the same molecule are in one part."""
    return choose_split(config, dataset).split


def choose_split(config: SplitConfig, dataset: PackedDataset) -> NamedSplit:
    """As ``make_split``; also which split it is, in words."""
    row_format = choose_row_format(dataset.features)
    first = " of the reactants" if row_format.is_reaction else ""
    if row_format.components > 1:
        first = " of the first component"
    if config.kind != "auto":
        name = f"{config.kind}{first if config.kind in _BY_STRUCTURE else ''}"
        if config.kind.endswith("-folds"):
            name += f", fold {config.fold} of {config.folds}"
        return NamedSplit(SPLITS[config.kind](config, dataset), name)
    if dataset.official is not None:
        name = "official" if dataset.same_as is None else "given by files"
        name = name if config.column is None else f"given by column {config.column}"
        if not (dataset.official == PARTS.index("valid")).any():
            name += ", validation part taken from training"
        return NamedSplit(_split_official(config, dataset), name)
    if dataset.texts is None:
        return NamedSplit(_split_random(config, dataset), "random (the default)")
    groups = _scaffold_groups(dataset)
    try:
        return NamedSplit(ordered_group_split(groups, config.sizes), f"scaffold{first} (the default for molecules)")
    except InputError:
        return NamedSplit(
            _split_random(config, dataset), "random (the molecules have too few scaffolds to split by them)"
        )


def describe_split(named: NamedSplit, dataset: PackedDataset) -> str:
    """Which split it is, sizes and targets of its parts, and duplicates: a few lines for people.

    >>> from mnagt import load_dataset
    >>> mutag = load_dataset("MUTAG")
    >>> print(describe_split(choose_split(SplitConfig(), mutag), mutag))
    MUTAG: split random (the default)
      train  150  -1: 33 %, 1: 67 %
      valid   19  -1: 32 %, 1: 68 %
      test    19  -1: 37 %, 1: 63 %
    """
    parts = [(name, getattr(named.split, name)) for name in PARTS]
    width = max(len(f"{len(indices):,}") for _, indices in parts)
    lines = [f"{dataset.name}: split {named.name}"]
    for name, indices in parts:
        target = dataset.task.describe_targets(dataset.targets[indices])
        lines.append(f"  {name:5}  {len(indices):>{width},}  {target}".rstrip())
    if dataset.same_as is not None:
        counts = count_duplicates(dataset)
        molecules, conflicts = count(counts.molecules, "molecule"), f"{counts.conflicts:,} with different targets"
        duplicates = f"{molecules} in {counts.rows:,} rows, {conflicts}"
        lines.append(f"  duplicates: {duplicates if counts.molecules else 'none'}")
    return "\n".join(lines)


def describe_absent_classes(split: Split, dataset: PackedDataset) -> list[str]:
    """A line for each part of the split that lacks a class which the data set has, and for few of a class in the test.

    >>> from mnagt import load_dataset
    >>> describe_absent_classes(make_split(SplitConfig(), load_dataset("MUTAG")), load_dataset("MUTAG"))
    []
    """
    task, targets, lines = dataset.task, dataset.targets, []
    counted = task.count_classes(targets)
    present, absent = ([name for name, number in counted.items() if (number > 0) == has] for has in (True, False))
    if absent:
        lines.append(
            f"{dataset.name}: no graph is of class {_list_some(absent)}: nothing is learned there, and scores leave it "
            "out"
        )
    for name, part in zip(PARTS, ("training", "validation", "test"), strict=True):
        counts = task.count_classes(targets[getattr(split, name)])
        if missing := [each for each in present if not counts[each]]:
            effect = "no model can learn it" if name == "train" else "scores on it say little or leave it out"
            lines.append(
                f"{dataset.name}: the {part} part has no graph of class {_list_some(missing)}, so {effect}; choose "
                "another split, such as --split stratified"
            )
        few = [f"{each} ({counts[each]})" for each in present if 0 < counts[each] < FEW_OF_CLASS]
        if few and name == "test" and len(targets) >= FEW_GRAPHS:
            lines.append(
                f"{dataset.name}: the test part has few graphs of class {_list_some(few)}: scores on it are less "
                "certain than their intervals say"
            )
    return lines


def _list_some(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{join_names(names[:_MAX_LISTED])}{more}"


def describe_small_sample(split: Split, dataset: PackedDataset) -> str | None:
    """What a test score is worth where there are few graphs; None where there are ``FEW_GRAPHS`` or more."""
    graphs, tested = sum(len(getattr(split, name)) for name in PARTS), len(split.test)
    if graphs >= FEW_GRAPHS:
        return None
    precision = dataset.task.describe_precision(tested)
    return (
        f"{dataset.name}: {graphs} graphs are few. The test part has {tested}: {precision}. Average over folds "
        "(--folds 5) before you rely on a figure"
    )


def _split_official(config: SplitConfig, dataset: PackedDataset) -> Split:
    if dataset.official is None:
        raise InputError(f"{dataset.name} brings no split of its own; split at random")
    part = dataset.official.cpu()
    if not (part == PARTS.index("valid")).any():
        part = _take_validation(config, dataset, part)
    return official_split(part)


def _take_validation(config: SplitConfig, dataset: PackedDataset, part: Int[Tensor, "graphs"]) -> Int[Tensor, "graphs"]:
    """The parts of a given split that has no validation part, with one taken from training as 'auto' splits."""
    training, sizes = (part == 0).nonzero()[:, 0], config.sizes
    halved = SplitConfig(seed=config.seed, sizes=(sizes[0], sizes[1] / 2, sizes[1] / 2))
    split = make_split(halved, replace(dataset.select(training), official=None))
    return part.index_fill(0, training[torch.cat([split.valid, split.test])], PARTS.index("valid"))


def _split_random(config: SplitConfig, dataset: PackedDataset) -> Split:
    first, unit = _unique_molecules(dataset)
    return _expand(random_split(len(first), config.seed, config.sizes), unit)


def _split_stratified(config: SplitConfig, dataset: PackedDataset) -> Split:
    first, unit = _unique_molecules(dataset)
    classes = dataset.task.stratification_classes(dataset.targets)[first]
    return _expand(_choose_fold(config, lambda *settings: stratified_folds(classes, *settings)), unit)


def _choose_fold(config: SplitConfig, make_folds: Callable[[int, int], list[Split]]) -> Split:
    """The split of ``config.fold``; ``make_folds`` takes the number of folds and the seed."""
    if not 0 <= config.fold < config.folds:
        raise InputError(f"split.fold must be 0 to {config.folds - 1}, got {config.fold}")
    return make_folds(config.folds, config.seed)[config.fold]


def _split_group(config: SplitConfig, dataset: PackedDataset) -> Split:
    return random_group_split(_named_groups(dataset), config.seed, config.sizes)


def _split_group_folds(config: SplitConfig, dataset: PackedDataset) -> Split:
    groups = _named_groups(dataset)
    return _choose_fold(config, lambda *settings: group_folds(groups, *settings))


def _named_groups(dataset: PackedDataset) -> Int[Tensor, "graphs"]:
    """The group that a column names for each graph; groups that share a molecule are one."""
    if dataset.groups is None:
        raise InputError(
            f"{dataset.name}: a split by groups needs the column that names them: --split-column, or column "
            "under [split] in a recipe"
        )
    return _join_groups(dataset.groups.cpu(), dataset.same_as)


def _split_scaffold(config: SplitConfig, dataset: PackedDataset) -> Split:
    return ordered_group_split(_scaffold_groups(dataset), config.sizes)


def _split_random_scaffold(config: SplitConfig, dataset: PackedDataset) -> Split:
    return random_group_split(_number_scaffolds(dataset), config.seed, config.sizes)


def _split_scaffold_folds(config: SplitConfig, dataset: PackedDataset) -> Split:
    groups = _number_scaffolds(dataset)
    return _choose_fold(config, lambda *settings: group_folds(groups, *settings))


def _split_time(config: SplitConfig, dataset: PackedDataset) -> Split:
    """Molecules go by the first time that they occur; graphs of the same time stay in the order of the file."""
    if dataset.groups is None:
        raise InputError(f"{dataset.name}: a split by time needs the column of dates or numbers: --split-column")
    first, unit = _unique_molecules(dataset)
    time = torch.full_like(first, len(dataset)).scatter_reduce(0, unit, dataset.groups.cpu(), "amin")
    return _expand(cut_order(time.argsort(stable=True), config.sizes), unit)


def _split_butina(config: SplitConfig, dataset: PackedDataset) -> Split:
    bits, unit = _unique_bits(dataset)
    return ordered_group_split(butina_clusters(bits, config.cutoff)[unit].tolist(), config.sizes)


def _split_kmeans(config: SplitConfig, dataset: PackedDataset) -> Split:
    bits, unit = _unique_bits(dataset)
    clusters = torch.from_numpy(kmeans_clusters(bits, config.clusters, config.seed))
    return random_group_split(clusters[unit], config.seed, config.sizes)


def _split_kennard_stone(config: SplitConfig, dataset: PackedDataset) -> Split:
    bits, unit = _unique_bits(dataset)
    return _expand(cut_order(torch.from_numpy(kennard_stone_order(bits)), config.sizes), unit)


def _split_files(config: SplitConfig, dataset: PackedDataset) -> Split:
    if config.folder is None:
        raise InputError("a split from files needs their folder: --split-folder, or folder under [split] in a recipe")
    part = read_split(Path(config.folder), len(dataset)).to_parts(len(dataset))
    graphs = Table(config.folder, {}, range(len(dataset)), line_name="graph")
    separated = separate_parts(replace(dataset, official=part), graphs, "keep").official
    assert separated is not None
    return official_split(separated)


def _unique_molecules(dataset: PackedDataset) -> tuple[Int[Tensor, "units"], Int[Tensor, "graphs"]]:
    """The first graph of each molecule, and the number of the molecule of each graph."""
    if dataset.same_as is None:
        return torch.arange(len(dataset)), torch.arange(len(dataset))
    return dataset.same_as.unique(return_inverse=True)


def _unique_bits(dataset: PackedDataset) -> tuple[Float[np.ndarray, "units bits"], Int[Tensor, "graphs"]]:
    """The Morgan fingerprint of each molecule, and the number of the molecule of each graph."""
    (first, unit), smiles = _unique_molecules(dataset), get_smiles(dataset)
    return morgan_bits([smiles[graph] for graph in first.tolist()]), unit


def _expand(split: Split, unit: Int[Tensor, "graphs"]) -> Split:
    """The split of graphs that follows from one of their units."""
    return official_split(split.to_parts(int(unit.max()) + 1)[unit])


def _scaffold_groups(dataset: PackedDataset) -> list[str]:
    """The scaffold of each graph; copies of a molecule have that of the first."""
    (first, unit), smiles = _unique_molecules(dataset), get_smiles(dataset)
    scaffolds = find_scaffolds([smiles[graph] for graph in first.tolist()])
    return [scaffolds[number] for number in unit.tolist()]


def _number_scaffolds(dataset: PackedDataset) -> Int[Tensor, "graphs"]:
    """As ``_scaffold_groups``, as numbers in the order in which scaffolds first occur."""
    number: dict[str, int] = {}
    return torch.tensor([number.setdefault(scaffold, len(number)) for scaffold in _scaffold_groups(dataset)])


def _join_groups(groups: Int[Tensor, "graphs"], same_as: Int[Tensor, "graphs"] | None) -> Int[Tensor, "graphs"]:
    """Groups that share a molecule become one, the one with the lowest number."""
    if same_as is None:
        return groups
    joined = groups
    while True:
        lowest = torch.full_like(joined, int(joined.max())).scatter_reduce(0, same_as, joined, "amin")[same_as]
        of_group = torch.full((int(joined.max()) + 1,), int(joined.max())).scatter_reduce(0, joined, lowest, "amin")
        if torch.equal(of_group[joined], joined):
            return joined
        joined = of_group[joined]


SPLITS: dict[str, Callable[[SplitConfig, PackedDataset], Split]] = {
    "official": _split_official,
    "random": _split_random,
    "stratified": _split_stratified,
    "group": _split_group,
    "group-folds": _split_group_folds,
    "time": _split_time,
    "scaffold": _split_scaffold,
    "random-scaffold": _split_random_scaffold,
    "scaffold-folds": _split_scaffold_folds,
    "butina": _split_butina,
    "kmeans": _split_kmeans,
    "kennard-stone": _split_kennard_stone,
    "files": _split_files,
}
