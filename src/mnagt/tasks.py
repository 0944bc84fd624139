"""What is asked of a model: the loss, the scores, and how an output reads. A data set brings its task."""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mnagt import metrics
from mnagt.errors import InputError
from mnagt.registry import lookup


class Task(ABC):
    """A frozen dataclass; ``kind`` names it in files."""

    kind: ClassVar[str]
    metric: ClassVar[str]
    """The score that chooses the epoch."""
    higher_is_better: ClassVar[bool] = True

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Numbers that a model gives for a graph."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor: ...

    @abstractmethod
    def scores(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """Every score of these outputs, ``metric`` among them."""

    @abstractmethod
    def decode(self, output: Tensor) -> dict[str, list]:
        """Outputs as columns of a table, one row a graph."""

    def fitted(self, target: Tensor) -> "Task":
        """This task with whatever it takes from the training targets."""
        return self

    def is_better(self, score: float, than: float | None) -> bool:
        """A score that is not a number is better than nothing, and worse than any other."""
        if than is None or math.isnan(than):
            return True
        return score > than if self.higher_is_better else score < than


@dataclass(frozen=True)
class SingleLabel(Task):
    """One class of several; scored by accuracy."""

    classes: tuple[str, ...]
    kind: ClassVar[str] = "single-label"
    metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(self.classes) < 2:
            raise InputError(f"a classification needs at least 2 classes, got {len(self.classes)}: {self.classes}")

    @property
    def outputs(self) -> int:
        return len(self.classes)

    def loss(self, output: Float[Tensor, "graphs classes"], target: Int[Tensor, "graphs"]) -> Float[Tensor, ""]:
        return F.cross_entropy(output, target)

    def scores(self, output: Float[Tensor, "graphs classes"], target: Int[Tensor, "graphs"]) -> dict[str, float]:
        return {"accuracy": metrics.accuracy(output.argmax(dim=1), target)}

    def decode(self, output: Float[Tensor, "graphs classes"]) -> dict[str, list]:
        probability = output.softmax(dim=1).cpu()
        columns: dict[str, list] = {"prediction": [self.classes[i] for i in probability.argmax(dim=1).tolist()]}
        return columns | {f"p({name})": probability[:, i].tolist() for i, name in enumerate(self.classes)}


@dataclass(frozen=True)
class MultiLabel(Task):
    """Yes-or-no questions, some unanswered (NaN); scored by mean average precision or ROC-AUC over the questions.

    A question that only has answers of one kind in the graphs scored has no score, and is left out of the mean.
    """

    names: tuple[str, ...]
    kind: ClassVar[str] = "multi-label"
    metric: ClassVar[str] = "ap"

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))

    @property
    def outputs(self) -> int:
        return len(self.names)

    def loss(self, output: Float[Tensor, "graphs tasks"], target: Float[Tensor, "graphs tasks"]) -> Float[Tensor, ""]:
        is_labelled = target.isfinite()
        each = F.binary_cross_entropy_with_logits(output, target.nan_to_num(), reduction="none")
        return (each * is_labelled).sum() / is_labelled.sum().clamp(min=1)

    def scores(self, output: Float[Tensor, "graphs tasks"], target: Float[Tensor, "graphs tasks"]) -> dict[str, float]:
        ap, auc = [], []
        for score, answer in zip(output.unbind(dim=1), target.unbind(dim=1), strict=True):
            score, is_positive = score[answer.isfinite()], answer[answer.isfinite()] > 0
            if bool(is_positive.any()) and not bool(is_positive.all()):
                ap.append(metrics.average_precision(score, is_positive))
                auc.append(metrics.roc_auc(score, is_positive))
        mean = {name: sum(each) / len(each) if each else float("nan") for name, each in (("ap", ap), ("rocauc", auc))}
        return mean

    def decode(self, output: Float[Tensor, "graphs tasks"]) -> dict[str, list]:
        probability = output.sigmoid().cpu()
        return {f"p({name})": probability[:, i].tolist() for i, name in enumerate(self.names)}


@dataclass(frozen=True)
class Regression(Task):
    """Numbers, some missing (NaN). A model learns them standardised; scores and answers are in their own units."""

    names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    """Mean of each target over the training graphs; none before ``fitted``."""
    std: tuple[float, ...] = ()
    kind: ClassVar[str] = "regression"
    metric: ClassVar[str] = "rmse"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("names", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def outputs(self) -> int:
        return len(self.names)

    def fitted(self, target: Float[Tensor, "graphs tasks"]) -> "Regression":
        known = [column[column.isfinite()].double() for column in target.unbind(dim=1)]
        for name, column in zip(self.names, known, strict=True):
            if len(column) == 0:
                raise InputError(f"target {name!r} has no value in the training part; leave it out or split otherwise")
        mean = tuple(column.mean().item() for column in known)
        std = tuple(column.std(correction=0).item() or 1.0 for column in known)
        return replace(self, mean=mean, std=std)

    def _scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if not self.mean:
            return like.new_zeros(self.outputs), like.new_ones(self.outputs)
        return like.new_tensor(self.mean), like.new_tensor(self.std)

    def loss(self, output: Float[Tensor, "graphs tasks"], target: Float[Tensor, "graphs tasks"]) -> Float[Tensor, ""]:
        mean, std = self._scale(target)
        is_known = target.isfinite()
        error = (output - (target.nan_to_num() - mean) / std).square()
        return (error * is_known).sum() / is_known.sum().clamp(min=1)

    def scores(self, output: Float[Tensor, "graphs tasks"], target: Float[Tensor, "graphs tasks"]) -> dict[str, float]:
        mean, std = self._scale(target)
        is_known = target.isfinite()
        predicted, target = (output * std + mean)[is_known], target[is_known]
        return {"rmse": metrics.rmse(predicted, target), "mae": metrics.mae(predicted, target)}

    def decode(self, output: Float[Tensor, "graphs tasks"]) -> dict[str, list]:
        mean, std = self._scale(output)
        value = (output * std + mean).cpu()
        return {name: value[:, i].tolist() for i, name in enumerate(self.names)}


@dataclass(frozen=True)
class Unasked(Task):
    """Graphs without targets: they can be predicted, not learned from."""

    kind: ClassVar[str] = "no targets"
    metric: ClassVar[str] = "none"

    @property
    def outputs(self) -> int:
        return 0

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        raise InputError("these graphs have no targets to learn from")

    def scores(self, output: Tensor, target: Tensor) -> dict[str, float]:
        return {}

    def decode(self, output: Tensor) -> dict[str, list]:
        return {}


TASKS: dict[str, type[Task]] = {task.kind: task for task in (SingleLabel, MultiLabel, Regression, Unasked)}


def task_to_dict(task: Task) -> dict[str, Any]:
    """The task as files keep it: its kind and its fields."""
    return {"kind": task.kind, **asdict(task)}  # type: ignore[call-overload]


def task_from_dict(content: dict[str, Any]) -> Task:
    """The task that ``task_to_dict`` wrote."""
    kind = content.get("kind", "")
    task = lookup(TASKS, kind, "task")
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
    del fields["kind"]
    try:
        return task(**fields)
    except TypeError as error:
        raise InputError(f"task {kind!r}: {error}; it was written by another version of mnagt") from None
