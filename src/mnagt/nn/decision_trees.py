"""Decision trees as tensors: scikit-learn grows them (``training/fit_trees.py``), PyTorch evaluates them."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Real, UInt8
from torch import Tensor, nn

MAX_DEPTH = 1024
"""Of a tree that is the head of a model. (Those of ogbg-molhiv have about a hundred levels.)"""
LINKS = ("identity", "logit", "log")
"""How an output follows from a number, from the probability of a label and from that of a class (``Task.link``)."""


def apply_link(mean: Float[Tensor, "graphs outputs"], link: str) -> Float[Tensor, "graphs outputs"]:
    """The outputs that stand for these probabilities or numbers."""
    match link:
        case "logit":
            return mean.logit(eps=torch.finfo(mean.dtype).eps)
        case "log":
            return mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
        case _:
            return mean


class Trees(nn.Module):
    """As many decision trees for each output, end to end in tables, which have no rows before trees are grown.

    Args:
        outputs: how many.
        trees: of each output.
        branches: of a tree node: 2, or 3 where a feature may be missing.
    """

    sized: ClassVar[tuple[str, ...]] = ("feature", "child", "value")
    """Tables with a row for each tree node."""
    root: Int[Tensor, "outputs_by_trees"]
    feature: Int[Tensor, "tree_nodes"]
    """The feature that each tree node tests."""
    child: Int[Tensor, "tree_nodes branches"]
    """The next node of each branch; a leaf leads to itself."""
    value: Float[Tensor, "tree_nodes"]
    """Of each leaf."""

    def __init__(self, outputs: int, trees: int, branches: int = 2) -> None:
        super().__init__()
        self.outputs, self.trees = outputs, trees
        self.register_buffer("root", torch.zeros(outputs * trees, dtype=torch.int32))
        self.register_buffer("feature", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("child", torch.zeros(0, branches, dtype=torch.int32))
        self.value = nn.Parameter(torch.zeros(0))

    def leaf_values(
        self,
        features: Real[Tensor, "graphs features"],
        depth: int,
        threshold: Float[Tensor, "tree_nodes"] | None = None,
    ) -> Float[Tensor, "outputs trees graphs"]:
        """The value of the leaf of each tree that each graph comes to after ``depth`` steps."""
        if not len(self.value):
            return self.value.new_zeros(self.outputs, self.trees, len(features)) + self.value.sum()
        leaves = find_leaves(features, self.feature, self.child, self.root, depth, threshold)
        return self.value.index_select(0, leaves.flatten()).view(self.outputs, self.trees, features.shape[0])


class TreeHead(Trees):
    """Trees from a graph's vector to outputs."""

    depth: Int[Tensor, ""]
    """Of the deepest tree."""
    link: Int[Tensor, ""]
    """An index of ``LINKS``."""

    def __init__(self, outputs: int, trees: int, branches: int = 2) -> None:
        super().__init__(outputs, trees, branches)
        self.register_buffer("depth", torch.zeros((), dtype=torch.int32))
        self.register_buffer("link", torch.zeros((), dtype=torch.int32))

    @property
    def steps(self) -> int:
        return min(int(self.depth), MAX_DEPTH)


class Forests(TreeHead):
    """For each output the mean over ``trees`` trees, from bits to a probability or a number, and that to the output.

    >>> Forests(outputs=2, trees=10)(torch.zeros(3, 2049)).shape
    torch.Size([3, 2])
    """

    def forward(self, bits: Float[Tensor, "graphs bits"]) -> Float[Tensor, "graphs outputs"]:
        mean = self.leaf_values(bits.to(torch.uint8), self.steps).mean(dim=1).T
        return apply_link(mean, LINKS[int(self.link)])


class BoostedTrees(TreeHead):
    """For each output the sum over ``trees`` trees and a constant, from numbers, some NaN, to an output.

    >>> BoostedTrees(outputs=2, trees=10)(torch.zeros(3, 217)).shape
    torch.Size([3, 2])
    """

    sized = (*Trees.sized, "threshold")
    threshold: Float[Tensor, "tree_nodes"]
    """Branches of a tree node are: at most its threshold, more, missing."""
    baseline: Float[Tensor, "outputs"]

    def __init__(self, outputs: int, trees: int) -> None:
        super().__init__(outputs, trees, branches=3)
        self.register_buffer("threshold", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("baseline", torch.zeros(outputs))

    def forward(self, x: Float[Tensor, "graphs columns"]) -> Float[Tensor, "graphs outputs"]:
        total = self.leaf_values(x.double(), self.steps, self.threshold).sum(dim=1).T + self.baseline
        return F.logsigmoid(total) if LINKS[int(self.link)] == "log" else total


def presence_features(
    column: Int[Tensor, "nodes some"], graph: Int[Tensor, "nodes"], num_graphs: int, width: int
) -> UInt8[Tensor, "graphs width"]:
    """1 where a node of a graph has the column; ``column`` lists those of each node.

    >>> presence_features(torch.tensor([[0], [2], [2]]), torch.tensor([0, 0, 1]), num_graphs=2, width=3)
    tensor([[1, 0, 1],
            [0, 0, 1]], dtype=torch.uint8)
    """
    index = graph[:, None] * width + column
    features = torch.zeros(num_graphs * width, dtype=torch.uint8, device=column.device)
    return features.index_fill(0, index.flatten().long(), 1).view(-1, width)


def find_leaves(
    features: Real[Tensor, "graphs features"],
    feature: Int[Tensor, "tree_nodes"],
    child: Int[Tensor, "tree_nodes branches"],
    root: Int[Tensor, "trees"],
    depth: int,
    threshold: Float[Tensor, "tree_nodes"] | None = None,
) -> Int[Tensor, "trees graphs"]:
    """The leaf of each tree that each graph comes to after ``depth`` steps.

    Tree node i tests feature ``feature[i]`` and leads to ``child[i, branch]``. Without thresholds the branch is the
    feature itself, 0 or 1; with them it is 0 where the feature is at most ``threshold[i]``, 1 where it is more, 2 where
    it is NaN. A leaf leads to itself. All numbers of nodes and features are int32.
    """
    graphs, branches, device = features.shape[0], child.shape[1], features.device
    features, child = features.T.flatten(), child.flatten()
    graph = torch.arange(graphs, dtype=torch.int32, device=device).expand(len(root), -1).flatten()
    node = root[:, None].expand(-1, graphs).flatten()  # tree by tree: a tree is small, and stays in the cache
    for _ in range(depth):  # flat, since an exported file would have the operations of each reshaping at each level
        branch = features.index_select(0, feature.index_select(0, node) * graphs + graph)
        if threshold is not None:
            branch = torch.where(branch.isnan(), 2, (branch > threshold.index_select(0, node)).int())
        node = child.index_select(0, branches * node + branch)
    return node.view(len(root), graphs)


def measure_depth(child: Int[Tensor, "tree_nodes branches"], root: Int[Tensor, "trees"], most: int) -> int:
    """The steps after which every graph is at a leaf, at most ``most``.

    >>> measure_depth(torch.tensor([[1, 2], [1, 1], [3, 3], [3, 3]]), torch.tensor([0]), most=64)
    2
    """
    nodes = root
    for depth in range(most):
        nodes = nodes[(child[nodes] != nodes[:, None]).any(dim=1)]
        if not len(nodes):
            return depth
        nodes = child[nodes].flatten().unique()
    return most
