"""Every part of a page is rendered, escaped and whole."""

import re
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
from markup import Elements, is_self_contained
from markupsafe import Markup

from mnagt.reports.page import heat_map, html
from mnagt.reports.picture import Key

NASTY = '</p></style><script>alert("1")</script>'


def every_part(text: str) -> list[Markup]:
    row = [text, html.mark(text, "best"), html.interval(text, 0.5, 0.0, 1.0, 0.1, ring=0.7), text]
    nodes = [(text, 1, 0.5, "#0069ad", 0.3, [[0.25, 0.75]])]
    return [
        html.title(text),
        html.paragraph(text, "lead"),
        html.code(text),
        html.tiles([(text, text, text)]),
        html.notice([text], [text]),
        html.table([text, text, (text, "sketch"), text], [row], ["ours"]),
        html.grid([html.figure(Markup("<svg></svg>"), text, note=text)]),
        html.legend([Key(text, "#0069ad", (6, 4)), Key(text, "#0069ad", is_line=False)]),
        html.layer_choice(3, [html.card(text, [heat_map(text, np.eye(3))], text)]),
        html.tree(nodes, ["#111111", "#222222"]),
        html.section(text, [html.details(text, [html.heading(text)]), html.layers([html.paragraph(text)])]),
    ]


def test_every_part_is_rendered_and_its_text_escaped():
    page = html.page(NASTY, every_part(NASTY), [NASTY], 3)
    elements, ordinary = Elements(page), Elements(html.page("xyz", every_part("xyz"), ["xyz"], 3))
    assert [tag for tag, _ in elements.found] == [tag for tag, _ in ordinary.found]
    assert elements.text.count(NASTY) == ordinary.text.count("xyz")
    assert is_self_contained(page)
    assert page.startswith("<!doctype html>")


@pytest.mark.parametrize("number", range(11))
def test_each_part_holds_its_text(number):
    assert "unusual" in Elements(every_part("unusual")[number]).text


def test_text_that_is_not_html_is_escaped_among_parts():
    assert "a &lt; b<p>c</p>" in html.section("it", ["a < b", html.paragraph("c")])


def test_text_between_backticks_is_code():
    assert html.paragraph("`a < b` and ``c``") == "<p><code>a &lt; b</code> and <code>c</code></p>"


def test_the_last_layer_is_chosen_and_each_has_its_rule():
    page = html.page("it", [html.layer_choice(2, [])], layers=2)
    choices = Elements(page).all("input")
    assert [choice["id"] for choice in choices] == ["layer-0", "layer-1"]
    assert ["checked" in choice for choice in choices] == [False, True]
    assert "#layer-1:checked ~ .chosen .layer-1" in page
    assert "#layer-2" not in page


def test_an_interval_stays_on_its_axis():
    line, whisker = Elements(html.interval("it", 0.5, 0.0, 1.0, deviation=3.0)).all("line")
    assert (line["x2"], whisker["x1"], whisker["x2"]) == ("150", "4", "146")


def test_a_part_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match="paragraf"):
        html.paragraf("it")


def test_a_heat_map_reads_back():
    image = pytest.importorskip("PIL.Image")
    weights = np.random.default_rng(5).random((5, 7))
    (encoded,) = re.findall('base64,([^"]*)', heat_map("it", weights))
    pixels = np.asarray(image.open(BytesIO(b64decode(encoded))))
    np.testing.assert_array_equal(pixels[..., 3], np.round(255 * weights / weights.max()))
