"""Fits the wide part of a wide-and-deep model, and weighs it against the trained network."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.models.registry import build_model
from mnagt.nn.graph_model import resize_tables
from mnagt.nn.wide_and_deep import WideAndDeep, WideAndDeepHead
from mnagt.runs.config import RunConfig
from mnagt.tasks import Task
from mnagt.training.fit_wl_linear import fit_wl_linear
from mnagt.training.sklearn_problem import Fitted, Problem, check_can_fit
from mnagt.training.trainer import Trainer

WIDE_SETTINGS = ("wl_iterations", "wl_min_graphs", "normalisation", "classifier", "C")
"""Those of ``wl-linear``."""
SHARES = torch.linspace(0, 1, 11)
"""Shares of the network in the sum that validation chooses from."""
FACTORS = torch.logspace(-1, 1, 21)
"""Factors of the sum: a linear SVM's outputs are no log-odds, and a network's are too sure."""


def fit_wide(config: RunConfig, dataset: PackedDataset, split: Split, task: Task, **others: Any) -> Fitted:
    """The settings and weights of ``wl-linear`` with the settings of the wide part."""
    check_can_fit(config, task)
    settings = {name: config.settings[name] for name in WIDE_SETTINGS}
    model = build_model("wl-linear", settings, dataset.features, task.num_outputs)
    dataset = with_encodings(dataset, model.encodings)
    return fit_wl_linear(Problem(model, settings, dataset, split, task, config.train.seed, **others))


def set_wide(model: WideAndDeep, weights: dict[str, Tensor]) -> None:
    """Put the weights of ``wl-linear`` into its wide part."""
    tensors = {name.removeprefix("readout."): tensor for name, tensor in weights.items()}
    wide = model.get_submodule("readout.wide")
    resize_tables(wide, tensors)
    wide.load_state_dict(tensors)


@torch.no_grad()
def choose_weights(model: WideAndDeep, trainer: Trainer, split: Split) -> None:
    """Give the two parts the weights with the least loss on the validation part.

    Outputs of both are divided by their deviation. Of what is then added, the network has one of ``SHARES``: 0 leaves
    it out, 1 leaves out the linear model. The sum is multiplied by one of ``FACTORS``. The loss chooses, because a
    validation part is too small for a score to tell neighbouring weights apart (docs/log.md).
    """
    head, task = model.head, trainer.task
    assert isinstance(head, WideAndDeepHead)
    target = trainer.dataset.targets[split.valid.to(trainer.device)]
    found = model.parts(
        lambda: trainer.ranks.outputs(model, trainer.dataset, split.valid, trainer.evaluation_batch_size).float()
    )
    parts = [found["wide"], found["network"]]
    scale = torch.stack([1 / deviation(part).clamp(min=1e-6) for part in parts])
    best = None
    for share in SHARES.tolist():
        for factor in FACTORS.tolist():
            weights = factor * scale * scale.new_tensor([1 - share, share])
            loss = float(task.loss(weights[0] * parts[0] + weights[1] * parts[1], target))
            if best is None or loss < best:
                best = loss
                head.weights.copy_(weights)


def deviation(output: Float[Tensor, "graphs outputs"]) -> Float[Tensor, ""]:
    """Root mean square of the outputs; of several, around the mean of each graph, which no class depends on."""
    centred = output - output.mean(dim=1, keepdim=True) if output.shape[1] > 1 else output
    return centred.square().mean().sqrt()
