"""Grows the forests over Morgan fingerprints with scikit-learn."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mnagt.inference.weights import add_prefix
from mnagt.nn.decision_trees import LINKS, MAX_DEPTH
from mnagt.nn.molecule_features import MorganBits
from mnagt.training.sklearn_problem import Fitted, Problem
from mnagt.training.tree_tables import Tree, join_trees

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
    trees: list[Tree] = []
    for output, weights in enumerate(problem.task.sample_weights(targets).T.numpy()):
        target = targets[:, output].numpy()
        rows = np.isfinite(target).nonzero()[0]
        trees += _grow_trees(problem, bits[rows], target[rows], weights[rows], problem.seed + 7919 * output)
    tables = join_trees(trees) | {"link": torch.tensor(LINKS.index(problem.task.link)).int()}
    del tables["threshold"]
    return dict(problem.settings), add_prefix("head.", tables)


def _grow_trees(
    problem: Problem, bits: NDArray[np.floating], target: NDArray[np.floating], weights: NDArray[np.floating], seed: int
) -> list[Tree]:
    """The trees of one output."""
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
    return [Tree.from_forest(each.tree_) for each in forest.estimators_]
