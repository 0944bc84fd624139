"""Fits what stands beside the network of a joined model, and joins the two."""

from typing import Any

from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.models.registry import MODELS
from mnagt.models.wl_linear import WLCountsConfig
from mnagt.nn.joined_model import JoinedModel
from mnagt.nn.weighted_mean import WeightedMean
from mnagt.nn.wide_and_deep import WideAndDeep
from mnagt.runs.config import RunConfig
from mnagt.tasks import Task
from mnagt.training.fit_members import choose_member_weights, fit_members, set_members
from mnagt.training.fit_wide import choose_weights, fit_wide, set_wide
from mnagt.training.sklearn_problem import Fitted
from mnagt.training.trainer import Trainer


def fit_beside(config: RunConfig, dataset: PackedDataset, split: Split, task: Task, **others: Any) -> Fitted:
    """The settings that were chosen and the weights of what stands beside the network of ``config``."""
    fit = fit_wide if issubclass(MODELS[config.model].config, WLCountsConfig) else fit_members
    return fit(config, dataset, split, task, **others)


def join(model: JoinedModel, beside: dict[str, Tensor], trainer: Trainer, split: Split) -> None:
    """Put the weights ``beside`` into a model whose network is trained, and let validation weigh the members."""
    if isinstance(model, WideAndDeep):
        set_wide(model, beside)
        choose_weights(model.to(trainer.device).eval(), trainer, split)
    else:
        assert isinstance(model, WeightedMean)
        set_members(model, beside, trainer.task)
        choose_member_weights(model.to(trainer.device).eval(), trainer, split)
