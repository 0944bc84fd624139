"""The results of a search for settings: its trials, the best of them, and the files and the page about them."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mnagt.experiments.ledger import comparable_settings
from mnagt.experiments.statistics import Paired
from mnagt.experiments.tune_space import Range, Space, searched_settings, with_settings
from mnagt.files import write_atomically, write_text
from mnagt.reports.charts import (
    Bar,
    Scale,
    bar_chart,
    category_scale,
    numeric_scale,
    parallel_coordinates,
    scatter_plot,
)
from mnagt.reports.page import render_page
from mnagt.reports.picture import Picture
from mnagt.reports.theme import series_style
from mnagt.runs.config import RunConfig
from mnagt.training.progress import clock

if TYPE_CHECKING:
    import optuna

SHOWN = 10
"""Trials in the table of the best."""
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
    def finished(self) -> list[TrialResult]:
        return [trial for trial in self.trials if trial.state == "finished"]

    @property
    def best(self) -> TrialResult | None:
        """The finished trial with the best score; of equals, the first."""
        return max(self.finished, key=lambda trial: self.sign * (trial.score or 0.0), default=None)

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


# --- files ---


def write_best(folder: Path, result: TuneResult) -> None:
    """The best recipe, and the table of trials."""
    if result.best is not None and result.recipe is not None:
        score = f"{result.best.score:.4f}"
        comment = (
            f"# Trial {result.best.number} of `mnagt tune`, the best of {result.count}: validation {result.metric} "
            f"{score}, the mean of the last {result.config.train.selection_window} epochs of {result.seeds} seeds "
            f"from {result.config.train.seed} on. Test was not scored.\n"
        )
        write_text(folder / BEST, comment + recipe_text(result.recipe))
    with write_atomically(folder / TRIALS) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "state", f"valid_{result.metric}", "epochs", "seconds", "reason", *result.space])
        for t in result.trials:
            drawn = [t.settings.get(name, "") for name in result.space]
            writer.writerow([t.number, t.state, t.score, t.epochs, t.seconds, t.reason, *drawn])


def recipe_text(config: RunConfig) -> str:
    """The recipe in TOML, every setting written out, so that it stays the same when a default changes. The device is
    left out: it is no part of a recipe."""
    run = comparable_settings(config)
    tables = {name: value for name, value in run.items() if isinstance(value, dict)}
    lines = _toml({name: value for name, value in run.items() if name not in tables})
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_toml(table)]
    return "\n".join(lines) + "\n"


def _toml(values: Mapping[str, Any]) -> list[str]:
    """Lines of TOML, which writes words, numbers and lists of them as JSON does."""
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value is not None]


# --- the page ---


def build_page(result: TuneResult) -> str:
    """The report on a search of which at least one trial is over."""
    values: dict[str, Any] = {"spent": clock(sum(trial.seconds for trial in result.trials))}
    if result.recipe is not None:
        searched = sorted(searched_settings(result.space), key=lambda name: -result.importances.get(name, 0.0))
        values |= {
            "searched": searched,
            "importances": _draw_importances(result.importances) if result.importances else None,
            "slices": [_draw_scores(f"{result.metric} by {name}", result, _scale(result, name)) for name in searched],
            "parallel": _draw_parallel(result, searched),
            "ranking": _rank(result, searched),
            "recipe": recipe_text(result.recipe),
        }
    history, judgement = _draw_history(result), judge_best(result)
    return render_page("experiments/tune.html", result=result, judgement=judgement, history=history, **values)


def judge_best(result: TuneResult) -> str:
    """What the best score is worth: the gain over the start with its standard error, and how to test it."""
    best, start, first = result.best, result.start, result.config.train.seed + result.seeds
    if best is None:
        return "No trial has come to its end yet."
    text = "The highest of many figures is partly luck, and the splits that chose it cannot tell how much: "
    text += f"`mnagt trials best.toml --first-seed {first}` scores it on others."
    if start is None or start.state != "finished" or result.seeds == 1:
        return text
    if best is start:
        return f"No trial was better than the settings that the search began with. {text}"
    gain = Paired(tuple(result.sign * (a - b) for a, b in zip(best.scores, start.scores, strict=True)))
    return (
        f"The best is ahead of where it began by {gain.mean:.4f} ± {gain.error:.4f} (standard error over seeds). "
        + text
    )


def _draw_history(result: TuneResult) -> Picture:
    """Scores by number of the trial, with the best so far."""
    finished, others = result.finished, [trial for trial in result.trials if trial.state != "finished"]
    numbers = [trial.number for trial in (*finished, *others)]
    low, high = min(numbers), max(max(numbers), min(numbers) + 1)
    scale = numeric_scale("trial", numbers, low, high, is_integer=True)
    steps: list[tuple[float, float]] = []
    for position, trial in zip(scale.positions, finished, strict=False):
        if not steps or result.sign * (_score(trial) - steps[-1][1]) > 0:
            steps += [(position, steps[-1][1])] if steps else []
            steps.append((position, _score(trial)))
    return _draw_scores(
        "Trials in the order of their numbers",
        result,
        scale,
        steps=[*steps, (1.0, steps[-1][1])] if steps else (),
        marks=list(zip(scale.positions[len(finished) :], map(_describe, others), strict=True)),
        size=(640, 280),
    )


def _draw_scores(caption: str, result: TuneResult, x: Scale, **options: Any) -> Picture:
    """The scores of finished trials by their places on the scale ``x``."""
    scores, tips = map(_score, result.finished), map(_describe, result.finished)
    best = result.finished.index(result.best) if result.best else None
    return scatter_plot(caption, x, list(scores), y_label=result.metric, tips=list(tips), best=best, **options)


def _draw_importances(importances: Mapping[str, float]) -> Picture:
    colour = series_style(0).colour
    bars = [Bar(name, share, (f"{100 * share:.0f} %",), colour) for name, share in importances.items()]
    caption = "Share of each setting in what sets the better trials apart"
    return bar_chart(caption, bars, columns=[""], has_ticks=False)


def _draw_parallel(result: TuneResult, searched: Sequence[str]) -> Picture:
    """Every trial as a line through its settings and its score, the worst first."""
    ranked = replace(result, trials=tuple(sorted(result.finished, key=lambda trial: result.sign * _score(trial))))
    scores = [_score(trial) for trial in ranked.trials]
    width = max(max(scores) - min(scores), 0.01)
    scales = [_scale(ranked, name) for name in searched]
    scales.append(numeric_scale(result.metric, scores, min(scores), min(scores) + width))
    caption = "Every finished trial as a line, from its settings to its figure"
    return parallel_coordinates(caption, scales, [_describe(trial) for trial in ranked.trials])


def _rank(result: TuneResult, searched: Sequence[str]) -> list[list[str]]:
    """Rows of a table: number, scores and settings of the best trials."""
    rows = []
    for trial in sorted(result.finished, key=lambda trial: -result.sign * _score(trial))[:SHOWN]:
        scores = [f"{score:.4f}" for score in (_score(trial), min(trial.scores), max(trial.scores))]
        rows.append([str(trial.number), *scores, *(_format(trial.settings[name]) for name in searched)])
    return rows


def _scale(result: TuneResult, name: str) -> Scale:
    """A setting's values in the finished trials, on the scale of the search space."""
    entry, values = result.space[name], [trial.settings[name] for trial in result.finished]
    if not isinstance(entry, Range):
        return category_scale(name, values, entry, _format)
    return numeric_scale(name, values, entry.low, entry.high, is_log=entry.log, is_integer=isinstance(entry.low, int))


def _describe(trial: TrialResult) -> str:
    """A trial in one line."""
    score = "" if trial.score is None else f", {trial.score:.4f}"
    return f"trial {trial.number}, {trial.state}{score}" + (f": {trial.reason}" if trial.reason else "")


def _score(trial: TrialResult) -> float:
    return math.nan if trial.score is None else trial.score


def _format(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
