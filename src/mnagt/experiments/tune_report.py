"""What a search writes: the best recipe, a table of trials, and an HTML report."""

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mnagt.experiments.ledger import resolve_config
from mnagt.experiments.statistics import Paired
from mnagt.experiments.tune_result import BEST, REPORT, TRIALS, TrialResult, TuneResult
from mnagt.experiments.tune_space import Range, searched_settings
from mnagt.files import write_atomically, write_text
from mnagt.reports.charts import (
    Bar,
    Scale,
    bar_chart,
    category_scale,
    linear_scale,
    log_scale,
    parallel_coordinates,
    scatter_plot,
)
from mnagt.reports.page import html
from mnagt.reports.theme import series_style
from mnagt.runs.config import RunConfig
from mnagt.training.progress import clock
from mnagt.version import __version__

SHOWN = 10
"""Trials in the table."""


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
    run = resolve_config(config)
    del run["device"], run["train"]["checkpoint_seconds"]
    tables = {name: value for name, value in run.items() if isinstance(value, dict)}
    lines = _toml({name: value for name, value in run.items() if name not in tables})
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_toml(table)]
    return "\n".join(lines) + "\n"


def _toml(values: Mapping[str, Any]) -> list[str]:
    """Lines of TOML, which writes words, numbers and lists of them as JSON does."""
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value is not None]


# --- the page ---


def write_report(folder: Path, result: TuneResult) -> None:
    """Write the page about a search into its folder."""
    write_text(folder / REPORT, build_page(result))


def build_page(result: TuneResult) -> str:
    """The report on a search of which at least one trial is over."""
    finished = [trial for trial in result.trials if trial.state == "finished"]
    searched = sorted(searched_settings(result.space), key=lambda name: -result.importances.get(name, 0.0))
    blocks = [*_headline(result), _history(result)]
    if finished:
        blocks += [
            _importances(result),
            _slices(result, finished, searched),
            _parallel(result, finished, searched),
            _ranking(result, finished, searched),
            _recipe(result),
        ]
    run, spent = result.config, sum(trial.seconds for trial in result.trials)
    seeds = f"seeds {run.train.seed} to {run.train.seed + result.seeds - 1}"
    facts = (run.dataset, run.model, f"{run.train.epochs} epochs", seeds, f"{clock(spent)} of trials")
    return html.page(f"mnagt tune: {run.model} on {run.dataset}", blocks, (*facts, f"mnagt {__version__}"))


def _headline(result: TuneResult) -> list[Markup]:
    best, start, states = result.best, result.start, Counter(trial.state for trial in result.trials)
    score = f"validation {result.metric}"
    tiles = [] if best is None else [(f"best, {score}", _format_score(best.score), f" trial {best.number}")]
    if start is not None and start.state == "finished":
        tiles.append(("where it began", _format_score(start.score), f" trial {start.number}"))
    tiles.append(("trials finished", str(states["finished"]), f" of {result.count}"))
    return [
        html.title(f"{result.config.model} on {result.config.dataset}: {result.count} trials"),
        html.paragraph(
            f"A trial trains the same settings with {result.seeds} seeds, each with its own weights, order and "
            f"(if drawn) split. Its score is the {score} of the last {result.config.train.selection_window} epochs, "
            "averaged over epochs and seeds: no choice of an epoch flatters it. The test parts were not scored.",
            "lead",
        ),
        html.tiles(tiles, has_first=best is not None),
        html.paragraph(judge_best(result)),
    ]


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


def _history(result: TuneResult) -> Markup:
    caption = "Trials in the order of their numbers"
    finished = [trial for trial in result.trials if trial.score is not None and trial.state == "finished"]
    others = [trial for trial in result.trials if trial.state != "finished"]
    numbers = [trial.number for trial in (*finished, *others)]
    low, high = min(numbers), max(max(numbers), min(numbers) + 1)
    scale = linear_scale("trial", numbers, low, high, is_integer=True)
    steps: list[tuple[float, float]] = []
    for position, trial in zip(scale.positions, finished, strict=False):
        if not steps or result.sign * (_score(trial) - steps[-1][1]) > 0:
            steps += [(position, steps[-1][1])] if steps else []
            steps.append((position, _score(trial)))
    chart = scatter_plot(
        caption,
        scale,
        [_score(trial) for trial in finished],
        y_label=result.metric,
        tips=[_describe(trial) for trial in finished],
        best=_index_of_best(result, finished),
        steps=[*steps, (1.0, steps[-1][1])] if steps else (),
        marks=list(zip(scale.positions[len(finished) :], map(_describe, others), strict=True)),
        size=(640, 280),
    )
    return html.section(
        "How the search went",
        [
            html.paragraph(
                "Dots are trials that came to their end, the line is the best so far. Strokes at the foot are trials "
                "that did not: pruned, because most trials before them were ahead at the same epoch; refused; or lost."
            ),
            html.figure(chart),
        ],
    )


def _importances(result: TuneResult) -> Markup:
    if not result.importances:
        return html.section("What mattered", [html.paragraph("Too few finished trials to say.")])
    bars = [
        Bar(name, share, (f"{100 * share:.0f} %",), series_style(0).colour)
        for name, share in result.importances.items()
    ]
    caption = "Share of each setting in what sets the better trials apart"
    return html.section(
        "What mattered",
        [
            html.paragraph(
                "PED-ANOVA over the finished trials: how much more the better ones agree on a setting than all do. "
                "With a few dozen trials this is a hint, not a measurement."
            ),
            html.figure(bar_chart(caption, bars, columns=[""], has_ticks=False), role="wide"),
        ],
    )


def _slices(result: TuneResult, finished: Sequence[TrialResult], searched: Sequence[str]) -> Markup:
    scores, tips = [_score(trial) for trial in finished], [_describe(trial) for trial in finished]
    options = {"y_label": result.metric, "tips": tips, "best": _index_of_best(result, finished)}
    charts = [
        scatter_plot(f"{result.metric} by {name}", _scale(result, name, finished), scores, **options)
        for name in searched
    ]
    return html.section(
        "Setting by setting",
        [
            html.paragraph("Finished trials. A dot differs from its neighbours in the other settings too."),
            html.grid([html.figure(chart, "") for chart in charts], "cards"),
        ],
    )


def _parallel(result: TuneResult, finished: Sequence[TrialResult], searched: Sequence[str]) -> Markup:
    ordered = sorted(finished, key=lambda trial: result.sign * _score(trial))
    scores = [_score(trial) for trial in ordered]
    width = max(max(scores) - min(scores), 0.01)
    scales = [_scale(result, name, ordered) for name in searched]
    scales.append(linear_scale(result.metric, scores, min(scores), min(scores) + width))
    caption = "Every finished trial as a line, from its settings to its figure"
    return html.section(
        "All at once",
        [
            html.paragraph("From purple, the worst, over teal to yellow, the best."),
            html.figure(parallel_coordinates(caption, scales, [_describe(trial) for trial in ordered])),
        ],
    )


def _ranking(result: TuneResult, finished: Sequence[TrialResult], searched: Sequence[str]) -> Markup:
    best = sorted(finished, key=lambda trial: -result.sign * _score(trial))[:SHOWN]
    rows = []
    for trial in best:
        scores = [_format_score(score) for score in (trial.score, min(trial.scores), max(trial.scores))]
        rows.append([str(trial.number), *scores, *(_format(trial.settings[name]) for name in searched)])
    table = html.table(["trial", result.metric, "seeds from", "to", *searched], rows)
    return html.section(f"The best {len(best)}", [table])


def _recipe(result: TuneResult) -> Markup:
    assert result.recipe is not None
    text = "As in best.toml; `mnagt train --recipe` and `mnagt trials` take it."
    return html.section("The best recipe", [html.paragraph(text), html.code(recipe_text(result.recipe))])


def _scale(result: TuneResult, name: str, trials: Sequence[TrialResult]) -> Scale:
    """A setting's values in these trials, on the scale of the search space."""
    entry, values = result.space[name], [trial.settings[name] for trial in trials]
    if not isinstance(entry, Range):
        return category_scale(name, values, entry, _format)
    if entry.log:
        return log_scale(name, values, entry.low, entry.high)
    return linear_scale(name, values, entry.low, entry.high, is_integer=isinstance(entry.low, int))


def _index_of_best(result: TuneResult, trials: Sequence[TrialResult]) -> int | None:
    return next((i for i, trial in enumerate(trials) if result.best and trial.number == result.best.number), None)


def _describe(trial: TrialResult) -> str:
    """A trial in one line."""
    score = "" if trial.score is None else f", {_format_score(trial.score)}"
    return f"trial {trial.number}, {trial.state}{score}" + (f": {trial.reason}" if trial.reason else "")


def _score(trial: TrialResult) -> float:
    return math.nan if trial.score is None else trial.score


def _format_score(score: float | None) -> str:
    return "–" if score is None else f"{score:.4f}"


def _format(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
