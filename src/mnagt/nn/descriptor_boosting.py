"""Gradient-boosted trees over RDKit's descriptors, as tensors."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.molecules import rdkit_descriptors
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import SklearnModel
from mnagt.nn.morgan_forest import LINKS
from mnagt.nn.readouts import Readout
from mnagt.nn.shapes import GraphVectors

DESCRIPTORS, NUM_DESCRIPTORS = "rdkit-descriptors", 217
MAX_DEPTH = 1024


class Descriptors(Readout):
    """RDKit's descriptors of each molecule, NaN where one has no value."""

    def __init__(self) -> None:
        super().__init__(NUM_DESCRIPTORS)

    @property
    def encodings(self) -> dict[str, int]:
        return {DESCRIPTORS: NUM_DESCRIPTORS}

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        found = graph.encodings.get(DESCRIPTORS)
        found = rdkit_descriptors(graph, NUM_DESCRIPTORS) if found is None else found
        return take_first_rows(found, graph)


def take_first_rows(
    encoding: Float[Tensor, "nodes columns"], graph: GraphBatch, missing: float = math.nan
) -> Float[Tensor, "graphs columns"]:
    """The row of each graph's first node; ``missing`` for a graph without nodes."""
    if not len(encoding):
        return encoding.new_full((graph.num_graphs, encoding.shape[1]), missing)
    rows = encoding[graph.node_ptr[:-1].clamp(max=len(encoding) - 1).long()]
    return rows.where((graph.node_ptr.diff() > 0)[:, None], missing)


class BoostedTrees(nn.Module):
    """For each output the sum over ``trees`` trees and a constant, from descriptors to an output.

    >>> BoostedTrees(outputs=2, trees=10)(torch.zeros(3, 217)).shape
    torch.Size([3, 2])
    """

    root: Int[Tensor, "outputs_by_trees"]
    feature: Int[Tensor, "tree_nodes"]
    """The descriptor that each node of all trees tests."""
    threshold: Float[Tensor, "tree_nodes"]
    """Where it is at most so large, the first child follows."""
    child: Int[Tensor, "tree_nodes 3"]
    """The next node where the descriptor is at most the threshold, above it, and missing; a leaf leads to itself."""
    value: Float[Tensor, "tree_nodes"]
    """Of each leaf."""
    baseline: Float[Tensor, "outputs"]
    depth: Int[Tensor, ""]
    """Of the deepest tree."""
    link: Int[Tensor, ""]
    """From sums to outputs: an index of ``LINKS``."""

    def __init__(self, outputs: int, trees: int) -> None:
        super().__init__()
        self.outputs, self.trees = outputs, trees
        self.register_buffer("root", torch.zeros(outputs * trees, dtype=torch.int32))
        self.register_buffer("feature", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("child", torch.zeros(0, 3, dtype=torch.int32))
        self.register_buffer("baseline", torch.zeros(outputs))
        self.register_buffer("depth", torch.zeros((), dtype=torch.int32))
        self.register_buffer("link", torch.zeros((), dtype=torch.int32))
        self.value = nn.Parameter(torch.zeros(0))

    def forward(self, x: Float[Tensor, "graphs descriptors"]) -> Float[Tensor, "graphs outputs"]:
        if not len(self.value):
            return x.new_zeros(len(x), self.outputs) + self.value.sum()
        x, node = x.double(), self.root.long().expand(len(x), -1)
        for _ in range(min(int(self.depth), MAX_DEPTH)):
            value = x.gather(1, self.feature[node].long())
            branch = torch.where(value.isnan(), 2, (value > self.threshold[node]).long())
            node = self.child[node, branch].long()
        total = self.value[node].unflatten(1, (self.outputs, self.trees)).sum(dim=2) + self.baseline
        return F.logsigmoid(total) if LINKS[int(self.link)] == "log" else total


class DescriptorBoosting(SklearnModel):
    """RDKit's descriptors, and boosted trees over them.

    >>> DescriptorBoosting(Features(), 2, trees=10).encodings
    {'rdkit-descriptors': 217}
    """

    sized = ("head.feature", "head.threshold", "head.child", "head.value")

    def __init__(self, features: Features, outputs: int, trees: int) -> None:
        super().__init__(NoEncoder(), [], Descriptors(), BoostedTrees(outputs, trees), features)
