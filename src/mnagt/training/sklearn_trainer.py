"""Fits models with scikit-learn where ``Trainer`` would train them for epochs."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.inference.weights import load_weights
from mnagt.models.registry import build_model
from mnagt.nn.graph_model import GraphModel, resize_tables
from mnagt.runs.config import RunConfig
from mnagt.tasks import Task
from mnagt.training.distributed import ALONE, Ranks
from mnagt.training.fit_trees import fit_descriptor_boosting, fit_morgan_forest
from mnagt.training.fit_wl_linear import fit_wl_linear
from mnagt.training.progress import Reporter
from mnagt.training.sklearn_problem import SklearnFit, SklearnProblem, check_can_fit
from mnagt.training.trainer import Position, evaluation_batch_size, validation_scores

FITS: dict[str, Callable[[SklearnProblem], SklearnFit]] = {
    "wl-linear": fit_wl_linear,
    "morgan-forest": fit_morgan_forest,
    "descriptor-boosting": fit_descriptor_boosting,
}
"""What fits each model."""


class SklearnTrainer:
    """Fits the model of ``config`` to ``split.train``; ``split.valid`` chooses what its settings leave open.

    In place of ``Trainer``, with the same attributes: the fit is an epoch, and the history has one record. There is no
    checkpoint: a run that was interrupted is fitted again. In distributed training rank 0 fits. The test part is not
    read.
    """

    def __init__(
        self,
        config: RunConfig,
        model: GraphModel,
        dataset: PackedDataset,
        split: Split,
        task: Task,
        *,
        device: torch.device | str = "cpu",
        reporter: Reporter | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks = ALONE,
    ) -> None:
        check_can_fit(config, task)
        self.config, self.split, self.task, self.ranks = config, split, task, ranks
        self.reporter, self.device = reporter or Reporter(), torch.device(device)
        self.model, self.settings, self.at = model, dict(config.settings), Position()
        dataset = with_encodings(dataset, model.encodings)
        self.problem = SklearnProblem(model, self.settings, dataset, split, task, config.train.seed, should_stop)
        self.dataset = dataset.to(self.device)
        self.evaluation_batch_size = evaluation_batch_size(dataset, config.train)

    def run(self) -> Position:
        """Fit the model and score the validation part."""
        self.reporter.begin(1, 1, self.at.history)
        start = time.monotonic()
        self._set_model(*self.ranks.broadcast_from_rank0(lambda: FITS[self.config.model](self.problem)))
        record, best = self._evaluate()
        self.at = Position(1, 0, 0.0, 1, best, [record], time.monotonic() - start)
        self.reporter.epoch(record, best)
        return self.at

    def _set_model(self, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take on a fitted model; sizes of its tables are those of ``tensors``."""
        model = build_model(self.config.model, settings, self.model.features, self.task.num_outputs)
        resize_tables(model, tensors)
        load_weights(model, tensors, Path(self.config.model))
        self.settings, self.model = settings, model.to(self.device).eval()

    def _evaluate(self) -> tuple[dict[str, float], float]:
        """The loss of the training part and the scores of the validation part, and the score that counts."""
        (trained, train_target), (output, target) = map(self._outputs, (self.split.train, self.split.valid))
        loss = self.task.loss(trained, train_target).item()
        valid = self.ranks.broadcast_from_rank0(lambda: validation_scores(self.task, output, target))
        record = {"epoch": 1, "loss": loss, "lr": 0.0} | {f"valid_{name}": score for name, score in valid.items()}
        return record, valid[self.task.metric]

    def _outputs(self, indices: Int[Tensor, "some"]) -> tuple[Tensor, Tensor]:
        """Outputs and targets of these graphs."""
        output = self.ranks.outputs(self.model, self.dataset, indices, self.evaluation_batch_size)
        return output, self.dataset.targets[indices.to(self.device)]
