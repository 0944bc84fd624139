"""Charts of reports, each a function from numbers to a `Picture`."""

import math
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from mnagt.reports.picture import TOOLTIP, Key, Picture
from mnagt.reports.theme import CARD, INK, LINE, SOFT, LineStyle, contrast_colour, interpolate_ramp, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUND_NUMBERS = [float(f"{factor}e{power}") for power in range(-12, 16) for factor in (1, 2, 5)]


@dataclass(frozen=True)
class Series:
    """A line through ``y`` at ``x``, in a band from ``low`` to ``high`` where these are given."""

    name: str
    style: LineStyle
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def mean_series(
    name: str,
    number: int,
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> Series:
    """The means of ``values`` at each ``x``, in a band of one standard deviation to either side, kept ``within``."""
    means = np.array([mean(each) for each in values])
    deviations = np.array([stdev(each) if len(each) > 1 else 0.0 for each in values])
    low, high = np.clip([means - deviations, means + deviations], *within).tolist()
    return Series(name, series_style(number), x, means.tolist(), low, high)


def line_chart(
    caption: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[float] | None = None,
    is_log: bool = False,
) -> Picture:
    """Lines with their bands. Where ``x_ticks`` are given, or a line has one point only, points get a dot each."""

    def draw(ax: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        values = [v for each in series for v in (*each.y, *each.low, *each.high) if math.isfinite(v)]
        _prepare_axes(ax, x_label, y_label, values, least=0.01)
        for each in series:
            if each.low:
                ax.fill_between(each.x, each.low, each.high, color=each.style.colour, alpha=0.16, linewidth=0)
        for each in series:
            ax.plot(each.x, each.y, color=each.style.colour, linestyle=(0, each.style.dashes or (1, 0)))
            if x_ticks is not None or len(each.x) == 1:
                tips = [f"{each.name}, {x_label} {x:,g}: {y:.4g}" for x, y in zip(each.x, each.y, strict=True)]
                _draw_dots(ax, each.x, each.y, each.style.colour, 3.5, tips)
        if is_log:
            ax.set_xscale("log")
            ax.grid(visible=True, axis="both")
            _set_log_axis(ax, "y", values)
        positions = [x for each in series for x in each.x] or [1]
        low, high = min(positions if is_log else [1, *positions]), max(positions)
        ax.set_xlim(low, max(high, 2 * low if is_log else low + 1))
        located = MaxNLocator(6, steps=[1, 2, 5, 10], integer=True).tick_values(*ax.get_xlim())
        ticks = x_ticks or [low, *(tick for tick in located if low < tick <= ax.get_xlim()[1])]
        ax.minorticks_off()
        ax.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])

    size = (400, 290) if is_log else (420, 260)
    return Picture(caption, size, draw, [Key(each.name, *each.style) for each in series])


def dot_plot(caption: str, columns: Sequence[str], series: Sequence[Series], *, x_label: str, y_label: str) -> Picture:
    """The values of all series side by side in each column, joined by a line; dashed lines across are the means."""

    def draw(ax: "Axes") -> None:
        _prepare_axes(ax, x_label, y_label, [value for each in series for value in each.y], least=0.05)
        offsets = min(0.35, 0.6 / max(1, len(series))) * (np.arange(len(series)) - (len(series) - 1) / 2)
        for i in range(len(columns)):
            ax.plot(i + offsets, [each.y[i] for each in series], color=LINE)
        for each, offset in zip(series, offsets, strict=True):
            colour, dashes = each.style
            ax.axhline(mean(each.y), color=colour, linewidth=1, alpha=0.6, linestyle=(0, dashes or (1, 0)))
            tips = [f"{x_label} {name}, {each.name}: {y:.3g}" for name, y in zip(columns, each.y, strict=True)]
            _draw_dots(ax, (np.arange(len(columns)) + offset).tolist(), each.y, colour, 5, tips)
        every = -(-len(columns) // 20)
        ax.set_xlim(-0.5, max(1, len(columns)) - 0.5)
        ax.set_xticks(range(0, len(columns), every), columns[::every])

    return Picture(caption, (460, 250), draw, [Key(each.name, *each.style) for each in series])


@dataclass(frozen=True)
class Bar:
    """A horizontal bar.

    Args:
        name: Label to its left; bold where ``is_ours``.
        value: Its length; without one, ``note`` stands in its place.
        cells: Texts to its right, one for each column of the chart.
        error: Length of its whiskers.
        ring: Position of a ring, for a value found by others.
        is_hollow: Draws a dashed outline only.
    """

    name: str
    value: float | None
    cells: tuple[str, ...] = ()
    colour: str = SOFT
    error: float = 0.0
    ring: float | None = None
    note: str = ""
    is_ours: bool = False
    is_hollow: bool = False


def bar_chart(
    caption: str,
    bars: Sequence[Bar],
    *,
    columns: Sequence[str] = (),
    x_label: str = "",
    is_log: bool = False,
    has_ticks: bool = True,
    floor: float | None = None,
) -> Picture:
    """Bars one below the other with ``columns`` of text to their right; a line marks the ``floor``."""

    def draw(ax: "Axes") -> None:
        ends = [end for bar in bars for end in (bar.value, bar.ring) if end is not None]
        errors = [bar.value + side * bar.error for bar in bars if bar.value is not None for side in (-1, 1)]
        values = [*ends, *([floor] if floor else [])] if is_log else [0.0, *ends, *errors]
        ax.set_ylim(len(bars) - 0.5, -0.5)
        ax.set_yticks(range(len(bars)), [shorten(bar.name, 32) for bar in bars])
        for label, bar in zip(ax.get_yticklabels(), bars, strict=True):
            label.set(color=INK, fontweight="bold" if bar.is_ours else "normal")
        ax.grid(visible=False, axis="y")
        if is_log:
            _set_log_axis(ax, "x", values)
        elif has_ticks:
            _set_linear_axis(ax, "x", values, least=0.1)
            ax.axvline(0, color=INK, linewidth=1)
        else:
            ax.set(xticks=[], xlim=(0, max(values) or 1))
        ax.set_xlabel(x_label, loc="right")
        if floor is not None:
            ax.axvline(floor, color=INK)
            ax.annotate("floor", (floor, 1), (0, 6), xycoords=("data", "axes fraction"), **_OFFSET, ha="center")
        for i, bar in enumerate(bars):
            _draw_bar(ax, i, bar, start=ax.get_xlim()[0] if is_log else 0.0, note_at=floor)
        _draw_columns(ax, bars, columns)

    height = 24 * len(bars) + (24 if columns else 6) + (22 if has_ticks else 0) + (18 if x_label else 0)
    return Picture(caption, (420, height), draw)


_OFFSET: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}


def _draw_bar(ax: "Axes", row: int, bar: Bar, start: float, note_at: float | None) -> None:
    if bar.value is None:
        position = note_at or ax.get_xlim()[0]
        ax.annotate(bar.note, (position, row), (6, 0), **_OFFSET, va="center", style="italic", color=bar.colour)
        return
    look: dict[str, Any] = {"color": bar.colour}
    if bar.is_hollow:
        look = {"facecolor": "none", "edgecolor": bar.colour, "linewidth": 1, "linestyle": (0, (3, 2))}
    (patch,) = ax.barh(row, bar.value - start, 0.62, start, **look)
    patch.set_url(f"{TOOLTIP}{bar.name}: {bar.value:.4g}" + (f" ± {bar.error:.2g}" if bar.error else ""))
    if bar.error:
        ax.plot([bar.value - bar.error, bar.value + bar.error], [row, row], color=INK)
    if bar.ring is not None:
        _draw_dots(ax, [bar.ring], [row], CARD, 4.5, [f"{bar.name}, others: {bar.ring:.4g}"], edge=INK)


def _draw_columns(ax: "Axes", bars: Sequence[Bar], heads: Sequence[str]) -> None:
    """Right-aligned columns of text beside the axes."""
    position, align = 6.0, {**_OFFSET, "ha": "right", "va": "center"}
    for column, head in enumerate(heads):
        texts = [bar.cells[column] if bar.cells else "" for bar in bars]
        position += 8 * max(map(len, (head, *texts))) + 8
        ax.annotate(head, (1, -0.5), (position, 9), xycoords=("axes fraction", "data"), **align, color=SOFT)
        for row, text in enumerate(texts):
            ax.annotate(text, (1, row), (position, 0), xycoords=("axes fraction", "data"), **align)


def stacked_bars(caption: str, rows: Sequence[tuple[str, Sequence[float]]], keys: Sequence[Key]) -> Picture:
    """A bar for each row, divided into shares that add up to 1, one for each key."""

    def draw(ax: "Axes") -> None:
        ax.set(xlim=(0, 1), xticks=[], ylim=(max(1, len(rows)) - 0.5, -0.5))
        ax.grid(visible=False)
        ax.set_yticks(range(len(rows)), [label for label, _ in rows])
        for i, (label, shares) in enumerate(rows):
            start = 0.0
            for share, key in zip(shares, keys, strict=True):
                (patch,) = ax.barh(i, max(0.0, share - 0.004), 0.8, start, color=key.colour)
                patch.set_url(f"{TOOLTIP}{label}, {key.name}: {100 * share:.1f} %")
                if share > 0.1:
                    middle, ink = start + share / 2, contrast_colour(key.colour)
                    ax.text(middle, i, f"{100 * share:.0f} %", ha="center", va="center", color=ink)
                start += share

    return Picture(caption, (460, 30 * max(1, len(rows))), draw, keys)


def confusion_matrix(caption: str, counts: Sequence[Sequence[int]], names: Sequence[str], colour: str) -> Picture:
    """Counts of graphs by actual (rows) and predicted (columns) class, with the share of each row."""
    width, height, letters = (96, 62, 15) if len(names) < 4 else (66, 46, 9)

    def draw(ax: "Axes") -> None:
        from matplotlib.patches import FancyBboxPatch

        ax.set(xlim=(0, width * len(names)), ylim=(height * len(names), 0), aspect="equal")
        ax.grid(visible=False)
        ax.xaxis.tick_top()
        ax.set_xticks([width * (i + 0.5) for i in range(len(names))], [shorten(name, letters) for name in names])
        ax.set_yticks([height * (i + 0.5) for i in range(len(names))], [shorten(name, 16) for name in names])
        for label, name in zip([*ax.get_xticklabels(), *ax.get_yticklabels()], [*names, *names], strict=True):
            label.set(color=INK, url=TOOLTIP + name)
        ax.set_xlabel("predicted")
        ax.xaxis.set_label_position("top")
        ax.annotate("actual", (0, 1), (-8, 7), xycoords="axes fraction", **_OFFSET, ha="right", color=SOFT)
        for i, row in enumerate(counts):
            for j, count in enumerate(row):
                share, x, y = count / max(1, sum(row)), j * width, i * height
                style = {"boxstyle": "round,pad=0,rounding_size=5", "color": colour, "alpha": 0.04 + 0.5 * share}
                box = ax.add_patch(FancyBboxPatch((x + 1.5, y + 1.5), width - 3, height - 3, **style))
                box.set_url(f"{TOOLTIP}{count} {names[i]} predicted as {names[j]}: {100 * share:.1f} %")
                middle = x + width / 2, y + height / 2
                ax.annotate(str(count), middle, (0, 1), **_OFFSET, ha="center", fontsize=17, fontweight="bold")
                ax.annotate(f"{100 * share:.0f} %", middle, (0, -17), **_OFFSET, ha="center")

    return Picture(caption, (116 + width * len(names), 50 + height * len(names)), draw)


# --- charts of a search ---


@dataclass(frozen=True)
class Scale:
    """The values of a setting on an axis: ``positions`` are between 0 and 1, ``ticks`` the labelled ones."""

    name: str
    positions: Sequence[float]
    ticks: Sequence[tuple[float, str]]


def numeric_scale(
    name: str, values: Sequence[float], low: float, high: float, *, is_log: bool = False, is_integer: bool = False
) -> Scale:
    """``values`` between ``low`` and ``high``, with ticks at round numbers or, of logarithms, at powers of ten."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    measure = np.log10 if is_log else np.asarray
    start, end = measure([low, high])
    locator = LogLocator(numticks=5) if is_log else MaxNLocator(5, steps=[1, 2, 5, 10], integer=is_integer)
    tolerance = 1e-9 * max(abs(low), abs(high))
    inside = [tick for tick in locator.tick_values(low, high) if low - tolerance <= tick <= high + tolerance]
    ticks = inside if len(inside) > 1 else [low, high]

    def place(numbers: Sequence[float]) -> list[float]:
        return ((measure(numbers) - start) / (end - start)).tolist()

    return Scale(name, place(values), [(p, f"{tick:.4g}") for p, tick in zip(place(ticks), ticks, strict=True)])


def category_scale(name: str, values: Sequence[object], choices: Sequence[object], show: Callable[..., str]) -> Scale:
    """``values`` out of ``choices``, which lie equally far apart."""
    places = [(i + 0.5) / len(choices) for i in range(len(choices))]
    ticks = list(zip(places, map(show, choices), strict=True))
    return Scale(name, [places[choices.index(value)] for value in values], ticks)


def scatter_plot(
    caption: str,
    x: Scale,
    y: Sequence[float],
    *,
    y_label: str,
    tips: Sequence[str],
    best: int | None = None,
    steps: Sequence[tuple[float, float]] = (),
    marks: Sequence[tuple[float, str]] = (),
    size: tuple[float, float] = (300, 190),
) -> Picture:
    """Dots at ``x`` and ``y``; that with index ``best`` is larger and of another colour.

    ``steps`` (position, y) are corners of a line; ``marks`` (position, tooltip) are strokes at the foot.
    """

    def draw(ax: "Axes") -> None:
        _prepare_axes(ax, x.name, y_label, y, least=0.01)
        ax.set_xlim(-0.04, 1.04)
        ax.set_xticks([position for position, _ in x.ticks], [label for _, label in x.ticks])
        if steps:
            ax.plot(*zip(*steps, strict=True), color=series_style(1).colour)
        others = [i for i in range(len(y)) if i != best]
        for chosen, style, radius, alpha in ((others, 0, 4, 0.6), ([] if best is None else [best], 1, 6, 1.0)):
            places = [x.positions[i] for i in chosen], [y[i] for i in chosen]
            _draw_dots(ax, *places, series_style(style).colour, radius, [tips[i] for i in chosen], alpha)
        for position, tip in marks:
            (line,) = ax.plot([position] * 2, [0, 0.035], color=INK, linewidth=1, transform=ax.get_xaxis_transform())
            line.set_url(TOOLTIP + tip)

    return Picture(caption, size, draw)


def parallel_coordinates(caption: str, scales: Sequence[Scale], tips: Sequence[str]) -> Picture:
    """A line for each trial across an axis for each scale. The worst trial comes first, purple; the best is yellow."""

    def draw(ax: "Axes") -> None:
        ax.set(xlim=(-0.1, len(scales) - 0.4), ylim=(-0.02, 1.02), xticks=[], yticks=[])
        ax.grid(visible=False)
        for i, (tip, colour) in enumerate(zip(tips, interpolate_ramp(len(tips)), strict=True)):
            width = 3 if i == len(tips) - 1 else 1.4
            places = [scale.positions[i] for scale in scales]
            (line,) = ax.plot(range(len(scales)), places, color=colour, linewidth=width)
            line.set_url(TOOLTIP + tip)
        for i, scale in enumerate(scales):
            ax.plot([i, i], [0, 1], color=INK, linewidth=1)
            up = 8 if i % 2 == 0 else 24
            ax.annotate(scale.name, (i, 1), (0, up), **_OFFSET, ha="center", color=SOFT)
            for position, label in scale.ticks:
                ax.annotate(label, (i, position), (5, 0), **_OFFSET, va="center", color=SOFT)

    return Picture(caption, (900, 320), draw, css_class="paths")


def _prepare_axes(ax: "Axes", x_label: str, y_label: str, y: Iterable[float], least: float) -> None:
    """Lines across at round values of y; the name of x below its end, that of y above its axis."""
    ax.grid(visible=False, axis="x")
    _set_linear_axis(ax, "y", y, least)
    ax.set_xlabel(x_label, loc="right")
    ax.annotate(y_label, (0, 1), (-8, 8), xycoords="axes fraction", **_OFFSET, ha="right", color=SOFT)


def _draw_dots(
    ax: "Axes",
    x: Sequence[float],
    y: Sequence[float],
    colour: str,
    radius: float,
    tips: Sequence[str],
    alpha: float = 1.0,
    edge: str | None = None,
) -> None:
    """Discs with tooltips; with an ``edge`` of another colour they are rings."""
    dots = ax.scatter(x, y, s=4 * radius**2, facecolor=colour, alpha=alpha, zorder=3)
    dots.set(edgecolor=edge or "none", linewidth=2 if edge else 0)
    dots.set_urls([TOOLTIP + tip for tip in tips])


def _set_linear_axis(ax: "Axes", axis: str, values: Iterable[float], least: float) -> None:
    """From round number to round number around the finite ``values``; never narrower than ``least``."""
    from matplotlib.ticker import MaxNLocator

    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if high - low < least:
        low, high = low - least / 2, high + least / 2
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    ax.set(**{f"{axis}lim": (ticks[0], ticks[-1])})
    getattr(ax, f"set_{axis}ticks")(ticks, [f"{round(tick, 12):g}" for tick in ticks])


def _set_log_axis(ax: "Axes", axis: str, values: Iterable[float]) -> None:
    """From round number to round number, with some space below the least of ``values``."""
    positive = [value for value in values if value > 0] or [1.0]
    first, last = bisect(ROUND_NUMBERS, min(positive) / 1.2) - 1, bisect_left(ROUND_NUMBERS, max(positive))
    steps = ROUND_NUMBERS[first : last + 1]
    powers = [step for step in steps if math.log10(step).is_integer()]
    ticks = powers if len(powers) > 2 else steps
    labels = [f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}" for tick in ticks]
    ax.set(**{f"{axis}scale": "log"})
    ax.minorticks_off()
    getattr(ax, f"set_{axis}ticks")(ticks, labels)
    ax.set(**{f"{axis}lim": (steps[0], steps[-1])})


def shorten(name: str, letters: int) -> str:
    """``name`` in so many letters at most."""
    return name if len(name) <= letters else name[: letters - 1] + "…"
