"""Grows the forests over Morgan fingerprints with scikit-learn."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnagt.nn.morgan_forest import LINKS, MAX_DEPTH, MorganBits
from mnagt.training.sklearn_problem import Fitted, Problem

TREES_AT_ONCE = 20
"""Grown between two looks at whether to stop."""


def fit_morgan_forest(problem: Problem) -> Fitted:
    """Grow the trees of each output on the training molecules that have its target.

    A tree that is grown on targets 0 and 1 by squared error is one grown by Gini impurity. Nothing is chosen by the
    validation part.
    """
    readout, split = problem.model.readout, problem.split
    assert isinstance(readout, MorganBits)
    bits = torch.cat([readout.presence(problem.dataset.batch(chunk)) for chunk in split.train.split(1024)])
    bits = bits[:, : readout.bits].numpy().astype(np.float32)
    targets = problem.targets()
    trees: list[Any] = []
    for output, weights in enumerate(problem.task.sample_weights(targets).T.numpy()):
        target = targets[:, output].numpy()
        rows = np.isfinite(target).nonzero()[0]
        trees += _grow_trees(problem, bits[rows], target[rows], weights[rows], problem.seed + 7919 * output)
    link = LINKS.index(problem.task.link)
    return dict(problem.settings), _to_tensors(trees, readout.bits) | {"head.link": torch.tensor(link).int()}


def _grow_trees(
    problem: Problem, bits: NDArray[np.floating], target: NDArray[np.floating], weights: NDArray[np.floating], seed: int
) -> list[Any]:
    """scikit-learn's trees of one output."""
    from sklearn.ensemble import RandomForestRegressor

    if not len(target):  # no molecule has this target: trees of one leaf
        bits, target, weights = np.zeros((1, bits.shape[1])), np.full(1, 0.5), np.ones(1)
    max_features: Any = 1 / 3 if problem.task.link == "identity" else "sqrt"
    forest: Any = RandomForestRegressor(
        min_samples_leaf=problem.settings["min_samples_leaf"],
        max_features=max_features,
        max_depth=MAX_DEPTH,
        n_jobs=torch.get_num_threads(),
        random_state=seed % 2**32,
        warm_start=True,
    )
    sample_weight = None if (weights == 1).all() else weights  # given any, scikit-learn draws otherwise
    count = problem.settings["num_trees"]
    for grown in range(TREES_AT_ONCE, count + TREES_AT_ONCE, TREES_AT_ONCE):
        problem.check_stop()
        forest.set_params(n_estimators=min(grown, count)).fit(bits, target, sample_weight)
    return [each.tree_ for each in forest.estimators_]


def _to_tensors(trees: list[Any], bits: int) -> dict[str, Tensor]:
    """All trees end to end. The children of scikit-learn's leaves are -1; here a leaf leads to itself."""
    counts = np.array([tree.node_count for tree in trees])
    first = np.concatenate([[0], counts.cumsum()[:-1]])
    itself = np.arange(counts.sum())
    left, right = (
        np.concatenate([getattr(tree, side) + at for tree, at in zip(trees, first, strict=True)])
        for side in ("children_left", "children_right")
    )
    feature = np.concatenate([tree.feature for tree in trees])
    is_leaf = feature < 0
    child = np.stack([np.where(is_leaf, itself, side) for side in (left, right)], axis=1)
    value = np.concatenate([tree.value[:, 0, 0] for tree in trees])
    return {
        "head.root": torch.from_numpy(first).int(),
        "head.feature": torch.from_numpy(np.where(is_leaf, bits, feature)).int(),
        "head.child": torch.from_numpy(child).int(),
        "head.value": torch.from_numpy(value).float(),
        "head.depth": torch.tensor(max(tree.max_depth for tree in trees)).int(),
    }
