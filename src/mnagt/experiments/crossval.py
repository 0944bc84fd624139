"""Stratified cross-validation: every graph is tested once, by a model that never saw it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean, stdev

from mnagt.data.registry import load_dataset
from mnagt.experiments.executors import run_parallel
from mnagt.runs.config import RunConfig
from mnagt.training.run import train


@dataclass(frozen=True)
class Fold:
    """Results on one part of the graphs, of a model trained on the others."""

    accuracy: float
    """Share of its graphs whose class was predicted, by the weights that validation chose."""
    history: list[dict[str, float]]
    """One record an epoch: loss, valid_accuracy, ..."""
    predicted: list[int]
    """Class of each graph of the fold."""
    actual: list[int]


@dataclass(frozen=True)
class CrossValidation:
    """Results of a model on all folds."""

    model: str
    parameters: int
    folds: tuple[Fold, ...]

    @property
    def mean(self) -> float:
        return mean(fold.accuracy for fold in self.folds)

    @property
    def deviation(self) -> float:
        return stdev(fold.accuracy for fold in self.folds)


def cross_validate(
    config: RunConfig, *, jobs: int = 1, on_fold: Callable[[int, Fold], None] = lambda number, fold: None
) -> CrossValidation:
    """Train and test ``config`` on each of its folds, ``jobs`` at a time in processes of one thread each.

    ``on_fold`` is called with the number of each fold that ends and its outcome.
    """
    configs = [replace(config, split=replace(config.split, fold=i)) for i in range(config.split.folds)]
    folds, parameters = {}, 0
    with run_parallel(_run_fold, configs, jobs=jobs) as outcomes:
        for each, outcome in outcomes:
            number = each.split.fold
            folds[number], parameters = outcome()
            on_fold(number, folds[number])
    return CrossValidation(config.model, parameters, tuple(folds[number] for number in sorted(folds)))


def _run_fold(config: RunConfig) -> tuple[Fold, int]:
    """The results on a fold, and the number of parameters."""
    dataset = load_dataset(config.dataset)
    run = train(config, dataset=dataset)
    predicted = run.trained.outputs(dataset, run.split.test).argmax(dim=1).tolist()
    actual = dataset.targets[run.split.test].tolist()
    return Fold(run.result.test["accuracy"], run.history, predicted, actual), run.result.parameters
