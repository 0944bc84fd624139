"""Which graphs train, which choose, which judge. Every split draws from a generator of its own."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.errors import InputError

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
        text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); write it again, one graph index a line") from None
    indices = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            index = int(line)
        except ValueError:
            raise InputError(f"{path}, line {number}: {line.strip()[:40]!r} is not a graph index") from None
        if not 0 <= index < graphs:
            raise InputError(f"{path}, line {number}: graph {index} does not exist; there are 0 to {graphs - 1}")
        indices.append(index)
    return torch.tensor(indices, dtype=torch.long)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
