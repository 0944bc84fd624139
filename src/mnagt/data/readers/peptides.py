"""Peptides-func of the Long Range Graph Benchmark (Dwivedi et al., 2022), as its authors publish it.

``raw/peptide_multi_class_dataset.csv.gz`` has a row a peptide, with a column ``smiles`` and a column ``labels`` such as
``[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]``. The official split is in ``split/``, an index file a part: the authors' own form of
it is a pickle, which is not read.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import read_smiles
from mnagt.data.readers.text_table import Table, read_table
from mnagt.data.splits import read_split
from mnagt.errors import InputError, quote
from mnagt.tasks import MultiLabel

VERSION = "peptides-1"
"""Changes whenever the same files would give another data set."""
TABLE, SPLIT = Path("raw", "peptide_multi_class_dataset.csv.gz"), "split"
CLASSES = (
    "antifungal",
    "cell_cell_communication",
    "anticancer",
    "drug_delivery_vehicle",
    "antimicrobial",
    "antiviral",
    "antihypertensive",
    "antibacterial",
    "antiparasitic",
    "toxic",
)


def read_peptides(folder: Path, name: str) -> PackedDataset:
    """The data set in ``folder``, with ten labels a peptide and the official split."""
    table = read_table(folder / TABLE)
    molecules = read_smiles(table.column(table.find_smiles_column("smiles")), name=name)
    if molecules.refused:
        row = molecules.refused[0]
        raise InputError(f"{table.locate(row.row)}: {row.reason}; official scores are over all peptides")
    official = read_split(folder / SPLIT, len(table)).to_parts(len(table))
    return replace(
        molecules.graphs, task=MultiLabel(CLASSES, metric="ap"), targets=_read_labels(table), official=official
    )


def _read_labels(table: Table) -> Float[Tensor, "graphs classes"]:
    labels = []
    for row, text in enumerate(table.column(table.check_column("labels", "target"))):
        try:
            values = json.loads(text)
        except json.JSONDecodeError:
            values = None
        if not isinstance(values, list) or len(values) != len(CLASSES) or not all(value in (0, 1) for value in values):
            where = table.locate(row, "labels")
            raise InputError(f"{where}: {quote(text)} is no list of {len(CLASSES)} labels that are 0 or 1; fix it")
        labels.append(values)
    return torch.tensor(labels, dtype=torch.float32).view(-1, len(CLASSES))
