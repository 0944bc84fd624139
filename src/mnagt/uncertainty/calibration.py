"""Probabilities that can be believed, and sets and intervals that hold the truth as often as they say.

What is learned here is learned from graphs that the model was not trained on.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.tasks import MultiLabel, Regression, SingleLabel, Task

LEVELS = 99
"""Thresholds are kept for 1 %, 2 %, ..., 99 %."""
BINS = 15
PRIOR = 0.5
"""Deviation of the logarithm of a temperature before any graph is seen."""


@dataclass(frozen=True)
class Calibration:
    """What a model learned of itself from held-out graphs."""

    temperature: float
    """Outputs are divided by it before they are read as probabilities."""
    thresholds: tuple[tuple[float, ...], ...]
    """For each class, yes and no to each question, or each number, and each level: how far off the truth still was."""
    graphs: int
    """From which it was learned."""

    def threshold(self, level: float) -> Float[Tensor, "kinds"]:
        """For the next whole percent from ``level`` up; infinite where there were too few graphs to tell."""
        if not 0 < level <= LEVELS / 100:
            raise InputError(f"the level must be above 0 and at most {LEVELS / 100}, got {level}")
        place = math.ceil(100 * level - 1e-9) - 1
        return torch.tensor([kind[place] for kind in self.thresholds], dtype=torch.float64)

    def to_dict(self) -> dict[str, Any]:
        rows = [[None if math.isinf(value) else value for value in kind] for kind in self.thresholds]
        return {"temperature": self.temperature, "graphs": self.graphs, "thresholds": rows}

    @classmethod
    def from_dict(cls, content: dict[str, Any], task: Task, where: str) -> "Calibration":
        """What ``to_dict`` wrote for a model with this task."""
        try:
            rows = tuple(tuple(math.inf if x is None else float(x) for x in kind) for kind in content["thresholds"])
            found = cls(float(content["temperature"]), rows, int(content["graphs"]))
            if any(math.isnan(x) for kind in rows for x in kind):
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InputError(f"{where}: damaged or not a calibration; make it again with `mnagt calibrate`") from None
        if not 0 < found.temperature < math.inf or list(map(len, rows)) != [LEVELS] * _kinds(task):
            raise InputError(f"{where}: damaged or of another model; make it again with `mnagt calibrate`")
        return found


def _kinds(task: Task) -> int:
    """How many kinds of truth have thresholds of their own."""
    match task:
        case SingleLabel() | Regression():
            return task.outputs
        case MultiLabel():
            return 2 * task.outputs
    return 0


def calibrated(
    task: Task, output: Float[Tensor, "graphs outputs"], target: Tensor, temperature: float | None = None
) -> Calibration:
    """Learned from the outputs for graphs that the model was not trained on, and what was true of them.

    With a ``temperature`` given, only the thresholds are.
    """
    if len(output) == 0:
        raise InputError("nothing to calibrate with: there are no graphs outside the training part")
    temperature = fitted_temperature(task, output, target) if temperature is None else temperature
    errors = _errors(task, output / temperature, target)
    return Calibration(temperature, tuple(_thresholds(each) for each in errors), len(output))


def fitted_temperature(task: Task, output: Float[Tensor, "graphs outputs"], target: Tensor) -> float:
    """The temperature at which the truth is likeliest (Guo et al., 2017); 1 for numbers, which have no probability.

    It is taken to be near 1, give or take a factor of 1.6, before any graph is seen: a few that all happen to be right
    would otherwise make the model sure of everything. Found by thirds, between 1/50 and 50.
    """
    if isinstance(task, Regression):
        return 1.0
    if isinstance(task, SingleLabel | MultiLabel):
        task = replace(task, weights=())  # how often things are so, not how much they were to count in training
    output, low, high = output.double(), -math.log(50), math.log(50)

    def unlikely(log: float) -> float:
        return len(output) * task.loss(output / math.exp(log), target).item() + (log / PRIOR) ** 2 / 2

    while high - low > 1e-4:
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if unlikely(first) <= unlikely(second):
            high = second
        else:
            low = first
    return math.exp((low + high) / 2)


def _errors(task: Task, output: Float[Tensor, "graphs outputs"], target: Tensor) -> list[Float[Tensor, "some"]]:
    """How far off the answers were, for each kind of truth apart: one minus the probability of what is true."""
    match task:
        case SingleLabel():
            miss = 1 - output.softmax(dim=1)
            return [miss[target == c, c] for c in range(task.outputs)]
        case MultiLabel():
            miss = torch.stack([1 - output.sigmoid(), output.sigmoid()], dim=2)  # of yes, of no
            return [miss[target[:, i] == 1 - no, i, no] for i in range(task.outputs) for no in (0, 1)]
        case Regression():
            off = (_values(task, output) - target).abs()
            return [column[column.isfinite()] for column in off.unbind(dim=1)]
    return []


def _values(task: Regression, output: Float[Tensor, "graphs tasks"]) -> Float[Tensor, "graphs tasks"]:
    """In the numbers' own units."""
    return torch.tensor(list(task.decode(output).values())).T


def _thresholds(errors: Float[Tensor, "some"]) -> tuple[float, ...]:
    """For each level the error that a further graph stays below with that chance, whatever the model."""
    ordered, count = errors.double().sort().values.tolist(), len(errors)
    ranks = [math.ceil(percent * (count + 1) / 100) for percent in range(1, LEVELS + 1)]
    return tuple(ordered[rank - 1] if rank <= count else math.inf for rank in ranks)


def is_possible(
    task: SingleLabel, calibration: Calibration, output: Float[Tensor, "graphs classes"], level: float
) -> Bool[Tensor, "graphs classes"]:
    """The prediction set of each graph: classes that cannot be ruled out at this level, and always the likeliest.

    Split-conformal, each class by itself (Vovk, 2012): of the graphs of every class, a share of ``level`` or more have
    it in their set, if they are like those that the calibration was made with.
    """
    probability = (output / calibration.temperature).softmax(dim=1)
    kept = (1 - probability).double() <= calibration.threshold(level).to(output.device)
    return kept | F.one_hot(probability.argmax(dim=1), task.outputs).bool()


def told(
    task: Task, calibration: Calibration, output: Float[Tensor, "graphs outputs"], level: float
) -> dict[str, list]:
    """Sets or intervals that hold the truth in a share of ``level`` of all cases, as columns of a table."""
    bound, output = calibration.threshold(level), output.cpu()
    match task:
        case SingleLabel():
            possible = is_possible(task, calibration, output, level).tolist()
            names = task.classes
            sets = ["|".join(n for n, is_in in zip(names, row, strict=True) if is_in) for row in possible]
            return {f"set({level:g})": sets}
        case MultiLabel():
            columns = {}
            for i, name in enumerate(task.names):
                yes = (output[:, i] / calibration.temperature).sigmoid().double()
                may, may_not = 1 - yes <= bound[2 * i], yes <= bound[2 * i + 1]
                may = may | (~may_not & (yes > 0.5))  # where neither is left, what is likelier stays
                both = zip(may.tolist(), may_not.tolist(), strict=True)
                columns[f"{name} set({level:g})"] = [("yes|no" if n else "yes") if y else "no" for y, n in both]
            return columns
        case Regression():
            values = _values(task, output).double()
            low, high = values - bound, values + bound
            return {
                f"{name} {side}({level:g})": ends[:, i].tolist()
                for i, name in enumerate(task.names)
                for side, ends in (("low", low), ("high", high))
            }
    raise InputError(f"sets and intervals are for classes, questions and numbers; the model answers {task.kind}")


@dataclass(frozen=True)
class Reliability:
    """How far probabilities can be believed."""

    brier: float
    """Mean squared distance from the truth; of classes, summed over them."""
    ece: float
    """Expected calibration error: how far confidence and hits are apart in bins of like confidence, on average."""


def reliability(task: Task, output: Float[Tensor, "graphs outputs"], target: Tensor) -> Reliability | None:
    """Of classes, by the one that is said; of yes-or-no questions, by yes. None for what has no such probabilities."""
    match task:
        case SingleLabel():
            probability = output.double().softmax(dim=1)
            sure, said = probability.max(dim=1)
            off = probability - F.one_hot(target, task.outputs)
            return Reliability(off.square().sum(dim=1).mean().item(), expected_error(sure, said == target))
        case MultiLabel():
            is_labelled = target.isfinite()
            yes, truth = output.double().sigmoid()[is_labelled], target[is_labelled]
            return Reliability((yes - truth).square().mean().item(), expected_error(yes, truth > 0))
    return None


def expected_error(probability: Float[Tensor, "some"], came_true: Bool[Tensor, "some"]) -> float:
    """Expected calibration error over ``BINS`` bins of equal width."""
    place: Int[Tensor, "some"] = (probability * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.float64).index_add(0, place, probability.double() - came_true.double())
    return gap.abs().sum().item() / max(1, len(probability))
