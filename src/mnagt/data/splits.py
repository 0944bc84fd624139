"""Which graphs train, which choose, which judge. Every split draws from a generator of its own."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.archives import LARGEST_TOLD, Archive
from mnagt.errors import InputError, shown

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Graph indices of the three parts, sorted, none in two of them."""

    train: Int[Tensor, "_"]
    valid: Int[Tensor, "_"]
    test: Int[Tensor, "_"]

    def __post_init__(self) -> None:
        together = torch.cat([self.train, self.valid, self.test])
        if len(together.unique()) != len(together):
            raise InputError("a graph is twice in the split; each graph may be once in one of train, valid and test")
        for name in PARTS:
            object.__setattr__(self, name, getattr(self, name).sort().values)
            if len(getattr(self, name)) == 0:
                raise InputError(
                    f"the split's {name} part is empty; {len(together)} graphs are too few or shares too small"
                )

    def to_dict(self) -> dict[str, list[int]]:
        return {name: getattr(self, name).tolist() for name in PARTS}

    @classmethod
    def from_dict(cls, parts: dict[str, list[int]]) -> "Split":
        return cls(*(torch.tensor(parts[name], dtype=torch.long) for name in PARTS))


class Unjudged(Split):
    """Graphs that train and graphs that are watched, which may be the same; scores are for others to find."""

    def __post_init__(self) -> None:
        """Anything goes."""


def random_split(graphs: int, seed: int, shares: tuple[float, float, float] = (0.8, 0.1, 0.1)) -> Split:
    """Shuffle, then cut by ``shares`` (the paper: 8:1:1)."""
    order = torch.randperm(graphs, generator=_generator(seed))
    total = sum(shares)
    valid, test = round(graphs * shares[1] / total), round(graphs * shares[2] / total)
    return Split(*order.split([graphs - valid - test, valid, test]))


def stratified_folds(labels: Int[Tensor, "graphs"], folds: int, seed: int) -> list[Split]:
    """Each fold tests once, with the classes in proportion; the next fold is its validation part, the rest train."""
    if not 3 <= folds <= len(labels):
        raise InputError(f"folds must be between 3 (one each to train, choose, judge) and {len(labels)}, got {folds}")
    generator = _generator(seed)
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    fold = torch.empty_like(labels)
    fold[by_class] = torch.arange(len(labels)) % folds
    return [
        Split(
            ((fold != i) & (fold != (i + 1) % folds)).nonzero()[:, 0],
            (fold == (i + 1) % folds).nonzero()[:, 0],
            (fold == i).nonzero()[:, 0],
        )
        for i in range(folds)
    ]


def official_split(part: Int[Tensor, "graphs"]) -> Split:
    """The split that a data set brings: ``part`` is 0 for train, 1 for valid, 2 for test, and -1 for none."""
    return Split(*((part == number).nonzero()[:, 0] for number in range(len(PARTS))))


def grouped_split(groups: Sequence[Hashable], shares: tuple[float, float, float] = (0.8, 0.1, 0.1)) -> Split:
    """Graphs of a group stay together, whatever the seed; ``groups`` has one for each graph.

    DeepChem's rule for scaffolds: the largest groups go first (of equal ones, those that begin last), each into the
    first of train, valid and test that has room for it. What is rare and odd is left for the test.
    """
    members: dict[Hashable, list[int]] = {}
    for graph, group in enumerate(groups):
        members.setdefault(group, []).append(graph)
    train, valid, test = [], [], []
    room_in_train = len(groups) * shares[0] / sum(shares)
    room_in_both = len(groups) * (shares[0] + shares[1]) / sum(shares)
    for graphs in sorted(members.values(), key=lambda graphs: (len(graphs), graphs[0]), reverse=True):
        if len(train) + len(graphs) <= room_in_train:
            train += graphs
        elif len(train) + len(valid) + len(graphs) <= room_in_both:
            valid += graphs
        else:
            test += graphs
    return Split(*(torch.tensor(part, dtype=torch.long) for part in (train, valid, test)))


def group_split(
    groups: Int[Tensor, "graphs"], seed: int, shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> Split:
    """Graphs of a group stay together; which groups go where is drawn.

    Test, then valid, take of the groups in an order drawn with ``seed`` those that fit into their share, or the
    smallest one if none does. The rest train.
    """
    sizes = torch.bincount(groups).tolist()
    order = [group for group in torch.randperm(len(sizes), generator=_generator(seed)).tolist() if sizes[group]]
    part = [0] * len(sizes)
    for number in (2, 1):
        left, chosen = [group for group in order if part[group] == 0], []
        room = len(groups) * shares[number] / sum(shares)
        for group in left:
            if sizes[group] <= room:
                chosen.append(group)
                room -= sizes[group]
        for group in chosen or sorted(left, key=sizes.__getitem__)[:1]:
            part[group] = number
    return official_split(torch.tensor(part)[groups])


def split_from_files(folder: Path, graphs: int) -> Split:
    """``train``, ``valid`` and ``test`` as ``.csv.gz``, ``.csv`` or ``.txt`` in ``folder``: one graph index a line."""
    return Split(*(_read_indices(folder, name, graphs) for name in PARTS))


def _read_indices(folder: Path, name: str, graphs: int) -> Tensor:
    for suffix in (".csv.gz", ".csv", ".txt"):
        path = folder / f"{name}{suffix}"
        if path.exists():
            break
    else:
        raise InputError(f"{folder}: no {name}.csv.gz, {name}.csv or {name}.txt; a split needs train, valid and test")
    try:
        text = b"".join(Archive(folder).blocks(path.name, LARGEST_TOLD)).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read ({error}); write it again, one graph index a line") from None
    indices = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            index = int(line)
        except ValueError:
            raise InputError(f"{path}, line {number}: {shown(line.strip(), 40)} is not a graph index") from None
        if not 0 <= index < graphs:
            raise InputError(f"{path}, line {number}: graph {shown(index)} does not exist; there are 0 to {graphs - 1}")
        indices.append(index)
    return torch.tensor(indices, dtype=torch.long)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
