"""The look that reports share: one HTML file, light or dark as the reader likes it, and nothing from outside."""

from collections.abc import Iterable, Sequence

from mnagt.experiments.svg import Markup, element

LIGHT = {
    "page": "#fbfaf8",
    "card": "#fff",
    "ink": "#23262b",
    "soft": "#62676f",
    "line": "#dddbd5",
    "model-0": "#0069ad",
    "model-1": "#c95a00",
    "model-2": "#00866a",
    "model-3": "#a8508a",
    "good": "#00725a",
    "bad": "#b04300",
}
DARK = {
    "page": "#15171b",
    "card": "#1d2026",
    "ink": "#e6e5e1",
    "soft": "#a2a6ad",
    "line": "#363b44",
    "model-0": "#5fb4ee",
    "model-1": "#f29b4b",
    "model-2": "#3fc9a4",
    "model-3": "#dd93c4",
    "good": "#4fd0ac",
    "bad": "#ff9a5c",
}
FONT = 'system-ui, "Segoe UI", sans-serif'
PICTURES = """svg text { fill: var(--ink); } svg .axes text { fill: var(--soft); }
svg .count { font-size: 17px; font-weight: 600; }
"""


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink); font: 16px/1.6 {FONT}; }}
main, footer {{ max-width: 60rem; margin: 0 auto; padding: 0 1.25rem; }}
h1 {{ font-size: clamp(1.7rem, 5vw, 2.4rem); line-height: 1.2; margin: 3rem 0 .6rem; letter-spacing: -.02em; }}
h2 {{ font-size: 1.25rem; margin: 0 0 .4rem; }}
h3 {{ font-size: 1rem; margin: 0 0 .3rem; }}
section {{ margin: 3.2rem 0; }}
p {{ margin: .4rem 0 .9rem; max-width: 44rem; }}
.lead {{ font-size: 1.1rem; color: var(--soft); }}
.note, figcaption, footer, .published {{ color: var(--soft); }}
.note {{ font-size: .875rem; }}
.tiles, .pair, .cards {{ display: grid; gap: 1rem; }}
.tiles {{ grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); margin: 1.8rem 0 0; align-items: stretch; }}
.tile, figure, .card {{ background: var(--card); border: 1px solid var(--line); border-radius: 12px; margin: 0;
  padding: 1rem 1.1rem; min-width: 0; }}
.tile {{ display: flex; flex-direction: column; justify-content: space-between; }}
.tile b {{ font-size: 1.7rem; font-weight: 650; line-height: 1.25; letter-spacing: -.02em; }}
.tile.first {{ grid-column: span 2; }} .tile.first b {{ font-size: clamp(2.6rem, 9vw, 3.6rem); }}
.tile small {{ font-size: .55em; font-weight: 450; color: var(--soft); letter-spacing: 0; white-space: nowrap; }}
.pair {{ grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }}
.cards {{ grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); margin-top: 1rem; }}
figcaption {{ font-size: .875rem; margin-bottom: .5rem; }}
svg {{ display: block; width: 100%; height: auto; overflow: visible; font: 12.5px {FONT}; }}
{PICTURES}.wide {{ max-width: 38rem; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .875rem; margin: .5rem 0; }}
.legend span {{ display: inline-flex; align-items: center; gap: .45rem; }}
.legend svg {{ width: auto; flex: none; }}
table {{ border-collapse: collapse; width: 100%; margin: .8rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .45rem .6rem .45rem 0; border-bottom: 1px solid var(--line); font-weight: 400; }}
thead th {{ font-size: .8rem; color: var(--soft); }} .ours th {{ font-weight: 650; }}
td.number {{ white-space: nowrap; }} svg.interval {{ width: 9.4rem; }}
footer {{ font-size: .875rem; border-top: 1px solid var(--line); padding-top: 1rem; padding-bottom: 3rem; }}
@media (max-width: 40rem) {{ .sketch {{ display: none; }} section {{ margin: 2.4rem 0; }} }}
@media (max-width: 26rem) {{ .optional {{ display: none; }} }}
"""


def html_page(title: str, sections: Iterable[str], footer: Sequence[str], style: str = "") -> str:
    """The whole file; ``style`` adds rules of the report's own."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(STYLE + style)),
    )
    body = element("body", element("main", *sections), element("footer", " · ".join(footer)))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def tile(name: str, number: str, unit: str, *, is_first: bool = False) -> Markup:
    """A figure to be seen from afar."""
    figure = element("b", number, element("small", unit))
    return element("div", element("span", name), figure, class_="tile first" if is_first else "tile")


def colour(number: int) -> str:
    """The colour of the model with this number; there are four."""
    return f"var(--model-{number % 4})"


def dash(number: int) -> str | None:
    """How its line is drawn, for those who cannot tell the colours apart."""
    return (None, "6 4", "2 3", "9 3 2 3")[number % 4]
