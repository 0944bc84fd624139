"""What a model that scikit-learn fits is to learn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError
from mnagt.nn.graph_model import GraphModel
from mnagt.runs.config import RunConfig
from mnagt.tasks import Task
from mnagt.training.trainer import Interrupted


@dataclass(frozen=True, eq=False)
class SklearnProblem:
    """Graphs, their targets, and the settings with which a model is fitted to them."""

    model: GraphModel
    """With fresh weights: it says which features of graphs it reads."""
    settings: Mapping[str, Any]
    dataset: PackedDataset
    """On the CPU, with the model's encodings."""
    split: Split
    task: Task
    seed: int
    should_stop: Callable[[], bool] = lambda: False

    @property
    def can_choose(self) -> bool:
        """Whether the validation part can choose settings: a part of the training graphs would choose the largest."""
        return not bool(torch.isin(self.split.valid, self.split.train).any())

    def targets(self) -> Float[Tensor, "train outputs"]:
        """The value of each output for a perfect prediction: 0 or 1, or standardised numbers; NaN where missing."""
        return self.task.target_probability(self.dataset.targets[self.split.train].cpu())

    def sample_weights(self) -> Float[Tensor, "train outputs"]:
        """The weight of each target in the fit: that of its class, times that of its row."""
        weights, rows = self.task.sample_weights(self.targets()), self.dataset.row_weights
        return weights if rows is None else weights * rows[self.split.train, None]

    def check_stop(self) -> None:
        """End the fit if a user asked for it."""
        if self.should_stop():
            raise Interrupted


SklearnFit = tuple[dict[str, Any], dict[str, Tensor]]
"""The settings in full, as they were chosen, and the weights of a model with these settings."""


def check_can_fit(config: RunConfig, task: Task) -> None:
    """Refuse what cannot be fitted."""
    if task.link is None:
        raise InputError(
            f"{config.model} predicts classes, labels or numbers, and the task is {task.kind}; choose another model, "
            "such as counts"
        )
    if config.train.label_smoothing:
        raise InputError(f"{config.model} is fitted by scikit-learn, without label_smoothing; leave it out")
