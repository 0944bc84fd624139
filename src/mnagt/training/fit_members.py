"""Fits the models of trees beside a network, and weighs all of them by the validation part."""

import logging
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError
from mnagt.inference.weights import select_prefix
from mnagt.models.mnagt_ensemble import MnagtEnsembleConfig
from mnagt.models.registry import build_model, full_settings
from mnagt.nn.decision_trees import LINKS
from mnagt.nn.graph_model import resize_tables
from mnagt.nn.weighted_mean import JoinedReadout, WeightedMean, WeightedMeanHead
from mnagt.runs.config import RunConfig
from mnagt.settings import from_dict
from mnagt.tasks import Task
from mnagt.training.sklearn_problem import Fitted, Problem
from mnagt.training.sklearn_trainer import FITS
from mnagt.training.trainer import Trainer

STEPS = 10
"""Weights that validation chooses from are multiples of one in so many."""
PRIOR = 1.0
"""How much unequal weights cost: a member alone of three has to have a loss smaller by a factor of 1.67."""

logger = logging.getLogger(__name__)


def fit_members(config: RunConfig, dataset: PackedDataset, split: Split, task: Task, **others: Any) -> Fitted:
    """The members that the task lets be fitted, and their weights, each below its name."""
    settings = from_dict(MnagtEnsembleConfig, config.settings, where=config.model)
    if task.link is None:
        logger.warning("the network is trained alone: trees predict classes or numbers, and the task is %s", task.kind)
        return {"members": []}, {}
    try:
        task.target_probability(dataset.targets[:0])
    except InputError as error:
        logger.warning("the network is trained alone: %s", error)
        return {"members": []}, {}
    tensors: dict[str, Tensor] = {}
    for name, chosen in settings.member_settings.items():
        model = build_model(name, chosen, dataset.features, task.num_outputs)
        encoded, full = with_encodings(dataset, model.encodings), full_settings(name, chosen)
        _, weights = FITS[name](Problem(model, full, encoded, split, task, config.train.seed, **others))
        tensors |= {f"{name}.{key}": tensor for key, tensor in weights.items()}
    return {}, tensors


def set_members(model: WeightedMean, tensors: dict[str, Tensor], task: Task) -> None:
    """Put what ``fit_members`` returned into the model."""
    assert isinstance(model.readout, JoinedReadout)
    assert isinstance(model.head, WeightedMeanHead)
    for name, member in model.readout.members.items():
        weights = select_prefix(f"{name}.", tensors)
        resize_tables(member, weights)
        member.load_state_dict(weights)
    model.head.link.fill_(LINKS.index(task.link))


@torch.no_grad()
def choose_member_weights(model: WeightedMean, trainer: Trainer, split: Split) -> None:
    """Give the members the weights with the least loss on the validation part, which unequal weights make larger.

    The loss is multiplied by 1 plus ``PRIOR`` times the squared distance of the weights to equal ones: validation parts
    are small, and molecules to come are less like the training part than they are (docs/log.md). Where losses do not
    differ or are not finite, as where no validation graph has a target, weights are equal.
    """
    head, task = model.head, trainer.task
    assert isinstance(head, WeightedMeanHead)
    target = trainer.dataset.targets[split.valid.to(trainer.device)]
    found = model.parts(
        lambda: trainer.ranks.outputs(model, trainer.dataset, split.valid, trainer.evaluation_batch_size).float()
    )
    outputs = torch.stack(list(found.values()))
    candidates, losses = torch.stack(list(list_weights(len(outputs)))), []
    for weights in candidates:
        head.weights.copy_(weights)
        losses.append(float(task.loss(head.join(outputs), target)))
    head.weights.copy_(choose_weights(candidates, torch.tensor(losses, dtype=torch.double)))
    named = zip(model.members, head.weights.tolist(), strict=True)
    logger.info("weights chosen by validation: %s", ", ".join(f"{name} {weight:.1f}" for name, weight in named))


def choose_weights(
    candidates: Float[Tensor, "candidates members"], losses: Float[Tensor, "candidates"]
) -> Float[Tensor, "members"]:
    """The weights whose loss, times 1 plus ``PRIOR`` times their squared distance to equal ones, is the least.

    >>> choose_weights(torch.eye(2), torch.tensor([1.0, 3.0])), choose_weights(torch.eye(2), torch.zeros(2))
    (tensor([1., 0.]), tensor([0.5000, 0.5000]))
    """
    equal = torch.full_like(candidates[0], 1 / candidates.shape[1])
    is_known = losses.isfinite()
    if not is_known.any() or losses[is_known].min() == losses[is_known].max():
        return equal
    distance = (candidates - equal).square().sum(dim=1)
    order = distance.argsort(stable=True)  # of several with no loss, the nearest to equal weights
    costs = (losses * (1 + PRIOR * distance)).where(is_known, torch.inf)[order]
    return candidates[order[costs.argmin()]]


def list_weights(members: int, steps: int = STEPS) -> Iterator[Float[Tensor, "members"]]:
    """All weights that are multiples of 1 / ``steps`` and sum to 1.

    >>> [weights.tolist() for weights in list_weights(2, steps=2)]
    [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    """
    for parts in product(range(steps + 1), repeat=members - 1):
        if sum(parts) <= steps:
            yield torch.tensor([*parts, steps - sum(parts)]) / steps
