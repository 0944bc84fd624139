"""Fits the trees of a random forest with scikit-learn."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.inference.random_forest import COLOURS, MAX_DEPTH, RandomForest
from mnagt.nn.graph_model import resize_tables
from mnagt.tasks import Task
from mnagt.training.trainer import Interrupted
from mnagt.training.tree_tables import Tree, join_trees

logger = logging.getLogger(__name__)

MAX_SAMPLE = 2**14
"""Graphs that a tree is grown on, at most."""
MAX_RATIO = 4
"""Of two classes, how many more of the more frequent one are drawn, at most: trees grow faster and rank no worse."""


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
    logger.info("growing %d trees%s", forest.trees, each)
    forest.fit_vocabulary(*dataset.select_encoding(COLOURS, train))
    features = torch.cat([forest.presence_features(dataset.batch(chunk)) for chunk in train.split(1024)])
    features, trees = features[:, : forest.columns].numpy(), list[Tree]()
    for output, target in enumerate(task.target_probability(dataset.targets[train]).T.numpy()):
        if not np.isfinite(target).any():
            trees += [Tree.leaf(0.5)] * forest.trees
            continue
        sampler = Sampler.from_targets(target)
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

    @classmethod
    def from_targets(cls, target: NDArray[np.float32]) -> "Sampler":
        """``target`` is NaN where it is missing; such graphs are never drawn."""
        groups, labelled = [(target == label).nonzero()[0] for label in (1, 0)], np.isfinite(target).nonzero()[0]
        counts = [len(group) for group in groups]
        if not all(counts) or sum(counts) < len(labelled):
            return cls(target, [labelled], [min(len(labelled), MAX_SAMPLE)])
        counts = [min(count, MAX_RATIO * min(counts)) for count in counts]
        part = min(1.0, MAX_SAMPLE / sum(counts))
        return cls(target, groups, [max(1, int(part * count)) for count in counts])

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
        max_features="sqrt", max_leaf_nodes=max_leaves, max_depth=MAX_DEPTH, random_state=state
    )
    return Tree.from_forest(tree.fit(features[graphs].astype(np.float32), sampler.target[graphs]).tree_)
