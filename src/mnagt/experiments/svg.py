"""Pictures for reports, as inline SVG: pure functions from numbers to markup, no script and nothing from outside.

Colours are any CSS colour, so that a page can hand over ``var(--name)`` and choose light or dark itself.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

INK, FAINT = "var(--ink, #222)", "var(--line, #ccc)"
VOID = {"input", "meta"}
"""Elements that have no end tag."""


class Markup(str):
    """Text that is markup already. All other text is escaped on its way into an element."""


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """``<name ...>children</name>``; ``class_`` is class, ``stroke_width`` stroke-width, None and False left out."""
    given = joined(
        Markup(f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{given}>" + ("" if name in VOID else f"{joined(children)}</{name}>"))


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is True else str(value)


def drawing(title: str, view: tuple[float, float, float, float], *parts: str, class_: str | None = None) -> Markup:
    """An SVG of the rectangle ``view`` (x, y, width, height), with ``title`` for those who cannot see it."""
    corners = " ".join(f"{side:.5g}" for side in view)
    return element("svg", *parts, viewBox=corners, role="img", aria_label=title, class_=class_)


def text(x: float, y: float, words: str, anchor: str = "middle", **attributes: object) -> Markup:
    return element("text", words, x=x, y=y, text_anchor=anchor, **attributes)


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


# --- axes and charts ---


@dataclass(frozen=True)
class Axis:
    """Takes values in [low, high] to places in [start, end]."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, least: float = 1e-3) -> "Axis":
        """From round number to round number around ``values``; never narrower than ``least``."""
        known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(known), max(known)
        if high - low < least:
            low, high = low - least / 2, high + least / 2
        step = round_step((high - low) / 4)
        return cls(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        step = round_step((self.high - self.low) / 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]


def round_step(width: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least ``width``."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= width * (1 - 1e-9))


@dataclass(frozen=True)
class Curve:
    """A line through ``middle`` at 1, 2, ..., or at ``places``, in a band from ``low`` to ``high``."""

    name: str
    colour: str
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    dash: str | None = None
    places: Sequence[float] | None = None

    @property
    def x(self) -> Sequence[float]:
        return range(1, len(self.middle) + 1) if self.places is None else self.places


def line_chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    show: Callable[[float], str] = "{:g}".format,
    ticks: Sequence[float] | None = None,
) -> Markup:
    """Curves with their bands, from 1 on. ``show`` writes the y ticks; ``ticks`` of the x axis get a dot each."""
    width, height, last = 420, 260, max((place for curve in curves for place in curve.x), default=1)
    x = Axis(1, max(2, last), 46, width - 12)
    y = Axis.over((v for curve in curves for v in (*curve.low, *curve.high)), height - 38, 26, least=0.01)
    whole = [1, *(tick for tick in x.ticks() if tick == int(tick) and 1 < tick <= last)]
    parts = [_grid(x, y, whole if ticks is None else ticks, "{:.0f}".format, show, x_label, y_label)]
    for curve in curves:
        up = [f"{x(at):.1f},{y(v):.1f}" for at, v in zip(curve.x, curve.high, strict=True)]
        down = [f"{x(at):.1f},{y(v):.1f}" for at, v in zip(curve.x, curve.low, strict=True)]
        parts.append(element("polygon", points=" ".join(up + down[::-1]), style=f"fill:{curve.colour}", opacity=0.16))
    for curve in curves:
        points = [(x(at), y(v)) for at, v in zip(curve.x, curve.middle, strict=True)]
        style = f"stroke:{curve.colour};fill:none"
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(element("polyline", points=line, style=style, stroke_width=2, stroke_dasharray=curve.dash))
        if len(points) == 1 or ticks is not None:
            for (a, b), at, value in zip(points, curve.x, curve.middle, strict=True):
                tip = element("title", f"{curve.name}, {x_label} {at:g}: {value:.4g}")
                parts.append(element("circle", tip, cx=a, cy=b, r=3.5, style=f"fill:{curve.colour}"))
    return drawing(title, (0, 0, width, height), *parts)


@dataclass(frozen=True)
class Dots:
    """A value for each column of a dot plot, and the line to draw through their mean."""

    name: str
    colour: str
    values: Sequence[float]
    mean: float
    dash: str | None = None


def dot_plot(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Dots],
    *,
    x_label: str,
    y_label: str,
    show: Callable[[float], str] = "{:g}".format,
) -> Markup:
    """The values of ``rows`` side by side in each column, joined by a thread; the mean of each as a line across."""
    width, height = 460, 250
    x = Axis(-0.5, max(1, len(columns)) - 0.5, 46, width - 12)
    y = Axis.over((v for row in rows for v in row.values), height - 38, 26, least=0.05)
    gap = min(14.0, 0.6 * (x(1) - x(0)) / max(1, len(rows)))
    every = -(-len(columns) // 20)
    parts = [_grid(x, y, range(0, len(columns), every), lambda i: columns[int(i)], show, x_label, y_label)]
    for row in rows:
        line = {"x1": x.start, "x2": x.end, "y1": y(row.mean), "y2": y(row.mean)}
        parts.append(element("line", **line, style=f"stroke:{row.colour}", stroke_dasharray=row.dash, opacity=0.6))
    for i, column in enumerate(columns):
        places = [(x(i) + gap * (j - (len(rows) - 1) / 2), y(row.values[i])) for j, row in enumerate(rows)]
        thread = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(element("polyline", points=thread, style=f"stroke:{FAINT};fill:none", stroke_width=2))
        for (a, b), row in zip(places, rows, strict=True):
            label = element("title", f"{x_label} {column}, {row.name}: {show(row.values[i])}")
            parts.append(element("circle", label, cx=a, cy=b, r=5, style=f"fill:{row.colour}"))
    return drawing(title, (0, 0, width, height), *parts)


def _grid(
    x: Axis,
    y: Axis,
    x_ticks: Iterable[float],
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    x_label: str,
    y_label: str,
) -> Markup:
    lines = [element("line", x1=x.start, x2=x.end, y1=y(t), y2=y(t), style=f"stroke:{FAINT}") for t in y.ticks()]
    left = [text(x.start - 7, y(t) + 4, show_y(t), "end") for t in y.ticks()]
    below = [text(x(t), y.start + 16, show_x(t)) for t in x_ticks]
    names = [text(x.end, y.start + 32, x_label, "end"), text(2, 12, y_label, "start")]
    return element("g", *lines, *left, *below, *names, class_="axes")


def interval(
    title: str,
    mean: float,
    deviation: float | None,
    axis: tuple[float, float],
    colour: str,
    beside: float | None = None,
) -> Markup:
    """A dot at ``mean`` with whiskers of one deviation, a ring at ``beside``: a short axis for a cell of a table."""
    width, height = 150, 18
    x, middle = Axis(*axis, 4, width - 4), height / 2
    low, high = (min(max(mean + side * (deviation or 0), axis[0]), axis[1]) for side in (-1, 1))
    ring = f"stroke:{INK};fill:none"
    return drawing(
        title,
        (0, 0, width, height),
        element("line", x1=0, x2=width, y1=middle, y2=middle, style=f"stroke:{FAINT}"),
        element("line", x1=x(low), x2=x(high), y1=middle, y2=middle, style=f"stroke:{colour}", stroke_width=3),
        element("circle", cx=x(mean), cy=middle, r=5, style=f"fill:{colour}"),
        *([] if beside is None else [element("circle", cx=x(beside), cy=middle, r=4.5, style=ring, stroke_width=2)]),
        class_="interval",
    )


@dataclass(frozen=True)
class Bar:
    """A bar from zero to ``value``, with whiskers of ``error``; a ring marks what others found."""

    name: str
    colour: str
    value: float
    error: float = 0.0
    ring: float | None = None


def gain_bars(title: str, bars: Sequence[Bar], *, x_label: str) -> Markup:
    """Bars that start at zero and go either way, one below the other."""
    width, left, step, top = 420, 92, 32, 4
    ends = [end for bar in bars for end in (0.0, bar.value - bar.error, bar.value + bar.error, bar.ring or 0.0)]
    x, bottom = Axis.over(ends, left, width - 14, least=0.1), top + step * len(bars)
    parts = []
    for tick in x.ticks():
        ink = INK if tick == 0 else FAINT
        parts.append(element("line", x1=x(tick), x2=x(tick), y1=top, y2=bottom, style=f"stroke:{ink}"))
        parts.append(text(x(tick), bottom + 16, f"{tick:g}"))
    parts.append(text(x.end, bottom + 32, x_label, "end"))
    for i, bar in enumerate(bars):
        y, middle = top + i * step + 7, top + (i + 0.5) * step
        start, size = min(x(0), x(bar.value)), abs(x(bar.value) - x(0))
        whisker = {"x1": x(bar.value - bar.error), "x2": x(bar.value + bar.error), "y1": middle, "y2": middle}
        tip = element("title", f"{bar.name}: {bar.value:+.2f} ± {bar.error:.2f}")
        parts.append(text(left - 10, middle + 4, bar.name, "end"))
        parts.append(element("rect", tip, x=start, y=y, width=size, height=step - 14, rx=3, style=f"fill:{bar.colour}"))
        parts.append(element("line", **whisker, style=f"stroke:{INK}", stroke_width=2))
        if bar.ring is not None:
            tip = element("title", f"{bar.name}, paper: {bar.ring:+.2f}")
            ring = {"style": f"stroke:{INK};fill:var(--card, #fff)", "stroke_width": 2}
            parts.append(element("circle", tip, cx=x(bar.ring), cy=middle, r=5, **ring))
    return drawing(title, (0, 0, width, bottom + 38), *parts)


def stacked_bars(
    title: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], colours: Sequence[str]
) -> Markup:
    """A bar for each row, cut into shares that add up to 1."""
    width, left, step = 460, 62, 30
    x, parts = Axis(0, 1, left, width - 4), []
    for i, (label, shares) in enumerate(rows):
        parts.append(text(left - 10, i * step + 19, label, "end"))
        start = 0.0
        for share, name, colour in zip(shares, names, colours, strict=True):
            where, size = x(start), max(0.0, x(start + share) - x(start) - 1.5)
            tip = element("title", f"{label}, {name}: {percent(share, 1)}")
            parts.append(element("rect", tip, x=where, y=i * step + 3, width=size, height=step - 6, rx=3, fill=colour))
            if size > 40:
                parts.append(text(where + size / 2, i * step + 19, percent(share), style=f"fill:{legible(colour)}"))
            start += share
    return drawing(title, (0, 0, width, max(1, len(rows)) * step), *parts)


def confusion_matrix(title: str, counts: Sequence[Sequence[int]], names: Sequence[str], colour: str) -> Markup:
    """Counts of graphs by actual (rows) and predicted (columns) class, with the share of each row."""
    left, top, cell = 116, 40, (96, 62) if len(names) < 4 else (66, 46)
    width, height = left + cell[0] * len(names) + 2, top + cell[1] * len(names) + 2
    parts = [text(left + (width - left) / 2, 12, "predicted"), text(0, 30, "actual", "start")]
    for i, name in enumerate(names):
        parts.append(_name(left + (i + 0.5) * cell[0], 30, name, "middle", 15 if cell[0] > 80 else 9))
        parts.append(_name(left - 10, top + (i + 0.5) * cell[1] + 4, name, "end", 16))
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            share = count / max(1, sum(row))
            x, y, middle = left + j * cell[0], top + i * cell[1], left + (j + 0.5) * cell[0]
            tip = element("title", f"{count} {names[i]} predicted as {names[j]}: {percent(share, 1)}")
            box = {"x": x + 1.5, "y": y + 1.5, "width": cell[0] - 3, "height": cell[1] - 3, "rx": 5}
            shade = f"fill:{colour};fill-opacity:{0.04 + 0.5 * share:.2f}"
            parts.append(element("rect", tip, **box, style=shade))
            parts.append(text(middle, y + cell[1] / 2 - 1, str(count), class_="count"))
            parts.append(text(middle, y + cell[1] / 2 + 16, percent(share), class_="share"))
    return drawing(title, (0, 0, width, height), *parts)


def _name(x: float, y: float, name: str, anchor: str, most: int) -> Markup:
    """A name cut to ``most`` letters, whole when pointed at."""
    cut = name if len(name) <= most else name[: most - 1] + "…"
    return element("text", element("title", name), cut, x=x, y=y, text_anchor=anchor)


def standalone(
    picture: Markup,
    caption: str,
    entries: Sequence[tuple[str, str, str | None]],
    colours: Mapping[str, str],
    style: str,
) -> str:
    """The drawing as a file of its own: its caption above, names with colour and dash below, colours filled in."""
    x, y, width, height = (float(side) for side in re.findall(r'viewBox="([^"]*)"', picture)[0].split())
    frame = {"x": x - 8, "y": y - 32, "width": width + 16, "height": height + 40 + 18 * len(entries)}
    parts = [element("style", Markup(style)), element("rect", **frame, style="fill:var(--card)")]
    parts.append(text(x, y - 12, caption, "start", style="font-weight:600"))
    for i, (name, colour, dash) in enumerate(entries):
        at = y + height + 18 * i
        line = {"x1": x + 46, "x2": x + 72, "y1": at, "y2": at, "stroke_width": 3, "stroke_dasharray": dash}
        parts += [element("line", **line, style=f"stroke:{colour}"), text(x + 82, at + 4, name, "start")]
    corners = " ".join(f"{side:g}" for side in frame.values())
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{frame["width"]:g}" height="{frame["height"]:g}"'
    whole = re.sub(r'<svg viewBox="[^"]*"', f'{opening} viewBox="{corners}"', picture, count=1)
    whole = whole.replace(">", ">" + joined(parts), 1)
    return re.sub(r"var\(--([\w-]+)[^)]*\)", lambda found: colours[found[1]], whole) + "\n"


# --- colours ---

RAMP = ((0x6F, 0x4E, 0xA8), (0x24, 0x9C, 0x95), (0xF4, 0xC5, 0x4B))
"""Purple, teal, yellow: they differ in lightness too, so that they stay apart for every eye."""


def ramp(count: int) -> list[str]:
    """``count`` colours in order, from purple over teal to yellow."""
    colours = []
    for i in range(count):
        place = 0.0 if count == 1 else i / (count - 1) * (len(RAMP) - 1)
        at = min(int(place), len(RAMP) - 2)
        mixed = (round(a + (b - a) * (place - at)) for a, b in zip(RAMP[at], RAMP[at + 1], strict=True))
        colours.append("#" + "".join(f"{channel:02x}" for channel in mixed))
    return colours


def legible(colour: str) -> str:
    """Black or white, whichever reads better on ``colour``, written ``#rrggbb``."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#111" if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else "#fff"


def legend(entries: Iterable[tuple[str, str]], dashes: Sequence[str | None] = ()) -> Markup:
    """Names beside their colours: blobs, or lines where ``dashes`` are given."""
    items = []
    for i, (name, colour) in enumerate(entries):
        if dashes:
            line = {"x1": 0, "x2": 26, "y1": 7, "y2": 7, "stroke_width": 3, "stroke_dasharray": dashes[i]}
            swatch = element("line", **line, style=f"stroke:{colour}")
        else:
            swatch = element("circle", cx=7, cy=7, r=6, style=f"fill:{colour}")
        size = 26 if dashes else 14
        key = element("svg", swatch, viewBox=f"0 0 {size} 14", width=size, height=14, aria_hidden="true")
        items.append(element("span", key, name))
    return element("p", *items, class_="legend")
