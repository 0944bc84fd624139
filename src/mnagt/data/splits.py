"""Splits into training, validation and test parts. Each random split has a generator of its own."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.archives import MAX_PARSED_BYTES, Archive
from mnagt.data.readers.number_tables import INTEGERS, check_range, parse_table
from mnagt.errors import InputError

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Graph indices of the three parts, sorted; no part is empty, and no graph is in two.

    >>> Split(torch.tensor([3, 0]), torch.tensor([1]), torch.tensor([2])).to_dict()
    {'train': [0, 3], 'valid': [1], 'test': [2]}
    """

    train: Int[Tensor, "_"]
    valid: Int[Tensor, "_"]
    test: Int[Tensor, "_"]

    def __post_init__(self) -> None:
        indices = torch.cat([self.train, self.valid, self.test])
        if len(indices) and int(indices.min()) < 0:
            raise InputError(f"the split has graph {int(indices.min())}; graphs count from 0")
        if len(indices.unique()) != len(indices):
            raise InputError("a graph is twice in the split; each graph may be once in one of train, valid and test")
        for name in PARTS:
            object.__setattr__(self, name, getattr(self, name).sort().values)
            if len(getattr(self, name)) == 0:
                raise InputError(
                    f"the split's {name} part is empty; {len(indices)} graphs are too few or shares too small"
                )

    def to_parts(self, graphs: int) -> Int[Tensor, "graphs"]:
        """The number of the part of each graph, -1 for none: the inverse of ``official_split``."""
        part = torch.full((graphs,), -1)
        for number, name in enumerate(PARTS):
            part[getattr(self, name)] = number
        return part

    def to_dict(self) -> dict[str, list[int]]:
        return {name: getattr(self, name).tolist() for name in PARTS}

    @classmethod
    def from_dict(cls, parts: dict[str, list[int]]) -> "Split":
        return cls(*(torch.tensor(parts[name], dtype=torch.long) for name in PARTS))


def keep_share(split: Split, share: float, seed: int) -> Split:
    """The split with a share of its training graphs, drawn at random; a smaller share of one seed lies in a larger one.

    >>> split = Split(torch.arange(8), torch.tensor([8]), torch.tensor([9]))
    >>> len(keep_share(split, 0.25, seed=0).train)
    2
    """
    if share == 1:
        return split
    order = torch.randperm(len(split.train), generator=torch.Generator().manual_seed(seed))
    return replace(split, train=split.train[order[: max(1, round(share * len(order)))]])


class TrainValidSplit(Split):
    """Training and validation graphs, which may overlap, without a test part: for estimators, whose users test."""

    def __post_init__(self) -> None:
        """Nothing is checked."""


def random_split(graphs: int, seed: int, shares: Sequence[float] = (0.8, 0.1, 0.1)) -> Split:
    """A shuffled split.

    Args:
        graphs: The number of graphs.
        seed: Seed of the shuffle.
        shares: Shares of training, validation and test part (the paper: 8:1:1).

    >>> len(random_split(188, seed=0).test)
    19
    """
    return cut_order(torch.randperm(graphs, generator=_generator(seed)), shares)


def cut_order(order: Int[Tensor, "graphs"], shares: Sequence[float] = (0.8, 0.1, 0.1)) -> Split:
    """The first graphs of ``order`` train, the next validate, the last test.

    >>> cut_order(torch.arange(10), (6, 2, 2)).to_dict()
    {'train': [0, 1, 2, 3, 4, 5], 'valid': [6, 7], 'test': [8, 9]}
    """
    valid, test = (round(len(order) * share / sum(shares)) for share in shares[1:])
    return Split(*order.split([len(order) - valid - test, valid, test]))


def stratified_folds(labels: Int[Tensor, "graphs"], folds: int, seed: int) -> list[Split]:
    """Splits for stratified cross-validation: split i tests on fold i and validates on fold i + 1.

    Args:
        labels: The class of each graph.
        folds: The number of folds.
        seed: Seed of the shuffle.

    >>> import torch
    >>> [split.test.tolist() for split in stratified_folds(torch.tensor([0, 0, 0, 1, 1, 1]), 3, seed=0)]
    [[..., ...], [..., ...], [..., ...]]
    """
    if not 3 <= folds <= len(labels):
        raise InputError(f"folds must be between 3 (to train, validate and test) and {len(labels)}, got {folds}")
    generator = _generator(seed)
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    fold = torch.empty_like(labels)
    fold[by_class] = torch.arange(len(labels)) % folds
    return _splits_by_fold(fold, folds)


def group_folds(groups: Int[Tensor, "graphs"], folds: int, seed: int) -> list[Split]:
    """Splits for cross-validation that keep graphs of a group together: split i tests on fold i, validates on i + 1.

    Groups, shuffled with ``seed``, go by their size, the largest first, each to the smallest fold so far.

    >>> groups = torch.tensor([0, 0, 0, 1, 1, 2, 3])
    >>> [split.test.tolist() for split in group_folds(groups, 3, seed=0)]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    sizes = torch.bincount(groups)
    order = torch.randperm(len(sizes), generator=_generator(seed))
    order = order[sizes[order].argsort(descending=True, stable=True)]
    most = int((sizes > 0).sum())
    if not 3 <= folds <= most:
        raise InputError(
            f"folds must be between 3 (to train, validate and test) and the number of groups, {most}, got {folds}"
        )
    fold_of_group, filled = torch.zeros_like(sizes), [0] * folds
    for group, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        smallest = filled.index(min(filled))
        fold_of_group[group] = smallest
        filled[smallest] += size
    return _splits_by_fold(fold_of_group[groups], folds)


def _splits_by_fold(fold: Int[Tensor, "graphs"], folds: int) -> list[Split]:
    """Split i tests on the graphs of fold i and validates on those of the next."""
    part_of_fold = torch.tensor([2, 1] + [0] * (folds - 2))
    return [official_split(part_of_fold[(fold - i) % folds]) for i in range(folds)]


def official_split(part: Int[Tensor, "graphs"]) -> Split:
    """The split that comes with a data set: ``part`` is 0 for train, 1 for valid, 2 for test, and -1 for none."""
    return Split(*((part == number).nonzero()[:, 0] for number in range(len(PARTS))))


def ordered_group_split(groups: Sequence[Hashable], shares: Sequence[float] = (0.8, 0.1, 0.1)) -> Split:
    """A deterministic split that keeps graphs of a group together; ``groups`` has one entry for each graph.

    DeepChem's rule for scaffolds: the largest groups go first (of equal ones, those that begin last), each into the
    first of train, valid and test with enough space. The test part gets the rarest groups.
    """
    members: dict[Hashable, list[int]] = {}
    for graph, group in enumerate(groups):
        members.setdefault(group, []).append(graph)
    train, valid, test = [], [], []
    max_train = len(groups) * shares[0] / sum(shares)
    max_train_valid = len(groups) * (shares[0] + shares[1]) / sum(shares)
    for graphs in sorted(members.values(), key=lambda graphs: (len(graphs), graphs[0]), reverse=True):
        if len(train) + len(graphs) <= max_train:
            train += graphs
        elif len(train) + len(valid) + len(graphs) <= max_train_valid:
            valid += graphs
        else:
            test += graphs
    return Split(*(torch.tensor(part, dtype=torch.long) for part in (train, valid, test)))


def random_group_split(groups: Int[Tensor, "graphs"], seed: int, shares: Sequence[float] = (0.8, 0.1, 0.1)) -> Split:
    """A random split that keeps graphs of a group together.

    Groups are shuffled with ``seed``. Test, then valid, take those that fit into their share, or the smallest one if
    none fits. The rest train.
    """
    sizes = torch.bincount(groups).tolist()
    order = [group for group in torch.randperm(len(sizes), generator=_generator(seed)).tolist() if sizes[group]]
    part = [0] * len(sizes)
    for number in (2, 1):
        remaining, chosen = [group for group in order if part[group] == 0], []
        space = len(groups) * shares[number] / sum(shares)
        for group in remaining:
            if sizes[group] <= space:
                chosen.append(group)
                space -= sizes[group]
        for group in chosen or sorted(remaining, key=sizes.__getitem__)[:1]:
            part[group] = number
    return official_split(torch.tensor(part)[groups])


def read_split(folder: Path, graphs: int) -> Split:
    """``train``, ``valid`` and ``test`` as ``.csv.gz``, ``.csv`` or ``.txt`` in ``folder``: one graph index a line."""
    parts = []
    for name in PARTS:
        files = [f"{name}{suffix}" for suffix in (".csv.gz", ".csv", ".txt")]
        path = next((path for file in files if (path := folder / file).exists()), None)
        if path is None:
            raise InputError(f"{folder}: no {', '.join(files[:2])} or {files[2]}; a split needs train, valid and test")
        indices = parse_table(Archive(folder).read_blocks(path.name, MAX_PARSED_BYTES), str(path), INTEGERS, 1)[:, 0]
        check_range(str(path), indices, graphs, "graph")
        parts.append(torch.from_numpy(indices.astype(np.int64)))
    return Split(*parts)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
