"""Folds of an OGB set of molecules that are like its official test part, made without looking at that part.

The official test part holds the rarest scaffolds; the validation part holds more common ones, and is small. So of the
training and validation parts, molecules whose scaffold is met three times at most are cut into blocks, in the order in
which scaffolds are first met. Block k is ``valid`` of fold k, and all others of the two parts are ``train``. A fold is
a folder of index files, for ``mnagt trials --split-folders`` or ``--split files``. Its ``test`` holds one graph, of the
training part: a split needs one.
"""

import argparse
from itertools import compress
from pathlib import Path

import common
import torch
from rdkit.Chem import MolFromSmiles
from rdkit.rdBase import BlockLogs
from torch import Tensor

from mnagt.data.readers.rdkit_worker import scaffolds
from mnagt.data.readers.text_table import read_table
from mnagt.data.registry import load_dataset

FOLDS = 4
RARE = 3
"""Molecules of a scaffold, at most."""


def folds(scaffold: list[str], official: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Indices to train on and to judge by, fold by fold; ``official`` is 2 where a molecule is in the test part."""
    ours = (official != 2).nonzero().flatten()
    numbers: dict[str, int] = {}  # of scaffolds, in the order in which they are met
    group = torch.tensor([numbers.setdefault(scaffold[i], len(numbers)) for i in ours.tolist()])
    rare = (group.bincount() <= RARE).nonzero().flatten()
    is_valid = [torch.isin(group, block) for block in rare.tensor_split(FOLDS)]
    return [(ours[~valid], ours[valid]) for valid in is_valid]


def get_smiles(dataset: str) -> list[str]:
    """The molecules of an OGB set, in its order."""
    table = read_table(common.data_file(f"{dataset.replace('-', '_')}/mapping/mol.csv.gz"))
    return table.column(table.find_smiles_column())


def scaffolds_of(smiles: list[str]) -> list[str]:
    """Their scaffolds; what RDKit cannot read stands for itself."""
    with BlockLogs():
        can_be_read = [MolFromSmiles(each) is not None for each in smiles]
    found = iter(scaffolds(list(compress(smiles, can_be_read)))["scaffolds"])
    return [next(found) if is_one else each for each, is_one in zip(smiles, can_be_read, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", default="ogbg-molhiv")
    parser.add_argument("--out", type=Path, required=True, help="folder of the folds")
    options = parser.parse_args()
    dataset = load_dataset(options.dataset)
    assert dataset.official is not None
    for k, (train, valid) in enumerate(folds(scaffolds_of(get_smiles(options.dataset)), dataset.official)):
        folder = options.out / str(k)
        folder.mkdir(parents=True, exist_ok=True)
        for name, indices in {"train": train[1:], "valid": valid, "test": train[:1]}.items():
            (folder / f"{name}.txt").write_text("".join(f"{i}\n" for i in indices.tolist()), encoding="utf-8")
        active = int((dataset.targets[valid] == 1).sum())
        print(f"{folder}: {len(train) - 1} train, {len(valid)} validate, {active} of them active")


if __name__ == "__main__":
    main()
