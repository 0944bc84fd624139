"""Grows the trees that stand beside a network (``models/forest.py``), with scikit-learn."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.models.forest import DEPTH
from mnagt.models.graph_model import GraphModel
from mnagt.tasks import Task
from mnagt.training.fit import Interrupted

logger = logging.getLogger(__name__)

SAMPLE = 2**14
"""Graphs that a tree is grown on, at most."""
COMMON = 4
"""Of two answers, how much more of the commoner one are drawn, at most: trees grow faster and rank no worse."""


def check(model: GraphModel, task: Task, targets: Tensor) -> None:
    """Refuse a forest that could not be grown, before there is a network to lose."""
    if model.forest is None:
        return
    task.truth(targets[:0])
    if find_spec("sklearn") is None:
        raise InputError("trees are grown with scikit-learn: pip install 'mnagt[sklearn]', or set trees to 0")


def grow(
    model: GraphModel,
    dataset: PackedDataset,
    train: Int[Tensor, "some"],
    task: Task,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Grow the model's forest, if it has one, from the training part of ``dataset``: on the CPU, encodings with it."""
    if model.forest is None:
        return
    device, forest = model.forest.value.device, model.forest.cpu()
    logger.info("growing %d trees", forest.outputs * forest.trees)
    forest.meet(*dataset.encoded("fragments", train))
    pieces = torch.cat([forest.pieces(dataset.batch(some)) for some in train.split(1024)])[:, : forest.columns].numpy()
    for output, truth in enumerate(task.truth(dataset.targets[train]).T.numpy()):
        is_known = np.isfinite(truth)
        if not is_known.any():
            forest.value[forest.of(output)] = 0.5  # neither yes nor no
            continue
        drawn = Drawn.of(truth, is_known)
        forest.odds[output] = drawn.odds
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            chances = [np.random.default_rng((seed, output, tree)) for tree in range(forest.trees)]
            growing = [pool.submit(_grown, pieces, drawn, forest.leaves, chance) for chance in chances]
            for tree, grown in enumerate(growing):
                if should_stop():
                    pool.shutdown(cancel_futures=True)
                    raise Interrupted
                forest.plant(output * forest.trees + tree, *grown.result())
    forest.task = task
    forest.to(device)


@dataclass(frozen=True, eq=False)
class Drawn:
    """The graphs that trees are grown on, some for each."""

    truth: NDArray[np.float32]
    groups: list[NDArray[np.int64]]
    """Graphs that say yes, and those that say no; of numbers, all."""
    counts: list[int]
    """How many of each group a tree draws, some of them twice."""

    @classmethod
    def of(cls, truth: NDArray[np.float32], is_known: NDArray[np.bool_]) -> "Drawn":
        groups = [(is_known & (truth == answer)).nonzero()[0] for answer in (1, 0)]
        counts = [len(group) for group in groups]
        if not all(counts) or sum(counts) < is_known.sum():
            groups = [is_known.nonzero()[0]]
            return cls(truth, groups, [min(len(groups[0]), SAMPLE)])
        counts = [min(count, COMMON * min(counts)) for count in counts]
        part = min(1.0, SAMPLE / sum(counts))
        return cls(truth, groups, [max(1, int(part * count)) for count in counts])

    @property
    def odds(self) -> float:
        """How much likelier a yes is among those drawn than among all."""
        if len(self.groups) == 1:
            return 1.0
        (yes, no), (all_yes, all_no) = self.counts, map(len, self.groups)
        return yes * all_no / (no * all_yes)

    def once(self, chance: np.random.Generator) -> NDArray[np.int64]:
        """The graphs for a tree."""
        return np.concatenate([chance.choice(*each) for each in zip(self.groups, self.counts, strict=True)])


Tree = tuple[Tensor, Tensor, Tensor, Tensor]
"""As ``Forest.plant`` takes it."""


def _grown(pieces: NDArray[np.uint8], drawn: Drawn, leaves: int, chance: np.random.Generator) -> Tree:
    from sklearn.tree import DecisionTreeRegressor

    graphs, state = drawn.once(chance), int(chance.integers(2**31))
    tree = DecisionTreeRegressor(max_features="sqrt", max_leaf_nodes=leaves, max_depth=DEPTH, random_state=state)
    tree = tree.fit(pieces[graphs].astype(np.float32), drawn.truth[graphs]).tree_
    parts = tree.feature, tree.children_left, tree.children_right, tree.value[:, 0, 0]
    return tuple(map(torch.from_numpy, parts))  # type: ignore[return-value]
