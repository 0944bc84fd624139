"""``Task``: everything that depends on what is predicted for a graph."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mnagt.errors import InputError, quote
from mnagt.metrics import LOWER_IS_BETTER, Reliability, bootstrap_intervals
from mnagt.settings import check_constraints
from mnagt.tasks.explained_output import ExplainedOutput, Output
from mnagt.tasks.target_column import TargetColumn

NO_CLASS = -100
"""The class of a graph whose label is missing: cross entropy ignores it."""

ScoreGroups = list[Float[Tensor, "group_size"]]


class IntervalCoverage(NamedTuple):
    """The share of targets within their intervals, the mean width of these, and the number of targets."""

    share: float
    width: float
    targets: int


Level = Literal["graph", "node", "edge"]
"""What has a target."""


class Suggestion(NamedTuple):
    """A sequence of words and its probability."""

    words: tuple[str, ...]
    probability: float


class Task(ABC):
    """What is predicted for each graph: loss, metrics, probabilities, decoding, calibration and explained outputs.

    Subclasses are frozen dataclasses. Their fields are saved with a model, under the name ``kind``.

    >>> from mnagt import SingleLabel
    >>> task = SingleLabel(("no", "yes"))
    >>> task.num_outputs, task.loss(torch.zeros(3, 2), torch.tensor([0, 1, 1])).item()  # three graphs, two outputs
    (2, 0.6931471824645996)
    """

    kind: ClassVar[str]
    metric: str
    """The score by which the best epoch is chosen."""
    is_labelled: ClassVar[bool] = True
    """Whether graphs have targets, so that a model can be trained."""
    level: ClassVar[Level] = "graph"
    """What has a target: each graph, or each of its nodes or edges."""
    has_probability: ClassVar[bool] = True
    """Whether outputs are logits, which a temperature can calibrate."""
    link: ClassVar[Literal["identity", "logit", "log"] | None] = "identity"
    """How an output follows from a probability: logit of a label by itself, log where classes exclude each other;
    identity for numbers; None where scikit-learn cannot fit it."""
    is_sequence: ClassVar[bool] = False
    """Whether words are predicted, as ``suggest`` lists them."""
    is_parsable: ClassVar[bool] = False
    """Whether targets can be read from the columns of a table."""
    missing_target: ClassVar[float] = math.nan
    """The target of a graph without a label."""
    thresholds_per_output: ClassVar[int] = 0
    """How many conformal thresholds each output has; 0 where there are no prediction sets."""
    fitted_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that are computed from the training targets."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if not isinstance(value := getattr(self, field.name), str | int | float | tuple):
                object.__setattr__(self, field.name, tuple(value))
        check_constraints(self)

    # Description

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the classes, of the target columns or of the words."""
        return ()

    @property
    def num_outputs(self) -> int:
        """How many outputs a model has for each graph."""
        return len(self.target_names)

    @property
    def num_columns(self) -> int:
        """How many numbers a target has in a table of several tasks (``Mixed``)."""
        return 1

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, if each graph has exactly one."""
        return ()

    def describe(self, max_names: int = 12) -> str:
        """The kind and the names of the targets, for messages and model cards.

        >>> from mnagt import SingleLabel
        >>> SingleLabel(("active", "inactive")).describe()
        'single-label (active, inactive)'
        """
        names = list(self.target_names[:max_names])
        if len(self.target_names) > max_names:
            names.append(f"... {len(self.target_names):,} in all")
        return f"{self.kind} ({', '.join(names)})" if names else self.kind

    @property
    def column_kind(self) -> Literal["number", "label"] | None:
        """What a column holds for each target, for programs that read tables: a number, or 0 and 1; None otherwise."""
        return None

    def can_score(self, other: "Task") -> bool:
        """Whether outputs for this task can be scored against the targets of ``other``."""
        return (self.kind, self.target_names) == (other.kind, other.target_names)

    def can_join(self, other: "Task") -> bool:
        """Whether models for the two tasks can be members of one ensemble (see ``convert_output``)."""
        if self.kind != other.kind:
            return False
        differing = ("metric", *self.fitted_fields)
        unfitted = [field.name for field in fields(self) if field.name not in differing]  # type: ignore[arg-type]
        return all(getattr(self, name) == getattr(other, name) for name in unfitted)

    def describe_targets(self, target: Tensor) -> str:
        """The balance of classes, or mean and deviation, of these targets: a line for people."""
        return ""

    def count_classes(self, target: Tensor) -> dict[str, int]:
        """How many of these targets are of each class; empty for numbers."""
        return {}

    def describe_precision(self, graphs: int) -> str:
        """How precise a score on so many graphs is, by the usual approximations: for people."""
        return "its scores are uncertain"

    def comparable_targets(self, target: Tensor) -> Tensor:
        """Targets that are equal for copies of a graph whose nodes have another order."""
        return target

    # Training

    def fit(self, target: Tensor) -> "Task":
        """This task with what it computes from the training targets: scaling of numbers, the vocabulary of words."""
        return self

    def with_class_weights(self, target: Tensor) -> "Task":
        """This task with a loss in which every class of the training targets weighs the same."""
        raise InputError(f"class weights need classes, and the task is {self.kind}; leave out class_weights")

    def with_target_transform(self, transform: str) -> "Task":
        """This task with targets that are learned after ``transform``, one of ``TRANSFORMS``."""
        raise InputError(f"target_transform is for numbers, and the task is {self.kind}; leave it out")

    def with_target_weights(self, weights: tuple[float, ...]) -> "Task":
        """This task with a loss in which each target column has its weight."""
        raise InputError(f"target_weights are for several target columns, and the task is {self.kind}; leave them out")

    def with_uncertainty(self, kind: "type[Task]") -> "Task":
        """This task as one of ``kind``, which predicts the uncertainty of each number beside it."""
        raise InputError(f"uncertainty is for numbers without bounds, and the task is {self.kind}; leave it out")

    def with_plain_loss(self) -> "Task":
        """This task with the negative log-likelihood as its loss: no class weights, no label smoothing."""
        return self

    def with_label_smoothing(self, share: float) -> "Task":
        """This task with a loss that spreads ``share`` of each label over all classes."""
        raise InputError(
            f"label smoothing needs one class for each graph, and the task is {self.kind}; leave out label_smoothing"
        )

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Float[Tensor, ""]:
        """The mean over all targets that are not missing (a sum over ``loss_weight``); 0 where all are missing."""

    def loss_weight(self, target: Tensor) -> Float[Tensor, ""]:
        """The denominator of ``loss``, by which losses of parts of a batch add up to that of the whole batch."""
        return torch.full((), float(len(target)), device=target.device)

    def stratification_classes(self, target: Tensor) -> Int[Tensor, "graphs"]:
        """The classes that a stratified split distributes evenly over its folds; all alike where there are none."""
        return torch.zeros(len(target), dtype=torch.long)

    def find_outliers(self, target: Tensor) -> Bool[Tensor, "graphs columns"]:
        """Which numbers are so far from the others of their column that they may be mistakes; classes never are."""
        return torch.zeros(len(target), 0, dtype=torch.bool)

    def merge_targets(self, target: Tensor, group: Int[Tensor, "graphs"]) -> Tensor:
        """One target for each group of graphs, numbered from 0: the mean, for classes the majority, else missing."""
        raise InputError(f"targets of kind {self.kind!r} cannot be averaged; keep or drop duplicates")

    # Evaluation and prediction

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that ``with_metric`` may choose."""
        return (self.metric,)

    @property
    def higher_is_better(self) -> bool:
        """Whether the largest value of ``metric`` is the best."""
        return self.metric.partition("(")[0] not in LOWER_IS_BETTER

    def with_metric(self, name: str) -> "Task":
        """This task with ``name`` as the score that chooses the epoch; 'auto' leaves it as it is."""
        if name in ("auto", self.metric):
            return self
        if name not in self.metric_names:
            raise InputError(f"metric must be one of {', '.join(self.metric_names)} for this task, got {quote(name)}")
        return replace(self, metric=name)  # type: ignore[type-var, call-arg]

    def compute_metrics(self, output: Tensor, target: Tensor) -> dict[str, Tensor]:
        """All metrics of outputs [*resamples, graphs, outputs] and targets with the same leading dimensions.

        A task that has none is scored by ``scores``, without intervals.
        """
        return {}

    def scores(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """All metrics of outputs, or of what ``reduce_output`` leaves of them; ``metric`` comes first."""
        values_by_metric = self.compute_metrics(output, target)
        values = torch.stack(list(values_by_metric.values())).tolist()
        scores = dict(zip(values_by_metric, values, strict=True))
        return {self.metric: scores[self.metric], **scores}

    def score_intervals(self, output: Tensor, target: Tensor) -> dict[str, list[float]]:
        """Bootstrap intervals of ``scores`` at the level 0.95, by metric; empty where there are none."""
        columns = target[0].numel() if len(target) else 0
        if not columns or not self.compute_metrics(output[:1], target[:1]):
            return {}

        def compute(rows: Int[Tensor, "resamples graphs"]) -> dict[str, Tensor]:
            rows = rows.to(output.device)
            return self.compute_metrics(output[rows], target[rows])

        intervals = bootstrap_intervals(compute, len(target), columns=columns)
        return {name: intervals[name] for name in (self.metric, *intervals) if name in intervals}

    def reduce_output(self, output: Tensor) -> Tensor:
        """The part of outputs that ``scores`` needs: only this is kept while a whole part is evaluated."""
        return output

    def is_finite(self, output: Tensor) -> bool:
        """Whether all predictions are finite numbers."""
        return bool(output.isfinite().all())

    def is_better(self, score: float, than: float | None) -> bool:
        """Whether ``score`` improves on ``than``. NaN is better than None, and worse than any number."""
        if than is None or math.isnan(than):
            return True
        return score > than if self.higher_is_better else score < than

    @abstractmethod
    def decode(self, output: Tensor) -> dict[str, list]:
        """Predictions as columns of a table with a row for each graph."""

    def suggest(self, output: Output, count: int = 5) -> list[list[Suggestion]]:
        """The ``count`` most probable sequences of words for each graph."""
        raise InputError(f"only a model that predicts words can suggest names, and the task is {self.kind}")

    def to_probability(self, output: Float[Tensor, "*any outputs"]) -> Float[Tensor, "*any outputs"]:
        """Probabilities, or for regression the outputs themselves: what an ensemble averages."""
        return output

    def from_probability(self, probability: Float[Tensor, "*any outputs"]) -> Float[Tensor, "*any outputs"]:
        """The outputs that have these probabilities: the inverse of ``to_probability``."""
        return probability

    def from_predicted_columns(self, predicted: Float[Tensor, "graphs columns"]) -> Output:
        """Outputs for what another program predicted for each target: numbers, or probabilities of 1."""
        raise InputError(f"predictions for the task {self.kind} are more than a column for each target")

    def target_probability(self, target: Tensor) -> Output:
        """The value of ``to_probability`` for a perfect prediction; NaN where the target is missing."""
        raise InputError(
            f"a random forest predicts classes and numbers, and the task is {self.kind}; set forest_trees to 0"
        )

    def sample_weights(self, probability: Output) -> Output:
        """The weight of each graph in the loss of each output, for these values of ``target_probability``."""
        return torch.ones_like(probability)

    def convert_output(self, output: Output, source: "Task") -> Tensor:
        """Outputs of a model for ``source`` as a model for this task would give them; see ``can_join``."""
        return output

    # Calibration

    def apply_temperature(
        self, output: Float[Tensor, "*any outputs"], temperature: float
    ) -> Float[Tensor, "*any outputs"]:
        """Outputs divided by the temperature of a calibration."""
        return output / temperature

    @property
    def num_thresholds(self) -> int:
        """How many groups of targets have conformal thresholds of their own."""
        return self.thresholds_per_output * self.num_outputs

    def conformal_scores(self, output: Output, target: Tensor) -> ScoreGroups:
        """Nonconformity scores (the larger, the worse the prediction) of the targets of each group."""
        return []

    def prediction_sets(self, output: Output, thresholds: Float[Tensor, "groups"], level: float) -> dict[str, list]:
        """Sets or intervals of all values whose conformal score is within ``thresholds``, as columns of a table.

        ``output`` is calibrated; ``level`` is part of the columns' names.
        """
        raise InputError(f"prediction sets and intervals need classes or numbers, and the task is {self.kind}")

    def interval_coverage(
        self, output: Output, target: Tensor, thresholds: Float[Tensor, "groups"]
    ) -> dict[str, IntervalCoverage]:
        """How many targets of each column lie within intervals, and how wide these are; empty without intervals."""
        return {}

    def model_thresholds(self, level: float) -> Float[Tensor, "groups"] | None:
        """The thresholds of the intervals that the model itself gives; None where it gives none at this level."""
        return None

    def reliability(self, output: Output, target: Tensor) -> Reliability | None:
        """How well probabilities match frequencies; None where outputs are no probabilities of classes."""
        if "brier" not in self.metric_names:
            return None
        scores = self.compute_metrics(output, target)
        return Reliability(scores["brier"].item(), scores["ece"].item())

    # Explanation

    def explained_outputs(
        self, output: Output, target: str | None = None, class_names: Sequence[str] = ()
    ) -> list[ExplainedOutput]:
        """For each row of ``output`` the number to explain: what is predicted, or the class or column ``target``.

        ``class_names`` are readable names of the classes, if there are any.
        """
        raise InputError(f"there is nothing to explain: the task is {self.kind}")

    # Targets from tables

    def target_columns(self, requested: Sequence[str] | None) -> Sequence[str] | None:
        """The columns of a table that hold the targets; None where that is left to the reader of the table."""
        return requested

    @classmethod
    def from_columns(cls, columns: Sequence[TargetColumn]) -> "Task":
        """The task that these columns of a table define."""
        raise InputError(f"targets of kind {cls.kind!r} cannot be read from a table")

    def parse_targets(self, columns: Sequence[TargetColumn]) -> Tensor:
        """The targets in these columns, a row for each graph; ``missing_target`` where a cell is empty."""
        raise InputError(f"targets of kind {self.kind!r} cannot be read from a table")

    def parse_list_targets(
        self, columns: Sequence[TargetColumn], sizes: Sequence[int], items: str
    ) -> Float[Tensor, "graphs cells"]:
        """As ``parse_targets`` for graphs with so many ``items`` (atoms); an error where a cell does not fit them."""
        raise InputError(f"{items} have no targets of their own: the task is {self.kind}")


@lru_cache(maxsize=64)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The values as a tensor. Cached, so that a captured CUDA graph copies nothing from the host."""
    return torch.tensor(values, dtype=dtype, device=device)


def describe_each(names: Sequence[str], texts: Sequence[str], what: str, most: int = 4) -> str:
    """'name: text' for the first names, and how many there are."""
    described = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    return ", ".join([*described[:most], *[f"... {len(names):,} {what}"] * (len(names) > most)])


def divide(total: Tensor, weight: Tensor) -> Tensor:
    """``total / weight``, or ``total`` (which is 0) where the weight is 0."""
    return total / weight.where(weight > 0, 1)
