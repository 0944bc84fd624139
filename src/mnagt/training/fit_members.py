"""Fits the members beside the network of a joined model, and weighs all of them by the validation part."""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError
from mnagt.inference.weights import select_prefix
from mnagt.models.mnagt_ensemble import MnagtEnsembleConfig
from mnagt.models.mnagt_wl import WIDE, MnagtWLConfig
from mnagt.models.registry import MODELS, build_model, full_settings
from mnagt.nn.decision_trees import LINKS
from mnagt.nn.graph_model import resize_tables
from mnagt.nn.joined_model import JoinedModel, MemberReadout, WeightedMean
from mnagt.runs.config import RunConfig
from mnagt.settings import from_dict
from mnagt.tasks import Task
from mnagt.training.sklearn_problem import SklearnFit, SklearnProblem, check_can_fit
from mnagt.training.sklearn_trainer import FITS
from mnagt.training.trainer import Trainer

STEPS = 10
"""Weights of a mean that validation chooses from are multiples of one in so many."""
PRIOR = 1.0
"""How much unequal weights cost: a member alone of three has to have a loss smaller by a factor of 1.67."""
SHARES = torch.linspace(0, 1, 11)
"""Shares of the network in a sum that validation chooses from."""
FACTORS = torch.logspace(-1, 1, 21)
"""Factors of the sum: a linear SVM's outputs are no log-odds, and a network's are too sure."""

_log = logging.getLogger(__name__)


def list_problems(
    config: RunConfig, dataset: PackedDataset, split: Split, task: Task, should_stop: Callable[[], bool]
) -> dict[str, SklearnProblem]:
    """What the members beside the network are to learn, by their names; none if the task lets none be fitted."""
    settings = from_dict(MODELS[config.model].config, config.settings, where=config.model)
    assert isinstance(settings, MnagtWLConfig | MnagtEnsembleConfig)
    if isinstance(settings, MnagtWLConfig):
        check_can_fit(config, task)
    elif reason := _find_obstacle(task, dataset):
        _log.warning("the network is trained alone: %s", reason)
        return {}
    problems = {}
    for name, member_settings in settings.member_settings.items():
        model = build_model(_model_name(name), member_settings, dataset.features, task.num_outputs)
        encoded, full = with_encodings(dataset, model.encodings), full_settings(_model_name(name), member_settings)
        problems[name] = SklearnProblem(model, full, encoded, split, task, config.train.seed, should_stop)
    return problems


def _model_name(member: str) -> str:
    return "wl-linear" if member == WIDE else member


def _find_obstacle(task: Task, dataset: PackedDataset) -> str:
    """Why trees cannot learn the task; empty if they can."""
    if task.link is None:
        return f"trees predict classes or numbers, and the task is {task.kind}"
    try:
        task.target_probability(dataset.targets[:0])
    except InputError as error:
        return str(error)
    return ""


def fit_members(problems: Mapping[str, SklearnProblem]) -> SklearnFit:
    """The settings of the joined model that the fits chose, and the weights of each member, below its name."""
    settings, tensors = {} if problems else {"members": []}, {}
    for name, problem in problems.items():
        chosen, weights = FITS[_model_name(name)](problem)
        settings |= chosen if name == WIDE else {}  # its settings are those of the joined model
        tensors |= {f"{name}.{key}": tensor for key, tensor in weights.items()}
    return settings, tensors


def join_members(model: JoinedModel, tensors: Mapping[str, Tensor], trainer: Trainer, split: Split) -> None:
    """Put what ``fit_members`` returned into a model whose network is trained, and let validation weigh the members."""
    for name, member in model.readout.members.items():
        weights = select_prefix(f"{name}.", tensors)
        if not isinstance(member, MemberReadout):
            weights = select_prefix("readout.", weights)
        resize_tables(member, weights)
        member.load_state_dict(weights)
    if isinstance(model.head, WeightedMean):
        model.head.link.fill_(LINKS.index(trainer.task.link))
    choose_member_weights(model.to(trainer.device).eval(), trainer, split)


@torch.no_grad()
def choose_member_weights(model: JoinedModel, trainer: Trainer, split: Split) -> None:
    """Give the members the weights with the least loss on the validation part; see ``list_weights``, ``list_sums``.

    The loss chooses, because a validation part is too small for a score to tell neighbouring weights apart. Unequal
    weights of a mean make it larger by ``PRIOR``: graphs to come are less like the training part than those of the
    validation part are (docs/log.md). Where losses do not differ or are not finite, as where no validation graph has a
    target, weights are equal.
    """
    target = trainer.dataset.targets[split.valid.to(trainer.device)]
    each = model.outputs_of_members(
        lambda: trainer.ranks.outputs(model, trainer.dataset, split.valid, trainer.evaluation_batch_size).float()
    )
    outputs, losses = torch.stack(list(each.values())), []
    candidates = torch.stack(list(list_weights(len(outputs)) if model.is_mean else list_sums(outputs)))
    for weights in candidates:
        model.weights.copy_(weights)
        losses.append(float(trainer.task.loss(model.head.join(outputs), target)))
    prior = PRIOR if model.is_mean else 0.0
    model.weights.copy_(choose_weights(candidates, torch.tensor(losses, dtype=torch.double), prior))
    named = zip(model.members, model.weights.tolist(), strict=True)
    _log.info("weights chosen by validation: %s", ", ".join(f"{name} {weight:.1f}" for name, weight in named))


def choose_weights(
    candidates: Float[Tensor, "candidates models"], losses: Float[Tensor, "candidates"], prior: float = PRIOR
) -> Float[Tensor, "models"]:
    """The weights whose loss, times 1 plus ``prior`` times their squared distance to equal ones, is the least.

    >>> choose_weights(torch.eye(2), torch.tensor([1.0, 3.0])), choose_weights(torch.eye(2), torch.zeros(2))
    (tensor([1., 0.]), tensor([0.5000, 0.5000]))
    """
    equal = torch.full_like(candidates[0], 1 / candidates.shape[1])
    is_known = losses.isfinite()
    if not is_known.any() or losses[is_known].min() == losses[is_known].max():
        return equal
    distance = (candidates - equal).square().sum(dim=1)
    order = distance.argsort(stable=True)  # of several with no loss, the nearest to equal weights
    costs = (losses * (1 + prior * distance)).where(is_known, torch.inf)[order]
    return candidates[order[costs.argmin()]]


def list_weights(models: int, steps: int = STEPS) -> Iterator[Float[Tensor, "models"]]:
    """All weights that are multiples of 1 / ``steps`` and sum to 1.

    >>> [weights.tolist() for weights in list_weights(2, steps=2)]
    [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    """
    for parts in product(range(steps + 1), repeat=models - 1):
        if sum(parts) <= steps:
            yield torch.tensor([*parts, steps - sum(parts)]) / steps


def list_sums(outputs: Float[Tensor, "2 graphs outputs"]) -> Iterator[Float[Tensor, "2"]]:
    """Weights of the network and of the member beside it, whose outputs are divided by their deviation.

    Of what is then added, the network has one of ``SHARES``: 0 leaves it out, 1 leaves out the other. The sum is
    multiplied by one of ``FACTORS``.
    """
    scale = torch.stack([1 / deviation(output).clamp(min=1e-6) for output in outputs]).cpu()
    for share, factor in product(SHARES.tolist(), FACTORS.tolist()):
        yield factor * scale * torch.tensor([share, 1 - share])


def deviation(output: Float[Tensor, "graphs outputs"]) -> Float[Tensor, ""]:
    """Root mean square of the outputs; of several, around the mean of each graph, which no class depends on."""
    centred = output - output.mean(dim=1, keepdim=True) if output.shape[1] > 1 else output
    return centred.square().mean().sqrt()
