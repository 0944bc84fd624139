"""The pictures of README and docs are those that tools/pictures.py draws."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import pictures  # type: ignore[import-not-found]  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_file_is_what_the_script_draws(name):
    kept = (pictures.OUT / f"{name}.svg").read_text(encoding="utf-8")
    assert pictures.PICTURES[name]().render() == kept, "run tools/pictures.py"
    assert "prefers-color-scheme:dark" in kept
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", kept)


def test_every_picture_is_on_a_page_with_words_for_those_who_do_not_see_it():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"!\[[^\]]+\]\((?:\.\./)?pictures/([\w-]+\.svg)\)", text))
    by_width = r'srcset="pictures/([\w-]+\.svg)"><img src="pictures/([\w-]+\.svg)" alt="[^"]+"'
    shown |= {name for pair in re.findall(by_width, text) for name in pair}
    assert shown == {f"{name}.svg" for name in pictures.PICTURES}
    assert {path.name for path in pictures.OUT.glob("*.svg")} == shown
    by_mode = r'pictures/([\w-]+)-dark\.png"><img src="[./\w]*pictures/([\w-]+)-light\.png"[^>]* alt="[^"]+"'
    on_phones = r'pictures/([\w-]+)-dark\.png"><source media="[^"]+" srcset="[./\w]*pictures/([\w-]+)-light\.png"'
    found = re.findall(by_mode, text) + re.findall(on_phones, text)
    assert all(dark == light for dark, light in found)
    taken = {f"{name}-{mode}.png" for name, _ in found for mode in ("dark", "light")}
    assert {path.name for path in pictures.OUT.glob("*.png")} == taken
