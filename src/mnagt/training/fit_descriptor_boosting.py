"""Fits gradient-boosted trees over RDKit's descriptors with scikit-learn."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mnagt.inference.weights import add_prefix
from mnagt.nn.decision_trees import LINKS
from mnagt.nn.molecule_features import Descriptors
from mnagt.training.sklearn_problem import Fitted, Problem
from mnagt.training.tree_tables import Tree, join_trees

LOGIT = 4.6
"""Of a label that all training molecules have: a probability of 99 %."""


def fit_descriptor_boosting(problem: Problem) -> Fitted:
    """Fit the trees of each output to the training molecules that have its target.

    Labels and classes are fitted by log loss, each against the rest; numbers by squared error. Nothing is chosen by the
    validation part.
    """
    readout, split = problem.model.readout, problem.split
    assert isinstance(readout, Descriptors)
    nothing = torch.zeros(0, 0)
    batches = (problem.dataset.batch(chunk) for chunk in split.train.split(1024))
    x = torch.cat([readout(nothing, batch) for batch in batches]).double().numpy()
    targets, trees, baselines = problem.targets(), [], []
    for output, weights in enumerate(problem.task.sample_weights(targets).T.numpy()):
        problem.check_stop()
        target = targets[:, output].numpy()
        rows = np.isfinite(target).nonzero()[0]
        baseline, fitted = _fit_output(problem, x[rows], target[rows], weights[rows], problem.seed + 7919 * output)
        baselines.append(baseline)
        trees += fitted
    rest = {"baseline": torch.tensor(baselines).float(), "link": torch.tensor(LINKS.index(problem.task.link)).int()}
    return dict(problem.settings), add_prefix("head.", join_trees(trees) | rest)


def _fit_output(
    problem: Problem, x: NDArray[np.floating], target: NDArray[np.floating], weights: NDArray[np.floating], seed: int
) -> tuple[float, list[Tree]]:
    """The constant and the trees of one output."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    count, is_number = problem.settings["num_iterations"], problem.task.link == "identity"
    if len(np.unique(target)) < 2:  # nothing to tell apart
        value = float(target[0]) if len(target) else 0.0
        value = value if is_number or not len(target) else LOGIT * (2 * value - 1)
        return value, [Tree.leaf(0.0, branches=3)] * count
    kind: Any = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
    boosting = kind(
        max_iter=count,
        learning_rate=problem.settings["learning_rate"],
        max_leaf_nodes=problem.settings["max_leaves"],
        min_samples_leaf=problem.settings["min_samples_leaf"],
        early_stopping=False,
        random_state=seed % 2**32,
    )
    x = np.where(np.isnan(x).all(axis=0), 0.0, x)  # scikit-learn cannot bin a column without any value
    boosting.fit(x, target if is_number else target.astype(int), weights)
    trees = [Tree.from_boosting(each.nodes) for each, *_ in boosting._predictors]
    trees += [Tree.leaf(0.0, branches=3)] * (count - len(trees))
    return float(np.ravel(boosting._baseline_prediction)[0]), trees
