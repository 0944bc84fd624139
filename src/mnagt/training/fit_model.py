"""Fitting a model to the training part of a data set: task, preprocessing, network and forest."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.devices import device_name, pick_device
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.outputs import matmul_precision
from mnagt.inference.random_forest import ForestEnsemble, RandomForest
from mnagt.models.registry import MODELS, build_model, resolve_settings
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.joined_model import JoinedModel
from mnagt.nn.module_model import ModuleModel
from mnagt.nn.molecule_descriptors import MoleculeDescriptors
from mnagt.nn.wl_features import COLOURS, WLFeatures
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.defaults import resolve_defaults
from mnagt.tasks import UNCERTAINTIES, Task
from mnagt.training.distributed import ALONE, Ranks
from mnagt.training.fit_members import fit_members, join_members, list_problems
from mnagt.training.fit_trees import check_can_grow, fit_forest
from mnagt.training.memory_check import check_memory, explain_out_of_memory
from mnagt.training.progress import Reporter
from mnagt.training.sklearn_trainer import SklearnTrainer
from mnagt.training.trainer import Trainer
from mnagt.training.transfer import copy_weights, load_source


@dataclass(frozen=True)
class Result:
    """What a finished run found. The test part was scored once, with the weights of ``epoch``."""

    metric: str
    epoch: int
    """The epoch that validation chose."""
    valid: float
    """Of the model as it is kept: with its forest, and with the weight of its network beside a wide part."""
    test: dict[str, float]
    parameters: int
    seconds: float
    device: str
    test_intervals: dict[str, list[float]] = field(default_factory=dict)
    """Bootstrap intervals of the test scores at the level 0.95 (``metrics.bootstrap_intervals``), by metric."""
    valid_interval: list[float] = field(default_factory=list)
    """That of ``valid``; empty where the test part was not scored."""


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained model, and what it was trained with."""

    config: RunConfig
    """Its model settings have values in place of 'auto' and None, also those that validation chose."""
    model: GraphModel
    forest: RandomForest | None
    dataset: PackedDataset
    trainer: Trainer | SklearnTrainer
    seconds: float
    """Spent fitting all parts and validating. A resumed run fits the members beside a network again."""

    def score(self, split: Split, *, with_test: bool = True) -> Result:
        """The result of the training; test scores only ``with_test``."""
        at, metric, ranks = self.trainer.at, self.trainer.task.metric, self.trainer.ranks
        valid = at.history[at.best_epoch - 1][f"valid_{metric}"]
        is_joined, interval = self.forest is not None or isinstance(self.model, JoinedModel), []
        if with_test or is_joined:
            scores, ends = self._scores(split.valid, with_intervals=with_test)
            valid, interval = scores[metric] if is_joined else valid, ends.get(metric, [])
        test, intervals = self._scores(split.test, with_intervals=True) if with_test else ({}, {})
        device = device_name(self.trainer.device) + (f", {ranks.world_size} ranks" if ranks.is_distributed else "")
        size, seconds = self.model.parameter_count, round(self.seconds, 3)
        return Result(metric, at.best_epoch, valid, test, size, seconds, device, intervals, interval)

    def _scores(
        self, indices: Int[Tensor, "some"], *, with_intervals: bool = False
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """The task's metrics over the graphs ``indices``, and their intervals; with a forest, those of the ensemble."""
        trainer, task, predictor = self.trainer, self.trainer.task, self.model
        if self.forest is not None:
            weight = self.config.settings["forest_weight"]
            predictor: nn.Module = ForestEnsemble(self.model, self.forest.to(trainer.device), task, weight)
        with matmul_precision(trainer.device, self.config.train.precision):
            output = trainer.ranks.outputs(
                predictor, trainer.dataset, indices, trainer.evaluation_batch_size, task.reduce_output
            )
        target = trainer.dataset.targets[indices.to(trainer.device)]
        return trainer.ranks.broadcast_from_rank0(
            lambda: (task.scores(output, target), task.score_intervals(output, target) if with_intervals else {})
        )

    def to_trained(self, origin: dict[str, Any]) -> TrainedModel:
        """The model for inference, on the CPU."""
        return TrainedModel(
            self.model.cpu().eval(),
            self.trainer.task,
            self.config.model,
            self.config.settings,
            origin,
            self.dataset.vocabularies,
            columns=self.dataset.columns,
            forest=None if self.forest is None else self.forest.cpu(),
        )


def fit_model(
    config: RunConfig,
    dataset: PackedDataset,
    split: Split,
    *,
    device: torch.device | None = None,
    checkpoint: Path | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_start: Callable[[RunConfig], None] = lambda config: None,
    with_forest: bool = True,
    ranks: Ranks = ALONE,
) -> FittedModel:
    """Fit the model of ``config`` to ``split.train``; ``split.valid`` chooses the epoch. The test part is not read.

    ``on_start`` is called with the settings in full once everything is ready to train. Without ``with_forest`` a forest
    that the settings ask for is left out: validation scores of epochs are those of the network alone in any case.
    """
    device = pick_device(config.device) if device is None else device
    config = resolve_defaults(config, dataset, split)
    task = fit_task(config.train, dataset, split.train)
    source, features = load_source(config), dataset.features
    if source is not None:
        dataset, features = source.align(dataset), source.model.features
    settings = resolve_settings(config.model, config.settings, features, task.num_outputs)
    config, members, seconds = replace(config, settings=settings), {}, 0.0
    if MODELS[config.model].is_joined and task.level == "graph":
        problems, start = list_problems(config, dataset, split, task, should_stop), time.monotonic()
        chosen, members = ranks.broadcast_from_rank0(lambda: fit_members(problems))
        config, seconds = replace(config, settings=settings | chosen), time.monotonic() - start
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(config.train.seed)
        model = build_model(config.model, config.settings, features, task.num_outputs, task.level)
    common: dict[str, Any] = {"device": device, "reporter": reporter, "should_stop": should_stop, "ranks": ranks}
    if MODELS[config.model].is_fitted_by_sklearn:
        trainer = SklearnTrainer(config, model, dataset, split, task, **common)
        on_start(config)
        trainer.run()
        config = replace(config, settings=trainer.settings)
        return FittedModel(config, trainer.model, None, dataset, trainer, trainer.at.seconds)
    if (forest := RandomForest.from_settings(config.settings, task.num_outputs)) is not None:
        check_can_grow(task, dataset.targets)
        forest = forest if with_forest else None
    dataset = fit_preprocessing(model, dataset, split.train, {} if forest is None else forest.encodings)
    if source is not None:
        copy_weights(source, model, task)
    check_memory(model, dataset, config.train, device)
    with explain_out_of_memory(device, config):
        on_start(config)
        network = model.network if isinstance(model, JoinedModel) else model
        trainer = Trainer(network, dataset, split, task, config.train, checkpoint=checkpoint, **common)
        trainer.run()
    start = time.monotonic()
    if isinstance(model, JoinedModel):
        join_members(model, members, trainer, split)
    if forest is not None:
        fit_forest(forest, dataset, split.train, task, config.train.seed, should_stop)
    seconds += trainer.at.seconds + time.monotonic() - start
    return FittedModel(config, model, forest, dataset, trainer, seconds)


def fit_task(config: TrainConfig, dataset: PackedDataset, train: Int[Tensor, "some"]) -> Task:
    """The data set's task, fitted to the targets of the training part: scaling, vocabulary, class weights."""
    targets = dataset.targets[train]
    task = dataset.task
    if config.target_transform != TrainConfig.target_transform:
        task = task.with_target_transform(config.target_transform)
    if config.uncertainty != TrainConfig.uncertainty:
        task = task.with_uncertainty(UNCERTAINTIES[config.uncertainty])
    if config.target_weights:
        task = task.with_target_weights(config.target_weights)
    task = task.fit(targets).with_metric(config.metric)
    if config.class_weights:
        task = task.with_class_weights(targets)
    return task.with_label_smoothing(config.label_smoothing) if config.label_smoothing else task


def fit_preprocessing(
    model: GraphModel, dataset: PackedDataset, train: Int[Tensor, "some"], more: dict[str, int] | None = None
) -> PackedDataset:
    """Fit the WL vocabulary and the scaling of descriptors of ``model``, if it has them, to ``train``.

    Returns the data set with the model's encodings and ``more``.
    """
    if isinstance(model, ModuleModel):
        model.fit_columns(dataset.columns, dataset.vocabularies)
    dataset = with_encodings(dataset, model.encodings | (more or {}))
    for module in model.modules():
        if isinstance(module, WLFeatures):
            module.fit_vocabulary(*dataset.select_encoding(COLOURS, train))
        elif isinstance(module, MoleculeDescriptors):
            module.fit_scaling(dataset.batch(chunk) for chunk in train.split(1024))
    return dataset
