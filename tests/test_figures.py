"""The tables of README and docs are those that the files under results/ give."""

import re
import sys
from pathlib import Path

import pytest

from mnagt.errors import InputError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import figure_tables  # type: ignore[import-not-found]  # noqa: E402
import figures  # type: ignore[import-not-found]  # noqa: E402


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert figures.fill(text) == text, "run make figures"


def test_a_figure_that_was_edited_by_hand_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: mixers -->\n<!-- end of figures -->\nafter\n")
    (written,) = figures.list_stale([page]).values()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    page.write_text(written)
    assert not figures.list_stale([page])
    page.write_text(re.sub(r"\d\d\.\d\s±", "99.9\u00a0±", written, count=1))
    assert figures.list_stale([page]) == {page: written}


@pytest.mark.parametrize("text", ["<!-- figures: mixers -->\n", "<!-- end of figures -->\n"])
def test_a_table_needs_both_of_its_comments(text):
    with pytest.raises(InputError, match="only one of its two comments"):
        figures.fill(text)


def test_every_table_is_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in figures.PAGES)
    assert {name for name, _ in figures.BLOCK.findall(pages)} == set(figure_tables.TABLES)


def test_scores_and_ratios_of_the_readme_stand_in_its_tables():
    prose = re.sub(r"```.*?```", "", figures.BLOCK.sub("", (ROOT / "README.md").read_text()), flags=re.DOTALL)
    assert not re.findall(r"\d+\.\d+\s±|\d[\d.]*x\b|\b\d\d\.\d %|\b0\.\d{3}\b", prose)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_rounding_is_done_once():
    assert figure_tables.format_scores([84.649, 84.651]) == "84.7\u00a0±\u00a00.0"
    assert figure_tables.format_scores([84.6461]) == "84.6"
    assert figure_tables.format_scores([]) == "–"
