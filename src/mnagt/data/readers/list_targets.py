"""Targets of nodes and edges: the numbers of all atoms, or all bonds, of a molecule in a cell of a table."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import SEPARATOR, get_smiles, join_molecules, run_rdkit
from mnagt.data.readers.text_table import Table, read_column
from mnagt.tasks.base import Level


def with_list_targets(dataset: PackedDataset, table: Table, names: Sequence[str]) -> PackedDataset:
    """The data set with the targets of its nodes or edges, in the columns ``names`` of a table with a row a graph."""
    level, items = dataset.task.level, "nodes" if dataset.texts is None else "atoms"
    if level == "edge":
        dataset, items = with_bond_numbers(dataset), "bonds"
    columns = [read_column(table, name) for name in names]
    return replace(
        dataset, targets=dataset.task.parse_list_targets(columns, count_items(dataset, level).tolist(), items)
    )


def count_items(dataset: PackedDataset, level: Level) -> Int[Tensor, "graphs"]:
    """The nodes of each graph, or its edges, both directions as one."""
    return dataset.edge_ptr.diff() // 2 if level == "edge" else dataset.sizes


def with_bond_numbers(dataset: PackedDataset) -> PackedDataset:
    """The molecules with ``edge_numbers``: where each bond stands among RDKit's ``GetBonds()`` of the SMILES.

    Graphs keep their SMILES and not this order, so RDKit reads the SMILES once more. Bonds of several components stand
    one component after the other.

    >>> from mnagt import read_smiles
    >>> dataset = with_bond_numbers(read_smiles(["C1CC1"]).graphs)  # the bond that closes the ring is the last
    >>> dataset.batch(torch.tensor([0])).edge_index.tolist()
    [[1, 2, 0, 2, 0, 1], [0, 0, 1, 1, 2, 2]]
    >>> dataset.edge_numbers.tolist()
    [0, 2, 0, 1, 2, 1]
    """
    rows = [text.split(SEPARATOR) for text in get_smiles(dataset)]
    parts = run_rdkit("graph_rows", [text for row in rows for text in row])
    molecules = join_molecules(parts, len(rows[0]) if rows else 1)
    counts = molecules.bond_counts
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    graph = np.tile(np.repeat(np.arange(len(counts)), counts), 2)
    source, destination = np.concatenate([molecules.ends, molecules.ends[:, ::-1]]).T
    order = np.lexsort((source, destination, graph))
    return replace(dataset, edge_numbers=torch.from_numpy(np.tile(number, 2)[order].astype(np.int32)))
