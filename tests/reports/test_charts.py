"""Charts hold what they were given, in pages and as files."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from markup import Elements, is_self_contained, numbers

from mnagt.reports.charts import (
    Bar,
    Series,
    bar_chart,
    category_scale,
    confusion_matrix,
    dot_plot,
    line_chart,
    numeric_scale,
    parallel_coordinates,
    scatter_plot,
    stacked_bars,
)
from mnagt.reports.picture import Key, Picture
from mnagt.reports.theme import series_style

NASTY = '</svg><script>alert("1")</script> $x_1$ & 漢字'


def series(name: str = "gin", count: int = 7) -> Series:
    y = [1 / (1 + i) for i in range(count)]
    return Series(name, series_style(0), range(1, count + 1), y, [v - 0.1 for v in y], [v + 0.1 for v in y])


def titles(picture: Picture) -> list[str]:
    return re.findall(r"<title>([^<]*)</title>", picture.to_svg())


def every_chart(name: str) -> list[Picture]:
    scale = numeric_scale(name, [1, 3], 0, 5)
    return [
        line_chart(name, [series(name)], x_label=name, y_label=name, x_ticks=range(1, 8)),
        line_chart(name, [series(name)], x_label=name, y_label=name, is_log=True),
        dot_plot(name, [name] * 7, [series(name)], x_label=name, y_label=name),
        bar_chart(name, [Bar(name, 1.0, (name,), ring=2.0)], columns=[name], x_label=name),
        bar_chart(name, [Bar(name, None, note=name), Bar(name, 2.0, (name,))], columns=[name], is_log=True, floor=1.0),
        stacked_bars(name, [(name, [0.25, 0.75])], [Key(name, "#112233"), Key(name, "#eeddcc")]),
        confusion_matrix(name, [[1, 2], [0, 0]], [name, name], "#0069ad"),
        scatter_plot(name, scale, [0.5, 0.7], y_label=name, tips=[name] * 2, best=0, steps=[(0, 0.5), (1, 0.7)]),
        parallel_coordinates(name, [scale, scale], [name, name]),
    ]


@pytest.mark.parametrize("number", range(9))
def test_a_chart_is_whole_escaped_and_in_the_colours_of_the_page(number):
    picture, ordinary = every_chart(NASTY)[number].to_svg(), every_chart("plain")[number].to_svg()
    elements = Elements(picture)
    assert elements.found[0][1]["aria-label"] == NASTY
    assert {tag for tag, _ in elements.found} == {tag for tag, _ in Elements(ordinary).found}
    assert is_self_contained(picture)
    assert "var(--" in picture
    assert np.isfinite(numbers(picture)).all()
    assert not elements.all("path", style="fill: #000000"), "text is text"


def test_the_same_chart_is_drawn_the_same():
    assert every_chart("one")[0].to_svg() == every_chart("one")[0].to_svg()


@pytest.mark.parametrize("count", [0, 1, 2, 61])
def test_any_number_of_points_is_drawn(count):
    picture = line_chart("it", [series(count=count)], x_label="epoch", y_label="")
    assert np.isfinite(numbers(picture.to_svg())).all()
    assert len(titles(picture)) == (count == 1), "a single point gets a dot"


@pytest.mark.parametrize("values", [[0.5] * 3, [float("nan"), 1.0, 2.0], [-5e3, 0.0, 7e4]])
def test_any_values_are_drawn(values):
    flat = Series("gin", series_style(1), [1, 2, 3], values)
    Elements(line_chart("it", [flat], x_label="epoch", y_label="%").to_svg())


def test_dots_and_bars_have_tooltips():
    dots = dot_plot("it", ["1", "2"], [Series("gin", series_style(0), [0, 1], [50, 75])], x_label="fold", y_label="%")
    assert titles(dots) == ["fold 1, gin: 50", "fold 2, gin: 75"]
    bars = bar_chart("it", [Bar("sum", -1.5, error=0.5, ring=-2.12)], x_label="points")
    assert titles(bars) == ["sum: -1.5 ± 0.5", "sum, others: -2.12"]


def test_a_bar_without_a_value_says_why():
    bars = [Bar("ours", None, note="failed: no memory"), Bar("flex", 11.0, ("11",), is_hollow=True)]
    picture = bar_chart("it", bars, columns=["µs"], is_log=True, floor=5.0).to_svg()
    assert "failed: no memory" in picture
    assert picture.count("stroke-dasharray: 3,2") == 1


def test_scales_place_values_between_0_and_1():
    assert numeric_scale("dim", [8, 16], 0, 16).positions == [0.5, 1.0]
    scale = numeric_scale("lr", [1e-4, 1e-3, 1e-2], 1e-4, 1e-2, is_log=True)
    assert scale.positions == pytest.approx([0, 0.5, 1])
    assert [label for _, label in scale.ticks] == ["0.0001", "0.001", "0.01"]
    assert category_scale("norm", ["b"], ["a", "b"], str).positions == [0.75]
    assert numeric_scale("lr", [2e-3], 2e-3, 4e-3, is_log=True).ticks == [(0.0, "0.002"), (1.0, "0.004")]


def test_a_long_caption_of_a_file_is_broken_into_lines(tmp_path: Path):
    caption = "COLLAB: mnagt-paper with another mixer, less mnagt-paper with the adaptive one"
    bar_chart(caption, [Bar("sum", 1.0)], x_label="points").save(tmp_path / "it", formats=("svg",))
    lines = re.findall(r"<text[^>]*>([^<]*)<", (tmp_path / "it.svg").read_text(encoding="utf-8"))
    parts = [line for line in lines if line and line in caption]
    assert caption in " ".join(parts)
    assert max(map(len, lines)) < 50


def test_a_picture_is_saved_as_svg_and_png_in_light_colours(tmp_path: Path):
    every_chart("one")[0].save(tmp_path / "new" / "nci1-loss")
    text = (tmp_path / "new" / "nci1-loss.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(--" not in text
    assert text.count(">one<") >= 3, "caption and legend are in it"
    assert (tmp_path / "new" / "nci1-loss.png").read_bytes().startswith(b"\x89PNG")
