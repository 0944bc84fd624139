"""The results of a search for settings: its trials, and the best of them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mnagt.experiments.tune_space import Space, with_settings
from mnagt.runs.config import RunConfig

if TYPE_CHECKING:
    import optuna

BEST, TRIALS, REPORT = "best.toml", "trials.csv", "report.html"
START, OUTCOME = "start", "told"
"""Attributes of Optuna's trials: that it has the settings that the search began with; scores, epochs and reason."""


@dataclass(frozen=True)
class TrialResult:
    """A trial that is over."""

    number: int
    state: Literal["finished", "pruned", "refused", "lost"]
    """Trained to the end; stopped because most were ahead of it; not trainable; ended with its process."""
    settings: dict[str, Any]
    """The settings that were drawn."""
    score: float | None
    """Mean validation score of the last ``selection_window`` epochs, over the seeds; if pruned, as far as it came."""
    scores: tuple[float, ...]
    """The same for each seed that was finished."""
    epochs: int
    """Epochs trained, all seeds together."""
    seconds: float
    reason: str = ""
    """Why it was refused."""
    is_start: bool = False
    """Its settings are those that the search began with, where the space holds them."""


@dataclass(frozen=True)
class TuneResult:
    """A search, as far as it has come."""

    config: RunConfig
    """The settings that it began with."""
    space: Space
    seeds: int
    metric: str
    higher_is_better: bool
    trials: tuple[TrialResult, ...]
    importances: dict[str, float] = field(default_factory=dict)
    """Importance of each setting for the score (PED-ANOVA); they add up to 1. Empty for a few trials."""

    @property
    def count(self) -> int:
        """Number of trials, without those that were lost."""
        return sum(trial.state != "lost" for trial in self.trials)

    @property
    def best(self) -> TrialResult | None:
        """The finished trial with the best score; of equals, the first."""
        finished = [trial for trial in self.trials if trial.state == "finished"]
        return min(finished, key=lambda trial: -self.sign * (trial.score or 0.0), default=None)

    @property
    def start(self) -> TrialResult | None:
        """The trial of the settings that the search began with."""
        return next((trial for trial in self.trials if trial.is_start and trial.state != "lost"), None)

    @property
    def recipe(self) -> RunConfig | None:
        """The settings of the best trial."""
        return None if self.best is None else with_settings(self.config, self.best.settings)

    @property
    def sign(self) -> int:
        """1 where a higher score is better, else -1."""
        return 1 if self.higher_is_better else -1


def read_trial(trial: "optuna.trial.FrozenTrial") -> TrialResult:
    """The result of a trial in Optuna's storage."""
    outcome, spent = trial.user_attrs.get(OUTCOME, {}), trial.duration
    reason = outcome.get("reason", "")
    state: Any = {"COMPLETE": "finished", "PRUNED": "refused" if reason else "pruned"}.get(trial.state.name, "lost")
    return TrialResult(
        trial.number,
        state,
        trial.params,
        trial.value,
        tuple(outcome.get("figures", ())),
        outcome.get("epochs", 0),
        0.0 if spent is None else round(spent.total_seconds(), 3),
        reason,
        trial.user_attrs.get(START, False),
    )
