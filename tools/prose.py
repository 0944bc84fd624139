"""Checks the language of pages and notebooks: phrases that are not used, and sentences of more than LIMIT words.

    python tools/prose.py [FILE ...]

Of the changelog only the newest release is read. Retired names are the matter of tests/test_vocabulary.py.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 25
SKIPPED = {"log.md", "glossary.md", "api.md"}
"""Records, tables and signatures."""
CONFUSED = {
    r"\bbest mean\b": "say at which epoch",
    r"\bthe answer is yes\b": "name the class",
    r"\b(questions|answers) (of|for) (the|a) model\b": "tasks and predictions",
    r"\bvery unique\b": "unique",
    r"\bstate[- ]of[- ]the[- ]art\b": "name the row that is highest",
    r"\bgo(es)? by\b": "say what is used",
    r"\btold (from|apart)\b|\bto be told\b": "say that they are level, or how they differ",
    r"\b(blazing|lightning)[- ]fast\b": "give the ratio and the row",
}
"""Phrases that are not used, and what to say."""


def list_sentences(text: str) -> list[str]:
    """The sentences of a Markdown page, without code, tables, pictures, headings and HTML."""
    text = re.sub(r"^---\n.*?^---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"```.*?```|\$\$.*?\$\$|<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|<|\[?!\[|    )", line)]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "CODE", each)) for each in paragraphs]
    return [s for each in words for s in re.split(r"(?<=[.!?:;])(?:\*\*)?\s+", " ".join(each.split())) if s]


def read_page(path: Path) -> str:
    """The text of a page, the Markdown of a notebook, or what is not released and the newest release of a changelog."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        return "\n\n".join("".join(cell["source"]) for cell in cells)
    if path.name == "CHANGELOG.md":
        return "\n## [".join(text.split("\n## [")[: 3 if "\n## [Unreleased]" in text else 2])
    return text


def check_page(path: Path) -> list[str]:
    """What is wrong with the language of a page."""
    text = read_page(path)
    problems = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: {advice}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern, advice in CONFUSED.items()
        if (found := re.search(pattern, line, re.IGNORECASE))
    ]
    long = [sentence for sentence in list_sentences(text) if len(sentence.split()) > LIMIT]
    return problems + [f"{path.relative_to(ROOT)}: {len(each.split())} words: {each[:90]} ..." for each in long]


def list_pages() -> list[Path]:
    names = ("*.md", "docs/**/*.md", "examples/*.md", "results/*.md", "notebooks/*.ipynb")
    return [page for name in names for page in sorted(ROOT.glob(name)) if page.name not in SKIPPED]


def main() -> None:
    pages = [Path(word).resolve() for word in sys.argv[1:]] or list_pages()
    problems = [problem for page in pages for problem in check_page(page)]
    print("\n".join(problems) or "no sentence is too long")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
