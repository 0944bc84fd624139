"""Classes and numbers together: several columns of targets, each with a task of its own."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mnagt.metrics import Reliability
from mnagt.tasks.base import NO_CLASS, IntervalCoverage, ScoreGroups, Task, describe_each, divide
from mnagt.tasks.censored import CensoredRegression
from mnagt.tasks.columns import MultiLabel, check_target_weights
from mnagt.tasks.explained_output import ExplainedOutput, Output, choose_outputs
from mnagt.tasks.guess import MIXED, guess_column
from mnagt.tasks.regression import Regression
from mnagt.tasks.single_label import SingleLabel
from mnagt.tasks.target_column import BOUNDS, TargetColumn

LOSS = "loss"

AnyOutput = Float[Tensor, "*any outputs"]
Targets = Float[Tensor, "graphs columns"]
AnyTargets = Float[Tensor, "*any columns"]


@dataclass(frozen=True)
class Mixed(Task):
    """Several columns of targets, some of them classes and some numbers: each has a task, and one model predicts all.

    The loss is the mean over all targets that are there, of whatever column: cross entropy of classes, squared error
    of standardised numbers. Metrics are those of each column, by names such as ``rmse(logP)``; the loss chooses the
    epoch. Targets are numbers, NaN where one is missing; a class is its place in the task's list.

    >>> task = Mixed(("active", "logP"), (MultiLabel(("active",)), Regression(("logP",), mean=(2.0,), std=(3.0,))))
    >>> task.decode(torch.tensor([[0.0, 1.0]]))
    {'p(active)': [0.5], 'logP': [5.0]}
    """

    names: tuple[str, ...]
    """The names of the columns."""
    tasks: tuple[Task, ...]
    """The task of each column."""
    target_weights: tuple[float, ...] = ()
    """The weight of each column in the loss; empty where all weigh the same."""
    metric: str = LOSS
    kind: ClassVar[str] = MIXED
    is_parsable: ClassVar[bool] = True
    link: ClassVar[Literal["identity", "logit", "log"] | None] = None
    fitted_fields: ClassVar[tuple[str, ...]] = ("tasks", "target_weights")

    # Columns

    def split_outputs(self, output: AnyOutput) -> Iterator[tuple[Task, AnyOutput]]:
        """The task of each column, and its outputs."""
        return zip(self.tasks, output.split([task.num_outputs for task in self.tasks], dim=-1), strict=True)

    def split_targets(self, target: AnyTargets) -> Iterator[tuple[Task, Tensor]]:
        """The task of each column, and its targets as it has them alone."""
        for task, part in zip(self.tasks, target.split([task.num_columns for task in self.tasks], dim=-1), strict=True):
            is_class = not math.isnan(task.missing_target)
            yield task, part[..., 0].nan_to_num(task.missing_target).long() if is_class else part

    def _join_targets(self, targets: Sequence[Tensor]) -> Targets:
        """The inverse of ``split_targets``."""
        columns = [
            each if each.ndim > 1 else each.float().where(each != task.missing_target, math.nan)[:, None]
            for task, each in zip(self.tasks, targets, strict=True)
        ]
        return torch.cat(columns, dim=1)

    def _pair(self, output: AnyOutput, target: AnyTargets) -> Iterator[tuple[Task, AnyOutput, Tensor]]:
        for (task, one), (_, values) in zip(self.split_outputs(output), self.split_targets(target), strict=True):
            yield task, one, values

    def _map_outputs(self, change: Callable[[Task, AnyOutput], AnyOutput], output: AnyOutput) -> AnyOutput:
        return torch.cat([change(task, one) for task, one in self.split_outputs(output)], dim=-1)

    def _split_thresholds(self, thresholds: Float[Tensor, "groups"]) -> tuple[Float[Tensor, "some"], ...]:
        return thresholds.split([task.num_thresholds for task in self.tasks])

    def _change(self, change: Callable[[int, Task], Task], *, of_classes: bool) -> "Mixed | None":
        """This task with those of its classes, or of its numbers, changed; None where there are none."""
        if not any(task.has_probability == of_classes for task in self.tasks):
            return None
        changed = (change(i, each) if each.has_probability == of_classes else each for i, each in enumerate(self.tasks))
        return replace(self, tasks=tuple(changed))

    # Description

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def num_outputs(self) -> int:
        return sum(task.num_outputs for task in self.tasks)

    @property
    def num_columns(self) -> int:
        return sum(task.num_columns for task in self.tasks)

    def can_score(self, other: Task) -> bool:
        if not isinstance(other, Mixed) or self.names != other.names:
            return False
        return all(task.can_score(another) for task, another in zip(self.tasks, other.tasks, strict=True))

    def can_join(self, other: Task) -> bool:
        if not isinstance(other, Mixed) or self.names != other.names:
            return False
        return all(task.can_join(another) for task, another in zip(self.tasks, other.tasks, strict=True))

    def describe_targets(self, target: Targets) -> str:
        texts = (task.describe_targets(part) for task, part in self.split_targets(target))
        texts_of_columns = [text.removeprefix(f"{name}: ") for name, text in zip(self.names, texts, strict=True)]
        return describe_each(self.names, texts_of_columns, "targets")

    def count_classes(self, target: Targets) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name, (task, part) in zip(self.names, self.split_targets(target), strict=True):
            of_column = task.count_classes(part)
            counts |= of_column if isinstance(task, MultiLabel) else {f"{k} of {name}": n for k, n in of_column.items()}
        return counts

    def describe_precision(self, graphs: int) -> str:
        return "; ".join(dict.fromkeys(task.describe_precision(graphs) for task in self.tasks))

    # Training

    def fit(self, target: Targets) -> "Mixed":
        return replace(self, tasks=tuple(task.fit(part) for task, part in self.split_targets(target)))

    def with_class_weights(self, target: Targets) -> Task:
        parts = [part for _, part in self.split_targets(target)]
        changed = self._change(lambda i, task: task.with_class_weights(parts[i]), of_classes=True)
        return changed or super().with_class_weights(target)

    def with_target_transform(self, transform: str) -> Task:
        changed = self._change(lambda _, task: task.with_target_transform(transform), of_classes=False)
        return changed or super().with_target_transform(transform)

    def with_uncertainty(self, kind: type[Task]) -> Task:
        changed = self._change(lambda _, task: task.with_uncertainty(kind), of_classes=False)
        return changed or super().with_uncertainty(kind)

    def with_target_weights(self, weights: tuple[float, ...]) -> Task:
        check_target_weights(self.names, weights)
        return replace(self, target_weights=weights)

    def with_plain_loss(self) -> "Mixed":
        return replace(self, tasks=tuple(task.with_plain_loss() for task in self.tasks), target_weights=())

    @property
    def _column_weights(self) -> tuple[float, ...]:
        return self.target_weights or (1.0,) * len(self.tasks)

    def loss(self, output: Output, target: Targets) -> Float[Tensor, ""]:
        losses = [
            task.loss(one, part) * weight * task.loss_weight(part)
            for weight, (task, one, part) in zip(self._column_weights, self._pair(output, target), strict=True)
        ]
        return divide(torch.stack(losses).sum(), self.loss_weight(target))

    def loss_weight(self, target: Targets) -> Float[Tensor, ""]:
        pairs = zip(self._column_weights, self.split_targets(target), strict=True)
        return torch.stack([weight * task.loss_weight(part) for weight, (task, part) in pairs]).sum()

    def stratification_classes(self, target: Targets) -> Int[Tensor, "graphs"]:
        """Those of the first column of classes."""
        for task, part in self.split_targets(target):
            if task.has_probability:
                return part.reshape(len(part)).nan_to_num(NO_CLASS).long()
        return super().stratification_classes(target)

    def find_outliers(self, target: Targets) -> Bool[Tensor, "graphs columns"]:
        outliers = [task.find_outliers(part) for task, part in self.split_targets(target)]
        none = torch.zeros(len(target), 1, dtype=torch.bool)
        return torch.cat([each if each.shape[1] else none for each in outliers], dim=1)

    def merge_targets(self, target: Targets, group: Int[Tensor, "graphs"]) -> Float[Tensor, "groups columns"]:
        return self._join_targets([task.merge_targets(part, group) for task, part in self.split_targets(target)])

    # Evaluation and prediction

    @property
    def metric_names(self) -> tuple[str, ...]:
        named = zip(self.names, self.tasks, strict=True)
        return (LOSS, *(f"{metric}({name})" for name, task in named for metric in task.metric_names))

    def compute_metrics(
        self, output: Float[Tensor, "*resamples graphs outputs"], target: Float[Tensor, "*resamples graphs columns"]
    ) -> dict[str, Tensor]:
        """The loss, and the metrics of each column."""
        samples = zip(output.reshape(-1, *output.shape[-2:]), target.reshape(-1, *target.shape[-2:]), strict=True)
        by_name = {LOSS: torch.stack([self.loss(*each) for each in samples]).reshape(output.shape[:-2])}
        for name, (task, one, part) in zip(self.names, self._pair(output, target), strict=True):
            by_name |= {f"{metric}({name})": values for metric, values in task.compute_metrics(one, part).items()}
        return by_name

    def decode(self, output: Output) -> dict[str, list]:
        """The columns of each task. Where it has several classes, they begin with the name of the target."""
        decoded = [task.decode(one) for task, one in self.split_outputs(output)]
        return self._name_columns(decoded)

    def _name_columns(self, decoded: Sequence[dict[str, list]]) -> dict[str, list]:
        return {
            (column if not task.class_names else name if column == "prediction" else f"{name} {column}"): values
            for name, task, columns in zip(self.names, self.tasks, decoded, strict=True)
            for column, values in columns.items()
        }

    def to_probability(self, output: AnyOutput) -> AnyOutput:
        return self._map_outputs(lambda task, one: task.to_probability(one), output)

    def from_probability(self, probability: AnyOutput) -> AnyOutput:
        return self._map_outputs(lambda task, one: task.from_probability(one), probability)

    def target_probability(self, target: Targets) -> Output:
        return torch.cat([task.target_probability(part) for task, part in self.split_targets(target)], dim=1)

    def sample_weights(self, probability: Output) -> Output:
        return self._map_outputs(lambda task, one: task.sample_weights(one), probability)

    def convert_output(self, output: Output, source: Task) -> Output:
        if not isinstance(source, Mixed):
            return output
        pairs = zip(self.tasks, source.split_outputs(output), strict=True)
        return torch.cat([task.convert_output(one, other) for task, (other, one) in pairs], dim=-1)

    # Calibration

    def apply_temperature(self, output: AnyOutput, temperature: float) -> AnyOutput:
        """Outputs of classes divided by the temperature; numbers as they are."""
        return self._map_outputs(
            lambda task, one: task.apply_temperature(one, temperature) if task.has_probability else one, output
        )

    @property
    def num_thresholds(self) -> int:
        return sum(task.num_thresholds for task in self.tasks)

    def conformal_scores(self, output: Output, target: Targets) -> ScoreGroups:
        return [score for task, one, part in self._pair(output, target) for score in task.conformal_scores(one, part)]

    def prediction_sets(self, output: Output, thresholds: Float[Tensor, "groups"], level: float) -> dict[str, list]:
        pairs = zip(self.split_outputs(output), self._split_thresholds(thresholds), strict=True)
        return self._name_columns([task.prediction_sets(one, each, level) for (task, one), each in pairs])

    def interval_coverage(
        self, output: Output, target: Targets, thresholds: Float[Tensor, "groups"]
    ) -> dict[str, IntervalCoverage]:
        coverages: dict[str, IntervalCoverage] = {}
        each = zip(self._pair(output, target), self._split_thresholds(thresholds), strict=True)
        for (task, one, part), limits in each:
            coverages |= task.interval_coverage(one, part, limits)
        return coverages

    def model_thresholds(self, level: float) -> Float[Tensor, "groups"] | None:
        """Those of numbers; NaN for classes. None where no number has any."""
        thresholds = [(task, task.model_thresholds(level)) for task in self.tasks]
        if all(each is None for _, each in thresholds):
            return None
        missing = torch.tensor(math.nan, dtype=torch.float64)
        return torch.cat([missing.expand(task.num_thresholds) if each is None else each for task, each in thresholds])

    def reliability(self, output: Output, target: Targets) -> Reliability | None:
        """The means over the columns of classes."""
        reliabilities = [task.reliability(one, part) for task, one, part in self._pair(output, target)]
        numbers = [each for each in reliabilities if each is not None]
        return Reliability(*torch.tensor(numbers).mean(dim=0).tolist()) if numbers else None

    # Explanation

    def explained_outputs(
        self, output: Output, target: str | None = None, class_names: Sequence[str] = ()
    ) -> list[ExplainedOutput]:
        """What the task of the first column explains, or that of the column ``target``."""
        (i,) = choose_outputs(target, (self.names,), "target", torch.zeros(1, dtype=torch.long))
        start = sum(task.num_outputs for task in self.tasks[:i])
        columns = slice(start, start + self.tasks[i].num_outputs)
        return [self._of_column(i, each, columns) for each in self.tasks[i].explained_outputs(output[:, columns])]

    def _of_column(self, i: int, each: ExplainedOutput, columns: slice) -> ExplainedOutput:
        """An explained output of a task, as one of all outputs."""
        name = f"{self.names[i]}: {each.name}" if self.tasks[i].class_names else each.name
        return replace(
            each,
            name=name,
            score=lambda out: each.score(out[:, columns]),
            confidence=lambda out: each.confidence(out[:, columns]),
        )

    # Targets from tables

    def target_columns(self, requested: Sequence[str] | None) -> Sequence[str] | None:
        return self.names if requested is None else requested

    @classmethod
    def from_columns(cls, columns: Sequence[TargetColumn]) -> "Mixed":
        """Labels where a column holds 0 and 1, classes where it holds texts; else numbers, of which some are bounds."""
        return cls(tuple(column.name for column in columns), tuple(map(_task_of, columns)))

    def parse_targets(self, columns: Sequence[TargetColumn]) -> Targets:
        pairs = zip(self.tasks, columns, strict=True)
        return self._join_targets([task.parse_targets([column]) for task, column in pairs])


def _task_of(column: TargetColumn) -> Task:
    """The task of one column by itself."""
    if any(text[0] in BOUNDS for text in column.values):
        return CensoredRegression.from_columns([column])
    kinds = {kind.kind: kind for kind in (MultiLabel, Regression, SingleLabel)}
    return kinds[guess_column(column)].from_columns([column])
