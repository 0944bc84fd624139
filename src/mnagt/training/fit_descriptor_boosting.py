"""Fits gradient-boosted trees over RDKit's descriptors with scikit-learn."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnagt.nn.descriptor_boosting import Descriptors
from mnagt.nn.morgan_forest import LINKS
from mnagt.training.sklearn_problem import Fitted, Problem

LOGIT = 4.6
"""Of a label that all training molecules have: a probability of 99 %."""

LARGEST = 1e20
"""In place of an infinite threshold, which tells missing values from all others."""


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
    link = {"head.link": torch.tensor(LINKS.index(problem.task.link)).int()}
    return dict(problem.settings), _to_tensors(trees) | {"head.baseline": torch.tensor(baselines).float()} | link


def _fit_output(
    problem: Problem, x: NDArray[np.floating], target: NDArray[np.floating], weights: NDArray[np.floating], seed: int
) -> tuple[float, list[NDArray[Any]]]:
    """The constant and the nodes of scikit-learn's trees of one output."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    count, is_number = problem.settings["num_iterations"], problem.task.link == "identity"
    if len(np.unique(target)) < 2:  # nothing to tell apart
        value = float(target[0]) if len(target) else 0.0
        return (value if is_number or not len(target) else LOGIT * (2 * value - 1)), [_leaf()] * count
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
    nodes = [trees[0].nodes for trees in boosting._predictors]
    return float(np.ravel(boosting._baseline_prediction)[0]), [*nodes, *[_leaf()] * (count - len(nodes))]


def _leaf() -> NDArray[Any]:
    """A tree that adds nothing."""
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE

    leaf: Any = np.zeros(1, dtype=PREDICTOR_RECORD_DTYPE)
    leaf["is_leaf"] = 1
    return leaf


def _to_tensors(trees: list[NDArray[Any]]) -> dict[str, Tensor]:
    """All trees end to end; a leaf leads to itself."""
    first = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])[:-1]])
    nodes, offset = np.concatenate(trees), np.repeat(first, [len(tree) for tree in trees])
    is_leaf, itself = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
    left, right = (np.where(is_leaf, itself, nodes[side].astype(np.int64) + offset) for side in ("left", "right"))
    missing = np.where(nodes["missing_go_to_left"].astype(bool), left, right)
    return {
        "head.root": torch.from_numpy(first).int(),
        "head.feature": torch.from_numpy(np.where(is_leaf, 0, nodes["feature_idx"]).astype(np.int32)),
        "head.threshold": torch.from_numpy(np.where(is_leaf, 0.0, nodes["num_threshold"].clip(max=LARGEST))),
        "head.child": torch.from_numpy(np.stack([left, right, missing], axis=1)).int(),
        "head.value": torch.from_numpy(np.where(is_leaf, nodes["value"], 0.0)).float(),
        "head.depth": torch.tensor(int(nodes["depth"].max()) if len(nodes) else 0).int(),
    }
