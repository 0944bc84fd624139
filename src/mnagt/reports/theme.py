"""Colours and line styles of reports, in light and dark mode.

Pictures are drawn in the colours of `LIGHT`. In a page each of these is replaced by the CSS variable of the same name,
so that one picture serves both modes.
"""

import re
from typing import Any, NamedTuple

LIGHT = {
    "page": "#fbfaf8",
    "card": "#ffffff",
    "ink": "#23262b",
    "soft": "#62676f",
    "line": "#dddbd5",
    "series-0": "#0069ad",
    "series-1": "#c95a00",
    "series-2": "#00866a",
    "series-3": "#a8508a",
    "good": "#00725a",
    "bad": "#b04300",
}
DARK = {
    "page": "#15171b",
    "card": "#1d2026",
    "ink": "#e6e5e1",
    "soft": "#a2a6ad",
    "line": "#363b44",
    "series-0": "#5fb4ee",
    "series-1": "#f29b4b",
    "series-2": "#3fc9a4",
    "series-3": "#dd93c4",
    "good": "#4fd0ac",
    "bad": "#ff9a5c",
}
CARD, INK, SOFT, LINE = (LIGHT[name] for name in ("card", "ink", "soft", "line"))
FONT = 'system-ui, "Segoe UI", sans-serif'
RAMP = ("#6f4ea8", "#249c95", "#f4c54b")
"""Purple, teal, yellow: they differ in lightness too, so that colour-blind readers can tell them apart."""

MATPLOTLIB: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may hold dollar signs
    "font.family": "DejaVu Sans",
    "font.size": 12.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": SOFT,
    "grid.color": LINE,
    "grid.linewidth": 1,
    "text.color": INK,
    "lines.linewidth": 2,
    "lines.scale_dashes": False,
    "patch.linewidth": 0,
    "hatch.linewidth": 1,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    **{
        f"{axis}tick.{key}": value
        for axis in "xy"
        for key, value in {"color": SOFT, "major.size": 0, "major.pad": 6}.items()
    },
}
"""Settings of matplotlib; a point is a pixel of a page."""


class LineStyle(NamedTuple):
    """Colour and dashes (lengths of strokes and gaps in pixels) of a line; no dashes draw it solid."""

    colour: str
    dashes: tuple[float, ...] = ()


STYLES = tuple(LineStyle(LIGHT[f"series-{i}"], dashes) for i, dashes in enumerate([(), (6, 4), (2, 3), (9, 3, 2, 3)]))


def series_style(number: int) -> LineStyle:
    """The style of the series with this number; there are four, which repeat."""
    return STYLES[number % len(STYLES)]


def to_css_variables(text: str) -> str:
    """``text`` with each colour of the light theme as its CSS variable.

    >>> to_css_variables("fill: #0069ad")
    'fill: var(--series-0)'
    """
    names = {colour: name for name, colour in LIGHT.items()}

    def replace(found: re.Match[str]) -> str:
        name = names.get(found[0].lower())
        return f"var(--{name})" if name else found[0]

    return re.sub(r"#[0-9a-fA-F]{6}\b", replace, text)


def interpolate_ramp(count: int) -> list[str]:
    """``count`` colours in order, from purple over teal to yellow.

    >>> interpolate_ramp(3)
    ['#6f4ea8', '#249c95', '#f4c54b']
    """
    stops, colours = [_channels(colour) for colour in RAMP], []
    for i in range(count):
        position = 0.0 if count == 1 else i / (count - 1) * (len(stops) - 1)
        first = min(int(position), len(stops) - 2)
        mixed = (a + (b - a) * (position - first) for a, b in zip(stops[first], stops[first + 1], strict=True))
        colours.append("#" + "".join(f"{round(channel):02x}" for channel in mixed))
    return colours


def contrast_colour(colour: str) -> str:
    """Near-black or near-white, whichever reads better on ``colour``, written ``#rrggbb``."""
    red, green, blue = _channels(colour)
    return "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else "#fefefe"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
