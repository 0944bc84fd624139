"""Grows decision trees with scikit-learn, as the tables of ``nn/decision_trees.py``.

The forest beside a network is over WL colours; forests and gradient boosting by themselves are over what RDKit computes
of molecules.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.inference.random_forest import COLOURS, RandomForest
from mnagt.inference.random_forest import MAX_DEPTH as FOREST_DEPTH
from mnagt.nn.decision_trees import LINKS, MAX_DEPTH
from mnagt.nn.graph_model import resize_tables
from mnagt.tasks import Task
from mnagt.training.sklearn_problem import SklearnFit, SklearnProblem
from mnagt.training.trainer import Interrupted

MAX_SAMPLE = 2**14
"""Graphs that a tree is grown on, at most."""
MAX_RATIO = 4
"""Of two classes, how many more of the more frequent one are drawn, at most: trees grow faster and rank no worse."""
TREES_AT_ONCE = 20
"""Grown between two looks at whether to stop."""
LOGIT = 4.6
"""Of a label that all training molecules have: a probability of 99 %."""
LARGEST = 1e20
"""In place of an infinite threshold, which tells missing values from all others."""

Numbers = NDArray[np.floating]

_log = logging.getLogger(__name__)


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


# --- the forest beside a network ---


def check_can_grow(task: Task, targets: Tensor) -> None:
    """Refuse a forest that could not be grown, before a network is trained."""
    task.target_probability(targets[:0])


def fit_forest(
    forest: RandomForest,
    dataset: PackedDataset,
    train: Int[Tensor, "some"],
    task: Task,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Fit ``forest`` to the graphs ``train`` of ``dataset``, which is on the CPU and has the forest's encodings."""
    each = f" for each of {forest.outputs} outputs" if forest.outputs > 1 else ""
    _log.info("growing %d trees%s", forest.trees, each)
    forest.fit_vocabulary(*dataset.select_encoding(COLOURS, train))
    features = torch.cat([forest.presence_features(dataset.batch(chunk)) for chunk in train.split(1024)])
    features, trees = features[:, : forest.columns].numpy(), list[Tree]()
    weights = None if dataset.row_weights is None else dataset.row_weights[train].numpy()
    for output, target in enumerate(task.target_probability(dataset.targets[train]).T.numpy()):
        if not np.isfinite(target).any():
            trees += [Tree.leaf(0.5)] * forest.trees
            continue
        sampler = Sampler.from_targets(target, weights)
        forest.odds[output] = sampler.odds
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            generators = [np.random.default_rng((seed, output, tree)) for tree in range(forest.trees)]
            pending = [pool.submit(_grow_tree, features, sampler, forest.max_leaves, each) for each in generators]
            for future in pending:
                if should_stop():
                    pool.shutdown(cancel_futures=True)
                    raise Interrupted
                trees.append(future.result())
    set_trees(forest, trees)


def set_trees(forest: RandomForest, trees: Sequence[Tree]) -> None:
    """Give the forest its trees, as many for each output."""
    tables = join_trees(trees)
    resize_tables(forest, tables)
    forest.load_state_dict(forest.state_dict() | {name: tables[name] for name in ("root", *forest.sized)})


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws the graphs that a tree is grown on, with replacement."""

    target: NDArray[np.float32]
    groups: list[NDArray[np.int64]]
    """Positive graphs and negative ones; for regression, all graphs."""
    counts: list[int]
    """Graphs of each group that are drawn for a tree."""
    weights: NDArray[np.float32] | None = None
    """The weight of each graph in a tree, if they are not the same."""

    @classmethod
    def from_targets(cls, target: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> "Sampler":
        """``target`` is NaN where it is missing; such graphs are never drawn."""
        groups, labelled = [(target == label).nonzero()[0] for label in (1, 0)], np.isfinite(target).nonzero()[0]
        counts = [len(group) for group in groups]
        if not all(counts) or sum(counts) < len(labelled):
            return cls(target, [labelled], [min(len(labelled), MAX_SAMPLE)], weights)
        counts = [min(count, MAX_RATIO * min(counts)) for count in counts]
        part = min(1.0, MAX_SAMPLE / sum(counts))
        return cls(target, groups, [max(1, int(part * count)) for count in counts], weights)

    @property
    def odds(self) -> float:
        """Odds of a positive among the graphs drawn, over those among all."""
        if len(self.groups) == 1:
            return 1.0
        (positive, negative), (all_positive, all_negative) = self.counts, map(len, self.groups)
        return positive * all_negative / (negative * all_positive)

    def sample(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """The graphs for a tree."""
        return np.concatenate([generator.choice(*each) for each in zip(self.groups, self.counts, strict=True)])


def _grow_tree(features: NDArray[np.uint8], sampler: Sampler, max_leaves: int, generator: np.random.Generator) -> Tree:
    """A tree of one output."""
    from sklearn.tree import DecisionTreeRegressor

    graphs, state = sampler.sample(generator), int(generator.integers(2**31))
    tree = DecisionTreeRegressor(
        max_features="sqrt", max_leaf_nodes=max_leaves, max_depth=FOREST_DEPTH, random_state=state
    )
    weights = None if sampler.weights is None else sampler.weights[graphs]
    return Tree.from_forest(tree.fit(features[graphs].astype(np.float32), sampler.target[graphs], weights).tree_)


# --- models of molecules ---

FitOutput = Callable[[SklearnProblem, Numbers, Numbers, Numbers, int], tuple[float, list[Tree]]]
"""From features, targets, weights and a seed to the constant and the trees of an output."""


def fit_morgan_forest(problem: SklearnProblem) -> SklearnFit:
    """Grow the trees of each output on the training molecules that have its target.

    A tree that is grown on targets 0 and 1 by squared error is one grown by Gini impurity. Nothing is chosen by the
    validation part.
    """
    bits = _compute_features(problem)[:, :-1].numpy()  # the last column is for no bit
    return _fit_outputs(problem, bits, _grow_forest)


def fit_descriptor_boosting(problem: SklearnProblem) -> SklearnFit:
    """Fit the trees of each output to the training molecules that have its target.

    Labels and classes are fitted by log loss, each against the rest; numbers by squared error. Nothing is chosen by the
    validation part.
    """
    return _fit_outputs(problem, _compute_features(problem).double().numpy(), _fit_boosting)


def _compute_features(problem: SklearnProblem) -> Float[Tensor, "train columns"]:
    """What the model's readout gives its head for the training molecules."""
    nothing, chunks = torch.zeros(0, 0), problem.split.train.split(1024)
    return torch.cat([problem.model.readout(nothing, problem.dataset.batch(chunk)) for chunk in chunks])


def _fit_outputs(problem: SklearnProblem, x: Numbers, fit_output: FitOutput) -> SklearnFit:
    """The weights of the model's head, output by output."""
    targets, baselines, trees = problem.targets(), [], []
    for output, weights in enumerate(problem.sample_weights().T.numpy()):
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
    problem: SklearnProblem, bits: Numbers, target: Numbers, weights: Numbers, seed: int
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
    problem: SklearnProblem, x: Numbers, target: Numbers, weights: Numbers, seed: int
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
