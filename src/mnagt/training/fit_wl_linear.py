"""Fits the linear model over WL subtree counts; the validation part chooses what its settings leave open."""

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from mnagt.inference.calibration import fit_temperature
from mnagt.models.wl_linear import MAX_ITERATIONS
from mnagt.nn.wl_counts import COLOURS, Normalisation, WLCounts, colour_keys, normalise_counts
from mnagt.training.sklearn_problem import SklearnFit, SklearnProblem
from mnagt.training.trainer import validation_scores

_log = logging.getLogger(__name__)

TYPICAL_C: dict[Normalisation, float] = {"presence": 0.3, "log": 0.3, "raw": 0.03, "l2": 30.0, "log-l2": 30.0}
"""In the middle of what validation chooses from, for logistic regression; SVMs and ridge regression take a tenth."""
FACTORS = (1.0, 0.3, 3.0, 0.1, 10.0)
"""The rest of it, as factors."""


@dataclass(frozen=True)
class WLLinearSettings:
    """Settings that validation may choose."""

    wl_iterations: int
    normalisation: Normalisation
    classifier: str
    C: float


class LinearFit(NamedTuple):
    """A linear model of one or several outputs."""

    weight: NDArray[np.float64]
    """[features, outputs]"""
    bias: NDArray[np.float64]

    def outputs(self, features: Any) -> Tensor:
        return torch.from_numpy(features @ self.weight + self.bias).float()


def fit_wl_linear(problem: SklearnProblem) -> SklearnFit:
    """Fit weights of subtree counts to the training part.

    One setting after another takes the value with the best validation score, in the order normalisation (with C), WL
    iterations, classifier (with C). Outputs are then divided by the temperature that suits the validation part: the
    margins of an SVM become log-odds. Where validation graphs are training graphs too, nothing is chosen.
    """
    counts = SubtreeCounts(problem)
    best = _first_choice(problem)
    fit, score = counts.fit(best), None
    if problem.can_choose:
        score = counts.score(fit, best)
        for axis in ("normalisation", "wl_iterations", "classifier"):
            for choice in _alternatives(best, axis, problem):
                problem.check_stop()
                other = counts.fit(choice)
                if problem.task.is_better(other_score := counts.score(other, choice), score):
                    best, fit, score = choice, other, other_score
        if best != _first_choice(problem):
            chosen = ", ".join(f"{name} {value}" for name, value in vars(best).items())
            _log.info("chosen by validation: %s (%.4f)", chosen, score)
    weight, bias = (torch.from_numpy(part) / counts.temperature(fit, best) for part in fit)
    key = torch.from_numpy(counts.key[: len(weight)])
    tensors = {"readout.key": key, "readout.weight": weight.float(), "readout.bias": bias.float()}
    return {**problem.settings, **vars(best)}, tensors


def _first_choice(problem: SklearnProblem) -> WLLinearSettings:
    """What is given, and usual values of the rest."""
    settings, has_labels = problem.settings, bool(problem.dataset.features.nodes.labels)
    iterations, normalisation, classifier, c = (
        settings[name] for name in ("wl_iterations", "normalisation", "classifier", "C")
    )
    if iterations is None:
        iterations = 4 if has_labels else 0
    if normalisation == "auto":
        normalisation = "presence" if has_labels else "log-l2"
    if classifier == "auto":
        classifier = "logistic"
    c = _typical_c(problem, normalisation, classifier) if c is None else c
    return WLLinearSettings(iterations, normalisation, classifier, c)


def _typical_c(problem: SklearnProblem, normalisation: Normalisation, classifier: str) -> float:
    is_logistic = classifier == "logistic" and problem.task.link != "identity"
    return TYPICAL_C[normalisation] * (1.0 if is_logistic else 0.1)


def _alternatives(current: WLLinearSettings, axis: str, problem: SklearnProblem) -> Iterator[WLLinearSettings]:
    """Other values of one setting, and of C where that goes with it; only of settings that are not given."""
    settings = problem.settings
    if axis == "wl_iterations":
        others = range(MAX_ITERATIONS + 1) if settings[axis] is None else ()
        yield from (replace(current, wl_iterations=each) for each in others if each != current.wl_iterations)
        return
    values = {"normalisation": tuple(TYPICAL_C), "classifier": ("logistic", "svm")}[axis]
    if settings[axis] != "auto" or (axis == "classifier" and problem.task.link == "identity"):
        values = (getattr(current, axis),)
    for value in values:
        changed = replace(current, **{axis: value})
        typical = _typical_c(problem, changed.normalisation, changed.classifier)
        usual = [float(f"{typical * factor:.3g}") for factor in FACTORS]
        for c in usual if settings["C"] is None else [settings["C"]]:
            if (choice := replace(changed, C=c)) != current:
                yield choice


class SubtreeCounts:
    """WL subtree counts of the training and of the validation part, and linear models over them."""

    def __init__(self, problem: SklearnProblem) -> None:
        self.problem, self.target = problem, problem.targets().double().numpy()
        self.sample_weight = problem.sample_weights().double().numpy()
        readout = problem.model.readout
        assert isinstance(readout, WLCounts)
        self.initial = readout.colours - readout.iterations
        keys, graph = self._keys(problem.split.train)
        pairs = np.unique(np.stack([keys.ravel(), np.repeat(graph, keys.shape[1])]), axis=1)
        self.key, num_graphs = np.unique(pairs[0], return_counts=True)
        self.key = self.key[num_graphs >= problem.settings["wl_min_graphs"]]
        self.train, self.valid = (self._count(part) for part in (problem.split.train, problem.split.valid))

    def _keys(self, part: Int[Tensor, "some"]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Keys of the nodes of these graphs, and the position in ``part`` of the graph of each."""
        colours, graph = self.problem.dataset.select_encoding(COLOURS, part)
        position = torch.zeros(len(self.problem.dataset), dtype=torch.long)
        position[part] = torch.arange(len(part))
        return colour_keys(colours).numpy(), position[graph].numpy()

    def _count(self, part: Int[Tensor, "some"]) -> Any:
        """A sparse matrix with a row for each graph and a column for each key."""
        from scipy.sparse import csr_matrix

        keys, graph = self._keys(part)
        row, key = np.repeat(graph, keys.shape[1]), keys.ravel()
        column = np.searchsorted(self.key, key).clip(max=max(len(self.key) - 1, 0))
        is_known = self.key[column] == key if len(self.key) else np.zeros(len(key), bool)
        ones = np.ones(int(is_known.sum()))
        return csr_matrix((ones, (row[is_known], column[is_known])), (len(part), len(self.key)))

    def features(self, counts: Any, choice: WLLinearSettings) -> Any:
        """Normalised counts of the subtrees up to the height that is chosen."""
        from sklearn.preprocessing import normalize

        width = np.searchsorted(self.key, (self.initial + choice.wl_iterations) << 31)
        features = counts[:, :width].copy()
        features.data = normalise_counts(torch.from_numpy(features.data), choice.normalisation).numpy()
        return normalize(features) if choice.normalisation.endswith("l2") else features

    def fit(self, choice: WLLinearSettings) -> LinearFit:
        """A linear model for each output; of two classes, one for both."""
        features, task = self.features(self.train, choice), self.problem.task
        if task.link == "log" and task.num_outputs == 2:
            weight, bias = self._fit_output(features, 1, choice)
            return LinearFit(np.outer(weight, [-0.5, 0.5]), bias * np.array([-0.5, 0.5]))
        weights, biases = zip(*(self._fit_output(features, i, choice) for i in range(task.num_outputs)), strict=True)
        return LinearFit(np.stack(weights, axis=1), np.array(biases))

    def _fit_output(self, features: Any, output: int, choice: WLLinearSettings) -> tuple[NDArray[np.float64], float]:
        """Weights and bias of an output, from the graphs that have its target; of a constant target, a bias alone."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.svm import LinearSVC

        target, is_number = self.target[:, output], self.problem.task.link == "identity"
        rows = np.isfinite(target).nonzero()[0]
        target, weights = target[rows], self.sample_weight[rows, output]
        if len(set(target.tolist())) < 2 or not features.shape[1]:
            share = (target.sum() + 0.5) / (len(target) + 1)
            constant = target.mean() if is_number else np.log(share / (1 - share))
            return np.zeros(features.shape[1]), float(constant)
        seed = self.problem.seed % 2**32
        if is_number:
            model: Any = Ridge(alpha=1 / choice.C, random_state=seed)
        elif choice.classifier == "svm":
            model = LinearSVC(C=choice.C, random_state=seed)
        else:
            model = LogisticRegression(C=choice.C, solver="liblinear", random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(features[rows], target, weights)
        return model.coef_.ravel(), float(np.ravel(model.intercept_)[0])

    def _valid_outputs(self, fit: LinearFit, choice: WLLinearSettings) -> Tensor:
        return fit.outputs(self.features(self.valid, choice))

    def score(self, fit: LinearFit, choice: WLLinearSettings) -> float:
        """The score on the validation part."""
        task, target = self.problem.task, self.problem.dataset.targets[self.problem.split.valid].cpu()
        return validation_scores(task, self._valid_outputs(fit, choice), target)[task.metric]

    def temperature(self, fit: LinearFit, choice: WLLinearSettings) -> float:
        """By which outputs are divided to become log-odds."""
        if not self.problem.can_choose:
            return 1.0
        target = self.problem.dataset.targets[self.problem.split.valid].cpu()
        return fit_temperature(self.problem.task, self._valid_outputs(fit, choice), target)
