"""Structural duplicates: graphs that look the same by simple counts, which a random split puts on both sides."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.graphs.ego_statistics import count_ego_networks
from mnagt.graphs.weisfeiler_lehman import hash_labels, mix_bits

GRAPHS_AT_ONCE = 256


def structural_signatures(dataset: PackedDataset) -> Int[Tensor, "graphs"]:
    """A number for each graph; structural duplicates have the same.

    Two graphs are structural duplicates if their nodes have the same labels, degrees and numbers of triangles, counted
    with multiplicity. Isomorphic graphs always are; the reverse need not hold. The number is a 64-bit hash.

    >>> from mnagt import load_dataset
    >>> signatures = structural_signatures(load_dataset("MUTAG"))
    >>> len(signatures), len(signatures.unique())
    (188, 86)
    """
    signatures = []
    for graphs in torch.arange(len(dataset)).split(GRAPHS_AT_ONCE):
        batch = dataset.batch(graphs)
        columns = [count_ego_networks(batch, 1)[:, 0, :2]]  # degree and triangles, in other words
        columns += [] if batch.node_labels is None else [batch.node_labels.long()]
        rows = torch.cat(columns, dim=1)
        total = F.pad(mix_bits(hash_labels(rows, rows[:, 0])).cumsum(0), (1, 0))  # int64 wraps around
        ptr = batch.node_ptr.long()
        signatures.append(total[ptr[1:]] - total[ptr[:-1]])
    return torch.cat(signatures)


def has_duplicate(
    dataset: PackedDataset, graphs: Int[Tensor, "some"], among: Int[Tensor, "others"]
) -> Bool[Tensor, "some"]:
    """Whether each of ``graphs`` has a structural duplicate among the graphs ``among``.

    >>> from mnagt import load_dataset
    >>> has_duplicate(load_dataset("MUTAG"), torch.tensor([0, 1, 2]), torch.arange(3, 188)).shape
    torch.Size([3])
    """
    signatures = structural_signatures(dataset)
    return torch.isin(signatures[graphs], signatures[among])
