"""What a search leaves behind: the best recipe, a table, and one HTML page that needs nothing from outside."""

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mnagt.experiments.ledger import resolved
from mnagt.experiments.page import colour, html_page, tile
from mnagt.experiments.svg import FAINT, INK, Axis, Markup, drawing, element, percent, ramp, text
from mnagt.experiments.tune import BEST, REPORT, TRIALS, Tried, Tuned
from mnagt.experiments.tune_space import Range, varied
from mnagt.files import write_text, written_atomically
from mnagt.training.config import RunConfig
from mnagt.training.progress import clock
from mnagt.version import __version__

SHOWN = 10
"""Trials in the table."""
STYLE = """
.paths text { paint-order: stroke; stroke: var(--card); stroke-width: 3px; }
.scroll { overflow-x: auto; } .scroll td, .scroll th { white-space: nowrap; padding-right: 1.1rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1rem 1.1rem;
  overflow-x: auto; font-size: .85rem; line-height: 1.45; }
"""

Scale = tuple[Callable[[Any], float], list[tuple[float, str]]]
"""Where a value lies, and the places that are labelled."""


def write_best(folder: Path, tuned: Tuned) -> None:
    """The best recipe, and the table of trials."""
    if tuned.best is not None and tuned.recipe is not None:
        figure = f"{tuned.best.figure:.4f}"
        told = (
            f"# Trial {tuned.best.number} of `mnagt tune`, the best of {tuned.count}: "
            f"validation {tuned.metric} {figure}, the mean of the last {tuned.config.train.choose_over} epochs of "
            f"{tuned.seeds} seeds from {tuned.config.train.seed} on. Test was not scored.\n"
        )
        write_text(folder / BEST, told + recipe_text(tuned.recipe))
    with written_atomically(folder / TRIALS) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "state", f"valid_{tuned.metric}", "epochs", "seconds", "reason", *tuned.space])
        for t in tuned.trials:
            drawn = [t.settings.get(name, "") for name in tuned.space]
            writer.writerow([t.number, t.state, t.figure, t.epochs, t.seconds, t.reason, *drawn])


def recipe_text(config: RunConfig) -> str:
    """The recipe in TOML, every setting written out, so that it stays the same when a default changes. The device is
    left out: it is no part of a recipe."""
    run = resolved(config)
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


def write_report(folder: Path, tuned: Tuned) -> None:
    write_text(folder / REPORT, page(tuned))


def page(tuned: Tuned) -> str:
    """The report on a search of which at least one trial is over."""
    finished = [trial for trial in tuned.trials if trial.state == "finished"]
    searched = sorted(varied(tuned.space), key=lambda name: -tuned.importances.get(name, 0.0))
    sections = [_headline(tuned), _history(tuned)]
    if finished:
        sections += [
            _importances(tuned),
            _slices(tuned, finished, searched),
            _paths(tuned, finished, searched),
            _ranking(tuned, finished, searched),
            _recipe(tuned),
        ]
    run, spent = tuned.config, sum(trial.seconds for trial in tuned.trials)
    seeds = f"seeds {run.train.seed} to {run.train.seed + tuned.seeds - 1}"
    facts = (run.dataset, run.model, f"{run.train.epochs} epochs", seeds, f"{clock(spent)} of trials")
    return html_page(f"mnagt tune: {run.model} on {run.dataset}", sections, (*facts, f"mnagt {__version__}"), STYLE)


def _headline(tuned: Tuned) -> Markup:
    best, start, states = tuned.best, tuned.start, Counter(trial.state for trial in tuned.trials)
    score = f"validation {tuned.metric}"
    tiles = (
        [] if best is None else [tile(f"best, {score}", _shown(best.figure), f" trial {best.number}", is_first=True)]
    )
    if start is not None and start.state == "finished":
        tiles.append(tile("where it began", _shown(start.figure), f" trial {start.number}"))
    tiles.append(tile("trials finished", str(states["finished"]), f" of {tuned.count}"))
    return element(
        "section",
        element("h1", f"{tuned.config.model} on {tuned.config.dataset}: {tuned.count} trials"),
        element(
            "p",
            f"A trial trains the same settings with {tuned.seeds} seeds, each with weights, order and (if drawn) split "
            f"of its own. Its figure is the {score} of the last {tuned.config.train.choose_over} epochs, averaged over "
            "epochs and seeds, so that no choice of an epoch flatters it. The test parts were not scored.",
            class_="lead",
        ),
        element("div", *tiles, class_="tiles"),
        element("p", verdict(tuned), style="margin-top:1rem"),
    )


def verdict(tuned: Tuned) -> str:
    """What the best figure is worth."""
    best, start, first = tuned.best, tuned.start, tuned.config.train.seed + tuned.seeds
    if best is None:
        return "No trial has come to its end yet."
    said = "The highest of many figures is partly luck, and the splits that chose it cannot tell how much: "
    said += f"`mnagt trials best.toml --first-seed {first}` scores it on others."
    if start is None or start.state != "finished" or tuned.seeds == 1:
        return said
    if best is start:
        return f"No trial was better than the settings that the search began with. {said}"
    gaps = [tuned.sign * (a - b) for a, b in zip(best.figures, start.figures, strict=True)]
    error = stdev(gaps) / math.sqrt(len(gaps))
    return f"The best is ahead of where it began by {mean(gaps):.4f} ± {error:.4f} (standard error over seeds). {said}"


def _history(tuned: Tuned) -> Markup:
    title, width, height = "Trials in the order of their numbers", 640, 280
    numbers = [trial.number for trial in tuned.trials]
    finished = [trial for trial in tuned.trials if trial.figure is not None and trial.state == "finished"]
    x = Axis(min(numbers), max(max(numbers), min(numbers) + 1), 56, width - 12)
    y = Axis.over((_figure(trial) for trial in finished), height - 50, 26, least=0.01)
    ticks = [(x(tick), f"{tick:g}") for tick in x.ticks() if tick == int(tick)]
    parts = [_grid(x, y, ticks, "trial", tuned.metric)]
    steps, ahead = [], None
    for trial in finished:
        if ahead is None or tuned.sign * (_figure(trial) - ahead) > 0:
            steps += [] if ahead is None else [(x(trial.number), y(ahead))]
            ahead = _figure(trial)
            steps.append((x(trial.number), y(ahead)))
    if ahead is not None:
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*steps, (x.end, y(ahead))])
        parts.append(element("polyline", points=line, style=f"stroke:{colour(1)};fill:none", stroke_width=2))
    parts += [_dot(tuned, trial, x(trial.number), y(_figure(trial))) for trial in finished]
    for trial in tuned.trials:
        if trial.state != "finished":
            place = {"x1": x(trial.number), "x2": x(trial.number), "y1": y.start - 7, "y2": y.start}
            parts.append(element("line", element("title", _told(trial)), **place, style=f"stroke:{INK}"))
    return element(
        "section",
        element("h2", "How the search went"),
        element(
            "p",
            "Dots are trials that came to their end, the line is the best so far. Strokes at the foot are trials that "
            "did not: pruned, because most trials before them were ahead at the same epoch; refused; or lost.",
        ),
        element("figure", element("figcaption", title), drawing(title, (0, 0, width, height), *parts)),
    )


def _importances(tuned: Tuned) -> Markup:
    title = "Share of each setting in what sets the better trials apart"
    width, left, step = 460, 130, 26
    x, parts = Axis(0, max(tuned.importances.values(), default=1) or 1, left, width - 52), []
    for i, (name, share) in enumerate(tuned.importances.items()):
        bar = {"x": left, "y": i * step + 4, "width": x(share) - left, "height": step - 8, "rx": 3}
        parts.append(text(left - 10, i * step + 17, name, "end"))
        parts.append(element("rect", **bar, style=f"fill:{colour(0)}"))
        parts.append(text(x(share) + 6, i * step + 17, percent(share), "start"))
    picture = drawing(title, (0, 0, width, max(1, len(tuned.importances)) * step), *parts)
    return element(
        "section",
        element("h2", "What mattered"),
        element(
            "p",
            "PED-ANOVA over the finished trials: how much more the better ones agree on a setting than all do. With a "
            "few dozen trials this is a hint, not a measurement."
            if tuned.importances
            else "Too few finished trials to say.",
        ),
        element("figure", element("figcaption", title), picture, class_="wide") if tuned.importances else "",
    )


def _slices(tuned: Tuned, finished: Sequence[Tried], searched: Sequence[str]) -> Markup:
    width, height, figures = 300, 190, []
    y = Axis.over((_figure(trial) for trial in finished), height - 40, 22, least=0.01)
    for name in searched:
        x = Axis(0, 1, 52, width - 14)
        place, ticks = _scale(tuned.space[name], x.start, x.end)
        dots = [_dot(tuned, trial, place(trial.settings[name]), y(_figure(trial))) for trial in finished]
        parts = [_grid(x, y, ticks, name, tuned.metric), *dots]
        figures.append(element("figure", drawing(f"{tuned.metric} by {name}", (0, 0, width, height), *parts)))
    return element(
        "section",
        element("h2", "Setting by setting"),
        element("p", "Finished trials. A dot differs from its neighbours in the other settings too."),
        element("div", *figures, class_="cards"),
    )


def _paths(tuned: Tuned, finished: Sequence[Tried], searched: Sequence[str]) -> Markup:
    """A line for each trial across an axis for each setting, coloured by its rank."""
    title, width, height = "Every finished trial as a line, from its settings to its figure", 900, 320
    top, bottom = 44, height - 14
    columns = Axis(0, max(1, len(searched)), 46, width - 60)
    scales = {name: _scale(tuned.space[name], bottom, top) for name in searched}
    figures = Axis.over(map(_figure, finished), bottom, top, least=0.01)
    ordered = sorted(finished, key=lambda trial: tuned.sign * _figure(trial))
    lines, axes = [], []
    for trial, ink in zip(ordered, ramp(len(ordered)), strict=True):
        points = [(columns(i), scales[name][0](trial.settings[name])) for i, name in enumerate(searched)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*points, (columns(len(searched)), figures(_figure(trial)))])
        style, thick = f"stroke:{ink};fill:none", 3 if trial is ordered[-1] else 1.4
        lines.append(element("polyline", element("title", _told(trial)), points=line, style=style, stroke_width=thick))
    ends = [(figures(tick), f"{tick:g}") for tick in figures.ticks()]
    named = [*((name, scales[name][1]) for name in searched), (tuned.metric, ends)]
    for i, (name, ticks) in enumerate(named):
        x = columns(i)
        axes.append(element("line", x1=x, x2=x, y1=top, y2=bottom, style=f"stroke:{INK}"))
        axes.append(text(x, 12 if i % 2 else 28, name))
        axes += [text(x + 5, place + 4, label, "start") for place, label in ticks]
    picture = drawing(title, (0, 0, width, height), *lines, element("g", *axes, class_="axes"), class_="paths")
    return element(
        "section",
        element("h2", "All at once"),
        element("p", "From purple, the worst, over teal to yellow, the best."),
        element("figure", element("figcaption", title), picture),
    )


def _ranking(tuned: Tuned, finished: Sequence[Tried], searched: Sequence[str]) -> Markup:
    best = sorted(finished, key=lambda trial: -tuned.sign * _figure(trial))[:SHOWN]
    head = [element("th", name, scope="col") for name in ("trial", tuned.metric, "seeds from", "to", *searched)]
    rows = []
    for trial in best:
        cells = [_shown(trial.figure), _shown(min(trial.figures)), _shown(max(trial.figures))]
        cells += [_short(trial.settings[name]) for name in searched]
        number = element("th", str(trial.number), scope="row")
        rows.append(element("tr", number, *(element("td", cell, class_="number") for cell in cells)))
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return element("section", element("h2", f"The best {len(best)}"), element("div", table, class_="scroll"))


def _recipe(tuned: Tuned) -> Markup:
    assert tuned.recipe is not None
    return element(
        "section",
        element("h2", "The best recipe"),
        element("p", "As in best.toml; `mnagt train --recipe` and `mnagt trials` take it."),
        element("pre", recipe_text(tuned.recipe)),
    )


# --- parts of pictures ---


def _scale(entry: Range | tuple, start: float, end: float) -> Scale:
    """A setting's values laid out between ``start`` and ``end``."""
    if not isinstance(entry, Range):
        axis = Axis(-0.5, len(entry) - 0.5, start, end)
        return lambda value: axis(entry.index(value)), [(axis(i), _short(value)) for i, value in enumerate(entry)]
    if not entry.log:
        axis = Axis(entry.low, entry.high, start, end)
        is_whole = isinstance(entry.low, int)
        return axis, [(axis(tick), _short(tick)) for tick in axis.ticks() if not is_whole or tick == int(tick)]
    axis = Axis(math.log10(entry.low), math.log10(entry.high), start, end)
    powers = [10.0**p for p in range(math.ceil(axis.low), math.floor(axis.high) + 1)]
    ticks = powers[:: -(-len(powers) // 5)] if len(powers) > 1 else [entry.low, entry.high]
    return lambda value: axis(math.log10(value)), [(axis(math.log10(tick)), _short(tick)) for tick in ticks]


def _grid(x: Axis, y: Axis, x_ticks: Sequence[tuple[float, str]], x_label: str, y_label: str) -> Markup:
    lines = [element("line", x1=x.start, x2=x.end, y1=y(t), y2=y(t), style=f"stroke:{FAINT}") for t in y.ticks()]
    left = [text(x.start - 7, y(t) + 4, f"{t:g}", "end") for t in y.ticks()]
    below = [text(place, y.start + 16, label) for place, label in x_ticks]
    names = [text(x.end, y.start + 33, x_label, "end"), text(2, 12, y_label, "start")]
    return element("g", *lines, *left, *below, *names, class_="axes")


def _dot(tuned: Tuned, trial: Tried, x: float, y: float) -> Markup:
    is_best = tuned.best is not None and trial.number == tuned.best.number
    style = f"fill:{colour(1 if is_best else 0)};fill-opacity:{1 if is_best else 0.6}"
    return element("circle", element("title", _told(trial)), cx=x, cy=y, r=6 if is_best else 4, style=style)


def _told(trial: Tried) -> str:
    """A trial in a line."""
    figure = "" if trial.figure is None else f", {_shown(trial.figure)}"
    return f"trial {trial.number}, {trial.state}{figure}" + (f": {trial.reason}" if trial.reason else "")


def _figure(trial: Tried) -> float:
    return math.nan if trial.figure is None else trial.figure


def _shown(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.4f}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
