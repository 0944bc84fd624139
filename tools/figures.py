"""Writes the tables of README and docs from the files under results/: `make figures`.

    python tools/figures.py            # write
    python tools/figures.py --check    # exit with 1 if a page differs

A page holds a table between two comments, `<!-- figures: NAME -->` and `<!-- end of figures -->`. What stands between
them is replaced by the table `NAME` of `figure_tables.py`. Figures are rounded once, from what the files hold.
"""

import argparse
import re
import sys
from pathlib import Path

from figure_tables import TABLES

from mnagt.errors import InputError
from mnagt.files import write_text
from mnagt.registry import lookup

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "results" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"<!-- figures: ([\w-]+) -->\n(.*?)<!-- end of figures -->", re.DOTALL)


def fill(text: str) -> str:
    """``text`` with every table written anew."""
    unclosed = len(re.findall(r"<!-- figures: ", text)) - len(BLOCK.findall(text))
    if unclosed or text.count("<!-- end of figures -->") != len(BLOCK.findall(text)):
        raise InputError("a table has only one of its two comments; `tools/figures.py` shows how they look")

    def write(found: re.Match[str]) -> str:
        table = lookup(TABLES, found[1], "table")()
        gap = "\n" if found[2].startswith("\n") else ""  # README has no empty lines around its tables
        return f"<!-- figures: {found[1]} -->\n{gap}{table}\n{gap}<!-- end of figures -->"

    return BLOCK.sub(write, text)


def list_stale(pages: list[Path]) -> dict[Path, str]:
    """Pages whose tables differ from the files under results/, with the text that they should have."""
    filled = {}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        try:
            new = fill(text)
        except InputError as error:
            raise InputError(f"{page}: {error}") from None
        if new != text:
            filled[page] = new
    return filled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page differs")
    is_check = parser.parse_args().check
    stale = list_stale(PAGES)
    for page, text in stale.items():
        print(f"{page.relative_to(ROOT)} {'differs; run make figures' if is_check else 'written'}")
        if not is_check:
            write_text(page, text)
    sys.exit(1 if is_check and stale else 0)


if __name__ == "__main__":
    main()
