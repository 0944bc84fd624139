"""tools/prose.py finds long sentences and phrases that are not used, and nothing of them in the pages."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import prose  # type: ignore[import-not-found]  # noqa: E402


@pytest.mark.parametrize("page", prose.list_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_no_long_sentence(page):
    assert prose.check_page(page) == []


def test_code_tables_and_links_are_no_sentences():
    text = "One `a b c` here. Two\nlines: [three](four.md)!\n\n```sh\nfive six.\n```\n\n| a | b |\n\n- item\n- other\n"
    assert prose.list_sentences(text) == ["One CODE here.", "Two lines:", "three!", "- item", "- other"]
    assert prose.list_sentences("**Bold.** Two.") == ["**Bold.", "Two."]


def test_changelog_and_notebooks_are_read():
    assert {"CHANGELOG.md", "SECURITY.md", "engineer.ipynb"} <= {page.name for page in prose.list_pages()}
    newest = prose.read_page(ROOT / "CHANGELOG.md")
    assert newest.startswith("# Changelog")
    assert newest.count("\n## [") == 1 + ("\n## [Unreleased]" in newest)
    assert "import" not in prose.read_page(ROOT / "notebooks" / "engineer.ipynb")


def test_a_long_sentence_and_a_boast_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("word " * 25 + "end.\n\nThis is state-of-the-art.\n")
    boast, long = prose.check_page(tmp_path / "page.md")
    assert boast.startswith("page.md:3: 'state-of-the-art'")
    assert "26 words" in long
