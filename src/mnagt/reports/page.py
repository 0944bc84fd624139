"""Pages of reports: one HTML file that needs nothing from outside.

A page is a Jinja2 template made of the macros of `template.html`, or put together by calls of the same macros:

    html.page("A title", [html.paragraph("Some text."), html.table(["model", "score"], [["gin", "0.8"]])])

Text is escaped; what a macro returns is HTML already.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup, escape

from mnagt.reports.theme import DARK, FONT, LIGHT, to_css_variables
from mnagt.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"css": to_css_variables, "code": _mark_code, "pie": _pie_gradient}
    environment.globals |= {"light": LIGHT, "dark": DARK, "font": Markup(FONT), "version": __version__}
    return environment


def render_page(template: str, **values: Any) -> str:
    """The page that a template of the package makes of ``values``; for example ``experiments/tune.html``."""
    return _environment().get_template(template).render(values).strip() + "\n"


class Macros:
    """The macros of `template.html` as functions that return HTML.

    >>> str(html.paragraph("a < `b`", "note"))
    '<p class="note">a &lt; <code>b</code></p>'
    """

    def __getattr__(self, name: str) -> Callable[..., Markup]:
        macro = getattr(_environment().get_template("reports/template.html").module, name)
        return lambda *values, **named: Markup(macro(*values, **named).strip())


html = Macros()


def heat_map(caption: str, weights: Float[np.ndarray, "rows columns"]) -> Markup:
    """A matrix with entries from 0 on as an image, the largest entry in full colour."""
    from matplotlib.image import imsave

    pixels = np.empty((*weights.shape, 4), np.uint8)
    pixels[..., :3] = [int(LIGHT["series-0"][i : i + 2], 16) for i in (1, 3, 5)]
    pixels[..., 3] = np.round(255 * weights / max(float(weights.max(initial=0)), 1e-12))
    file = BytesIO()
    imsave(file, pixels, format="png")
    source = f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
    return Markup('<img class="heat" alt="{}" src="{}">').format(caption, source)


def _mark_code(text: str) -> Markup:
    """Escaped text in which what is between backticks is code."""
    return Markup(re.sub(r"(`{1,2})(.+?)\1", r"<code>\2</code>", str(escape(text))))


def _pie_gradient(shares: Sequence[float], colours: Sequence[str]) -> Markup:
    """CSS that paints shares as the sectors of a pie."""
    ends = (100 * np.cumsum([0, *shares])).round(1).tolist()
    stops = [f"{c} {a}% {b}%" for c, a, b in zip(colours, ends[:-1], ends[1:], strict=True)]
    return Markup(f"conic-gradient({', '.join(stops)})")
