"""Fits the wide part of a wide-and-deep model before its network is trained, and weighs the two after."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.models.registry import build_model
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.wide_and_deep import FOLDS, WideAndDeep, WideAndDeepHead, fold_of_graphs
from mnagt.nn.wl_counts import COLOURS, initial_colours
from mnagt.runs.config import RunConfig
from mnagt.tasks import Task
from mnagt.training.fit_wl_linear import fit_wl_linear
from mnagt.training.sklearn_problem import Problem, check_can_fit
from mnagt.training.trainer import Trainer, validation_scores

WIDE_SETTINGS = ("wl_iterations", "wl_min_graphs", "normalisation", "classifier", "C")
"""Those of ``wl-linear``."""
DEEP_WEIGHTS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5)
"""Weights of the network that validation chooses from."""


@dataclass(frozen=True, eq=False)
class FittedWide:
    """A linear model over WL subtree counts, and for each fold one that has not seen it."""

    settings: dict[str, Any]
    """As validation chose them."""
    tensors: dict[str, Tensor]
    fold_weight: Float[Tensor, "colours folds outputs"]
    fold_bias: Float[Tensor, "folds outputs"]

    def set(self, model: GraphModel) -> None:
        """Put the weights into a model with these settings."""
        assert isinstance(model, WideAndDeep)
        model.resize({f"readout.wide.{name}": tensor for name, tensor in self.tensors.items()})
        wide = model.get_submodule("readout.wide")
        wide.load_state_dict(self.tensors)
        wide.fold_weight, wide.fold_bias = self.fold_weight, self.fold_bias


def fit_wide(problem: Problem) -> FittedWide:
    """Fit the linear model to the training part, and once more without each fold of it."""
    settings, tensors = fit_wl_linear(problem)
    tensors = {name.removeprefix("readout."): tensor for name, tensor in tensors.items()}
    columns = initial_colours(problem.dataset.features) + settings["wl_iterations"]
    colours, graph = problem.dataset.select_encoding(COLOURS, torch.arange(len(problem.dataset)))
    fold = fold_of_graphs(colours[:, :columns], graph, len(problem.dataset))[problem.split.train]
    fold_weight = torch.zeros(len(tensors["key"]), FOLDS, problem.task.num_outputs)
    fold_bias = torch.zeros(FOLDS, problem.task.num_outputs)
    for number in range(FOLDS):
        others = problem.split.train[fold != number]
        if not 0 < len(others) < len(fold):
            continue
        split = replace(problem.split, train=others)
        _, fitted = fit_wl_linear(replace(problem, settings=settings, split=split))
        rows = torch.searchsorted(tensors["key"], fitted["readout.key"])
        fold_weight[rows, number], fold_bias[number] = fitted["readout.weight"], fitted["readout.bias"]
    return FittedWide(settings, tensors, fold_weight, fold_bias)


def make_wide_problem(config: RunConfig, dataset: PackedDataset, split: Split, task: Task, **others: Any) -> Problem:
    """The problem of the wide part alone: that of ``wl-linear`` with the same settings."""
    check_can_fit(config, task)
    settings = {name: config.settings[name] for name in WIDE_SETTINGS}
    model = build_model("wl-linear", settings, dataset.features, task.num_outputs)
    dataset = with_encodings(dataset, model.encodings)
    return Problem(model, settings, dataset, split, task, config.train.seed, **others)


@torch.no_grad()
def choose_deep_weight(trainer: Trainer, split: Split) -> None:
    """Give the trained network the weight with the best validation score; of equal ones the smallest."""
    head, task, dataset = trainer.model.head, trainer.task, trainer.dataset
    assert isinstance(head, WideAndDeepHead)
    target = dataset.targets[split.valid.to(trainer.device)]
    outputs = []
    for weight in (0.0, 1.0):
        head.deep_weight.fill_(weight)
        outputs.append(trainer.ranks.outputs(trainer.model, dataset, split.valid, trainer.evaluation_batch_size))
    wide, both = outputs
    chosen, best = 0.0, None
    for weight in DEEP_WEIGHTS:
        score = validation_scores(task, wide + weight * (both - wide), target)[task.metric]
        if task.is_better(score, best):
            chosen, best = weight, score
    head.deep_weight.fill_(chosen)
