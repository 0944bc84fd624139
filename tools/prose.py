"""Checks the language of README and docs: phrases that are not used, and sentences of more than LIMIT words.

    python tools/prose.py [FILE ...]

Retired names are the matter of tests/test_vocabulary.py.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 40
SKIPPED = {"log.md", "glossary.md", "api.md"}
"""Records, tables and signatures."""
CONFUSED = {
    r"\bbest mean\b": "say at which epoch",
    r"\bthe answer is yes\b": "name the class",
    r"\b(questions|answers) (of|for) (the|a) model\b": "tasks and predictions",
    r"\bvery unique\b": "unique",
    r"\bstate[- ]of[- ]the[- ]art\b": "name the row that is highest",
    r"\b(blazing|lightning)[- ]fast\b": "give the ratio and the row",
}
"""Phrases that are not used, and what to say."""


def list_sentences(text: str) -> list[str]:
    """The sentences of a Markdown page, without code, tables, pictures, headings and HTML."""
    text = re.sub(r"^---\n.*?^---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"```.*?```|\$\$.*?\$\$|<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|<|!\[|    )", line)]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "CODE", each)) for each in paragraphs]
    return [s for each in words for s in re.split(r"(?<=[.!?:;])\s+", " ".join(each.split())) if s]


def check_page(path: Path) -> list[str]:
    """What is wrong with the language of a page."""
    text = path.read_text(encoding="utf-8")
    problems = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: {advice}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern, advice in CONFUSED.items()
        if (found := re.search(pattern, line, re.IGNORECASE))
    ]
    long = [sentence for sentence in list_sentences(text) if len(sentence.split()) > LIMIT]
    return problems + [f"{path.relative_to(ROOT)}: {len(each.split())} words: {each[:90]} ..." for each in long]


def list_pages() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if page.name not in SKIPPED]


def main() -> None:
    pages = [Path(word).resolve() for word in sys.argv[1:]] or list_pages()
    problems = [problem for page in pages for problem in check_page(page)]
    print("\n".join(problems) or "no sentence is too long")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
