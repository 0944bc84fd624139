"""Names, options, help and docs use the field's words (docs/glossary.md); functions are verbs."""

import ast
import re
from pathlib import Path

import pytest

from mnagt.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mnagt"

IRREGULAR = {
    "told",
    "said",
    "met",
    "kept",
    "shown",
    "dealt",
    "found",
    "taken",
    "drawn",
    "grown",
    "seen",
    "heard",
    "built",
    "begun",
    "sent",
    "held",
    "left",
    "lost",
    "made",
    "meant",
    "thought",
    "known",
    "given",
    "spread",
    "hidden",
    "written",
    "broken",
    "chosen",
    "driven",
    "frozen",
}
"""Participles that do not end in -ed."""
VERBS = {"embed", "need", "feed", "seed", "exceed", "proceed"}
"""Words that end in -ed and are no participles."""
VAGUE = {"told", "said", "here", "there", "place", "own", "asked", "known", "meant", "heard", "seen", "truth", "belief"}
"""Names of variables that do not say what they hold."""
RETIRED = [
    r"by angles",
    r"\bsharpness\b",
    r"counted subtrees",
    r"rounds of Weisfeiler",
    r"\bballs?\b",
    r"\btwins\b",
    r"choose[_-]over",
    r"subtree[_-](rows|graphs|dropout)",
    r"forest[_-]share",
    r"\bUnasked\b",
    r"degree_root",
    r"learned by heart",
    r"\bhunt\b",
    r"\btries\b",
    r"\bmend(ed|s)?\b",
    r"likes? best",
    r"believable",
    r"\bwhisper\b",
    r"so-manieth",
    r"yes-or-no questions",
    r"what .{1,30} says? of",
    r"once_a_batch",
    r"\bquickest\b",
    r"\btempered\b",
    r"\bpieces\b",
    r"\bMOST_\w+",
    r"\bfilled up\b",
    r"how nodes share",
]
"""Words that the glossary and the style guide replace."""
SPEAK_OF_OLD_NAMES = {"migrations.py", "glossary.md", "log.md", "CHANGELOG.md"}
"""Files that must name what was renamed."""

BUDGET = {
    "experiments": 1,
    "explain": 1,
}
"""Places that are still to be renamed, by package; these numbers only go down."""


def find_retired(text: str) -> list[str]:
    return [pattern for pattern in RETIRED if re.search(pattern, text, re.IGNORECASE if pattern.islower() else 0)]


def is_participle(name: str) -> bool:
    name = name.strip("_")
    return name in IRREGULAR or (bool(re.fullmatch(r"[a-z]{3,}ed", name)) and name not in VERBS)


def find_places(path: Path) -> list[str]:
    """Lines with a retired word, functions named by a participle, variables that do not say what they hold."""
    text = path.read_text(encoding="utf-8")
    where = path.relative_to(ROOT)
    places = [
        f"{where}:{number} {pattern}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern in find_retired(line)
    ]
    for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
            if is_participle(node.name) and not is_property:
                places.append(f"{where}:{node.lineno} function {node.name}")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            places.append(f"{where}:{node.lineno} variable {node.id}")
    return places


def parts() -> dict[str, list[Path]]:
    """Files by package of ``mnagt``, and those of other folders by folder."""
    found: dict[str, list[Path]] = {}
    for folder, patterns in {
        "src/mnagt": ("*.py", "*.js", "*.html"),
        "benchmarks": ("*.py",),
        "docs": ("*.md",),
    }.items():
        for path in sorted(path for pattern in patterns for path in (ROOT / folder).rglob(pattern)):
            if path.name not in SPEAK_OF_OLD_NAMES:
                part = path.relative_to(ROOT / folder).parts[0] if folder == "src/mnagt" else folder
                found.setdefault(part, []).append(path)
    return found | {"README.md": [ROOT / "README.md"], "tools": sorted((ROOT / "tools").rglob("*.py"))}


@pytest.mark.parametrize("part", parts())
def test_names_and_texts_use_the_words_of_the_glossary(part):
    places = [place for path in parts()[part] for place in find_places(path)]
    assert len(places) <= BUDGET.get(part, 0), "\n".join(["say it in the field's words:", *places])


@pytest.mark.parametrize("command", [*COMMANDS, None])
def test_help_uses_the_words_of_the_glossary(command, capsys):
    with pytest.raises(SystemExit):
        main(["--help"] if command is None else [command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert not find_retired(text)


def test_participles_are_known():
    names = ["told", "_kept", "joined", "embed", "build_model", "balanced_split"]
    assert [name for name in names if is_participle(name)] == ["told", "_kept", "joined"]
    assert find_retired("attention by angles, choose_over") == [r"by angles", r"choose[_-]over"]
