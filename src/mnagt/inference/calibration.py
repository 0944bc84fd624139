"""Calibration of a model's probabilities, and thresholds for its prediction sets, fitted on held-out graphs."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.errors import InputError
from mnagt.tasks import Task

LEVELS = 99
"""Thresholds are kept for 1 %, 2 %, ..., 99 %."""
MAX_TEMPERATURE = 50
"""Temperatures are from one over this to this."""
PRIOR_STD = 0.5
"""Standard deviation of the normal prior on the logarithm of the temperature."""


@dataclass(frozen=True)
class Calibration:
    """A temperature and conformal thresholds, fitted on held-out graphs."""

    temperature: float
    """Outputs are divided by it before they become probabilities."""
    thresholds: tuple[tuple[float, ...], ...]
    """Quantiles of the conformal scores of each group (``Task.conformal_scores``) for each level."""
    graphs: int
    """Number of graphs that it was fitted on."""

    def threshold(self, level: float) -> Float[Tensor, "groups"]:
        """The thresholds for ``level``, rounded up to a whole percent; infinite where there were too few graphs."""
        if not 0 < level <= LEVELS / 100:
            raise InputError(f"the level must be above 0 and at most {LEVELS / 100}, got {level}")
        index = math.ceil(100 * level - 1e-9) - 1
        return torch.tensor([group[index] for group in self.thresholds], dtype=torch.float64)

    def prediction_sets(self, task: Task, output: Float[Tensor, "graphs outputs"], level: float) -> dict[str, list]:
        """Sets or intervals that contain the target with probability ``level``, as columns of a table.

        ``output`` is that of the model, before its temperature.
        """
        return task.prediction_sets(
            task.apply_temperature(output.cpu(), self.temperature), self.threshold(level), level
        )

    def to_dict(self) -> dict[str, Any]:
        rows = [[None if math.isinf(value) else value for value in group] for group in self.thresholds]
        return {"temperature": self.temperature, "graphs": self.graphs, "thresholds": rows}

    @classmethod
    def from_dict(cls, content: dict[str, Any], task: Task, where: str) -> "Calibration":
        """What ``to_dict`` wrote for a model of this task; ``where`` names the file in messages."""
        try:
            rows = tuple(tuple(math.inf if x is None else float(x) for x in group) for group in content["thresholds"])
            calibration = cls(float(content["temperature"]), rows, int(content["graphs"]))
            if any(math.isnan(x) for group in rows for x in group):
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InputError(f"{where}: damaged or not a calibration; make it again with `mnagt calibrate`") from None
        if not 0 < calibration.temperature < math.inf or list(map(len, rows)) != [LEVELS] * task.num_thresholds:
            raise InputError(f"{where}: damaged or of another model; make it again with `mnagt calibrate`")
        return calibration


def fit_calibration(
    task: Task, output: Float[Tensor, "graphs outputs"], target: Tensor, temperature: float | None = None
) -> Calibration:
    """Fit the thresholds, and the temperature unless it is given, to outputs for held-out graphs and their targets."""
    if len(output) == 0:
        raise InputError("nothing to calibrate with: there are no graphs outside the training part")
    temperature = fit_temperature(task, output, target) if temperature is None else temperature
    scores = task.conformal_scores(task.apply_temperature(output, temperature), target)
    return Calibration(temperature, tuple(map(_conformal_quantiles, scores)), len(output))


def fit_temperature(task: Task, output: Float[Tensor, "graphs outputs"], target: Tensor) -> float:
    """The temperature that maximises the likelihood of the targets (Guo et al., 2017); 1 for regression.

    A log-normal prior around 1 keeps it from vanishing where a few graphs all happen to be predicted correctly.
    """
    if not task.has_probability:
        return 1.0
    from scipy.optimize import minimize_scalar

    task, output = task.with_plain_loss(), output.double()

    def negative_log_posterior(log: float) -> float:
        loss = task.loss(task.apply_temperature(output, math.exp(log)), target).item()
        return len(output) * loss + (log / PRIOR_STD) ** 2 / 2

    limit = math.log(MAX_TEMPERATURE)
    best = minimize_scalar(negative_log_posterior, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-4})
    return math.exp(best.x)


def _conformal_quantiles(scores: Float[Tensor, "group_size"]) -> tuple[float, ...]:
    """For each level the score that a further graph of the group stays within with that probability."""
    ordered, count = scores.double().sort().values.tolist(), len(scores)
    ranks = [math.ceil(percent * (count + 1) / 100) for percent in range(1, LEVELS + 1)]
    return tuple(ordered[rank - 1] if rank <= count else math.inf for rank in ranks)
