"""Fits trees over what RDKit computes of molecules, with scikit-learn: random forests, and gradient boosting."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from mnagt.nn.decision_trees import LINKS, MAX_DEPTH
from mnagt.training.sklearn_problem import Fitted, Problem
from mnagt.training.tree_tables import Tree, join_trees

TREES_AT_ONCE = 20
"""Grown between two looks at whether to stop."""
LOGIT = 4.6
"""Of a label that all training molecules have: a probability of 99 %."""

Numbers = NDArray[np.floating]
FitOutput = Callable[[Problem, Numbers, Numbers, Numbers, int], tuple[float, list[Tree]]]
"""From features, targets, weights and a seed to the constant and the trees of an output."""


def fit_morgan_forest(problem: Problem) -> Fitted:
    """Grow the trees of each output on the training molecules that have its target.

    A tree that is grown on targets 0 and 1 by squared error is one grown by Gini impurity. Nothing is chosen by the
    validation part.
    """
    bits = _compute_features(problem)[:, : problem.settings["bits"]].numpy()
    return _fit_outputs(problem, bits, _grow_forest)


def fit_descriptor_boosting(problem: Problem) -> Fitted:
    """Fit the trees of each output to the training molecules that have its target.

    Labels and classes are fitted by log loss, each against the rest; numbers by squared error. Nothing is chosen by the
    validation part.
    """
    return _fit_outputs(problem, _compute_features(problem).double().numpy(), _fit_boosting)


def _compute_features(problem: Problem) -> Float[Tensor, "train columns"]:
    """What the model's readout gives its head for the training molecules."""
    nothing, chunks = torch.zeros(0, 0), problem.split.train.split(1024)
    return torch.cat([problem.model.readout(nothing, problem.dataset.batch(chunk)) for chunk in chunks])


def _fit_outputs(problem: Problem, x: Numbers, fit_output: FitOutput) -> Fitted:
    """The weights of the model's head, output by output."""
    targets, baselines, trees = problem.targets(), [], []
    for output, weights in enumerate(problem.task.sample_weights(targets).T.numpy()):
        target = targets[:, output].numpy()
        rows = np.isfinite(target).nonzero()[0]
        problem.check_stop()
        baseline, grown = fit_output(problem, x[rows], target[rows], weights[rows], problem.seed + 7919 * output)
        baselines.append(baseline)
        trees += grown
    tables = join_trees(trees) | {"baseline": torch.tensor(baselines).float()}
    tables |= {"link": torch.tensor(LINKS.index(problem.task.link)).int()}
    return dict(problem.settings), {f"head.{name}": tables[name] for name in problem.model.head.state_dict()}


def _grow_forest(
    problem: Problem, bits: Numbers, target: Numbers, weights: Numbers, seed: int
) -> tuple[float, list[Tree]]:
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
    return 0.0, [Tree.from_forest(each.tree_) for each in forest.estimators_]


def _fit_boosting(
    problem: Problem, x: Numbers, target: Numbers, weights: Numbers, seed: int
) -> tuple[float, list[Tree]]:
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
