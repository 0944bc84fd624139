"""Colours and line styles of reports, in light and dark mode.

Pictures are drawn in the colours of `LIGHT`. In a page each of these is replaced by the CSS variable of the same name,
so that one picture serves both modes.
"""

import re
from typing import NamedTuple

import numpy as np

COLOURS = {
    "page": ("#fbfaf8", "#15171b"),
    "card": ("#ffffff", "#1d2026"),
    "ink": ("#23262b", "#e6e5e1"),
    "soft": ("#62676f", "#a2a6ad"),
    "line": ("#dddbd5", "#363b44"),
    "series-0": ("#0069ad", "#5fb4ee"),
    "series-1": ("#bd5400", "#f29b4b"),
    "series-2": ("#00866a", "#3fc9a4"),
    "series-3": ("#a8508a", "#dd93c4"),
    "good": ("#00725a", "#4fd0ac"),
    "bad": ("#b04300", "#ff9a5c"),
}
LIGHT, DARK = ({name: pair[mode] for name, pair in COLOURS.items()} for mode in (0, 1))
CARD, INK, SOFT, LINE = (LIGHT[name] for name in ("card", "ink", "soft", "line"))
FONT = 'system-ui, "Segoe UI", sans-serif'
RAMP = ("#6f4ea8", "#249c95", "#f4c54b")
"""Purple, teal, yellow: they differ in lightness too, so that colour-blind readers can tell them apart."""


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
    variables = {colour: f"var(--{name})" for name, colour in LIGHT.items()}
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda match: variables.get(match[0].lower(), match[0]), text)


def interpolate_ramp(count: int) -> list[str]:
    """``count`` colours in order, from purple over teal to yellow.

    >>> interpolate_ramp(3)
    ['#6f4ea8', '#249c95', '#f4c54b']
    """
    from matplotlib.colors import to_hex, to_rgb

    positions = np.linspace(0, len(RAMP) - 1, count)
    channels = [np.interp(positions, range(len(RAMP)), channel) for channel in zip(*map(to_rgb, RAMP), strict=True)]
    return [to_hex(colour) for colour in zip(*channels, strict=True)]


def contrast_colour(colour: str) -> str:
    """Near-black or near-white, whichever reads better on ``colour``."""
    from matplotlib.colors import to_rgb

    return "#111111" if np.dot(to_rgb(colour), (0.299, 0.587, 0.114)) > 0.49 else "#fefefe"
