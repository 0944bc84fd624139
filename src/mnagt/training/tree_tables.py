"""scikit-learn's trees as the tables of ``nn/decision_trees.py``."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGEST = 1e20
"""In place of an infinite threshold, which tells missing values from all others."""


class Tree(NamedTuple):
    """A tree, whose nodes count from 0, the root."""

    feature: NDArray[np.integer]
    child: NDArray[np.integer]
    """Of each node and branch; -1 where the node is a leaf."""
    threshold: NDArray[np.floating]
    value: NDArray[np.floating]
    depth: int

    @classmethod
    def leaf(cls, value: float, branches: int = 2) -> "Tree":
        """A tree of one leaf."""
        return cls(np.zeros(1, np.int32), np.full((1, branches), -1), np.zeros(1), np.full(1, value), 0)

    @classmethod
    def from_forest(cls, tree: Any) -> "Tree":
        """From the attribute ``tree_`` of scikit-learn's tree for regression."""
        child = np.stack([tree.children_left, tree.children_right], axis=1)
        return cls(tree.feature, child, tree.threshold, tree.value[:, 0, 0], tree.max_depth)

    @classmethod
    def from_boosting(cls, nodes: Any) -> "Tree":
        """From the nodes of a tree of scikit-learn's boosting; branches are: at most the threshold, more, missing."""
        left, right = (nodes[side].astype(np.int64) for side in ("left", "right"))
        child = np.stack([left, right, np.where(nodes["missing_go_to_left"] > 0, left, right)], axis=1)
        is_leaf, threshold = nodes["is_leaf"] > 0, nodes["num_threshold"].clip(max=LARGEST)
        value = np.where(is_leaf, nodes["value"], 0.0)
        child = np.where(is_leaf[:, None], -1, child)
        return cls(nodes["feature_idx"], child, np.where(is_leaf, 0.0, threshold), value, int(nodes["depth"].max()))


def join_trees(trees: Sequence[Tree]) -> dict[str, Tensor]:
    """The tables of all trees end to end; a leaf leads to itself."""
    counts = [len(tree.value) for tree in trees]
    feature, child, threshold, value = (np.concatenate(column) for column in list(zip(*trees, strict=True))[:4])
    first = np.cumsum([0, *counts[:-1]])
    child = np.where(child < 0, np.arange(len(value))[:, None], child + np.repeat(first, counts)[:, None])
    return {
        "root": torch.from_numpy(first).int(),
        "feature": torch.from_numpy(feature.astype(np.int32).clip(min=0)),
        "child": torch.from_numpy(child).int(),
        "threshold": torch.from_numpy(threshold),
        "value": torch.from_numpy(value).float(),
        "depth": torch.tensor(max(tree.depth for tree in trees)).int(),
    }
