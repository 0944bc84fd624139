"""A canvas for the pictures of the docs: SVG in the colours of the reports, light or dark by the reader's mode."""

from collections.abc import Sequence
from html import escape

from mnagt.reports.theme import DARK, FONT, LIGHT

MONO = 'ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace'
Point = tuple[float, float]


def format_number(value: float) -> str:
    """One digit after the point at most, so that rounding of the last bits changes nothing."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


class Canvas:
    """Shapes and words, in the order in which they are drawn. Colours are names of the theme, such as ``series-0``."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []
        self.rect(0.5, 0.5, width - 1, height - 1, fill="card", stroke="line", radius=10)

    def _add(self, tag: str, **attributes: float | str | None) -> None:
        words = [
            f'{name.replace("_", "-")}="{format_number(value) if isinstance(value, int | float) else value}"'
            for name, value in attributes.items()
            if value is not None
        ]
        self.parts.append(f"<{tag} {' '.join(words)}/>")

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str | None = None,
        stroke: str | None = None,
        radius: float = 0,
        opacity: float | None = None,
        dash: str | None = None,
    ) -> None:
        self._add(
            "rect", x=x, y=y, width=width, height=height, rx=radius or None, **_paint(fill, stroke, opacity, dash)
        )

    def circle(
        self,
        x: float,
        y: float,
        r: float,
        *,
        fill: str | None = None,
        stroke: str | None = None,
        opacity: float | None = None,
    ) -> None:
        self._add("circle", cx=x, cy=y, r=r, **_paint(fill, stroke, opacity, None))

    def line(
        self,
        *points: Point,
        colour: str = "soft",
        width: float = 1.5,
        dash: str | None = None,
        opacity: float | None = None,
    ) -> None:
        joined = " ".join(f"{format_number(x)},{format_number(y)}" for x, y in points)
        paint = _paint(None, colour, opacity, dash) | {"stroke-width": format_number(width)}
        self._add("polyline", points=joined, **paint)

    def arrow(self, start: Point, end: Point, colour: str = "soft", width: float = 1.5) -> None:
        """A line with a head; straight, across or down."""
        (x0, y0), (x1, y1) = start, end
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        self.line(start, (x1 - 5 * dx, y1 - 5 * dy), colour=colour, width=width)
        ends = [(x1, y1), *((x1 - 8 * dx - s * 4 * dy, y1 - 8 * dy + s * 4 * dx) for s in (1, -1))]
        self.polygon(ends, fill=colour)

    def polygon(self, points: Sequence[Point], *, fill: str, opacity: float | None = None) -> None:
        joined = " ".join(f"{format_number(x)},{format_number(y)}" for x, y in points)
        self._add("polygon", points=joined, **_paint(fill, None, opacity, None))

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        colour: str = "ink",
        size: float = 15,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        style = (' class="m"' if mono else "") + (' font-weight="600"' if bold else "")
        style += f' text-anchor="{anchor}"' if anchor != "start" else ""
        style += f' font-size="{format_number(size)}" fill="var(--{colour})"'
        self.parts.append(f'<text x="{format_number(x)}" y="{format_number(y)}"{style}>{escape(words)}</text>')

    def render(self) -> str:
        style = f"svg{{font-family:{FONT}}}.m{{font-family:{MONO}}}{style_modes()}"
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.title)}">'
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", f"<style>{style}</style>", *self.parts, "</svg>\n"]
        )


def style_modes() -> str:
    """The colours of the theme as CSS variables, by the reader's mode."""
    light, dark = ("".join(f"--{name}:{value};" for name, value in mode.items()) for mode in (LIGHT, DARK))
    return f"svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"


def _paint(fill: str | None, stroke: str | None, opacity: float | None, dash: str | None) -> dict[str, str | None]:
    return {
        "fill": f"var(--{fill})" if fill else "none",
        "stroke": f"var(--{stroke})" if stroke else None,
        "opacity": f"{opacity:.2f}" if opacity is not None else None,
        "stroke_dasharray": dash,
    }
