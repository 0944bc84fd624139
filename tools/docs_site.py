"""Hooks of the documentation's build: equations become MathML, examples code, and reports go into the gallery.

Browsers show MathML by themselves: no script, no font, no request. Equations are LaTeX: `$$...$$` on lines of their own
and `$...$` in pages, `.. math::` and `:math:` in docstrings.
"""

import re
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "results"
GALLERY = {
    "quickstart": "quickstart/report.html",
    "explain": "gallery/explain.html",
    "compare": "gallery/compare.html",
    "monitor": "gallery/monitor.html",
    "table1": "table1/report.html",
    "baselines": "baselines/report.html",
    "ablation": "ablation/report.html",
    "hops": "hops/report.html",
    "heads": "heads/report.html",
    "layers": "layers/report.html",
    "benchmarks": "benchmarks.html",
}
"""Pages of the gallery, and the files under results/ that they are."""


def to_mathml(latex: str, *, is_block: bool) -> str:
    """MathML of an equation; a block stands on a line of its own."""
    return convert(" ".join(latex.split()), display="block" if is_block else "inline")


class InlineMath(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802
        return self.md.htmlStash.store(to_mathml(m[1], is_block=False)), m.start(0), m.end(0)


class BlockMath(BlockProcessor):
    """`$$...$$` or `.. math:: ...`, with an empty line before and after; lines after the first may be indented."""

    PATTERN = re.compile(r"^(?:\$\$(.*?)\$\$|\.\. math::(.*))\s*$", re.DOTALL)

    def test(self, parent: Element, block: str) -> bool:
        return self.PATTERN.match(block.strip()) is not None

    def run(self, parent: Element, blocks: list[str]) -> None:
        found = self.PATTERN.match(blocks.pop(0).strip())
        assert found is not None
        element = SubElement(parent, "div", {"class": "equation"})
        element.text = self.parser.md.htmlStash.store(to_mathml(found[1] or found[2], is_block=True))


class Doctests(Preprocessor):
    """Examples of docstrings, from ``>>>`` to the next empty line, become blocks of code."""

    def run(self, lines: list[str]) -> list[str]:
        result, is_fenced, is_example = [], False, False
        for line in lines:
            is_fenced ^= line.lstrip().startswith("```")
            if line.startswith(">>> ") and not is_fenced and not is_example:
                result += ["", "```pycon"]
                is_example = True
            elif is_example and not line.strip():
                result.append("```")
                is_example = False
            result.append(line)
        return [*result, "```"] if is_example else result


class DocstringExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.preprocessors.register(Doctests(md), "doctests", 40)
        md.parser.blockprocessors.register(BlockMath(md.parser), "block-math", 175)
        md.inlinePatterns.register(InlineMath(r":math:`([^`]+)`", md), "role-math", 195)
        md.inlinePatterns.register(
            InlineMath(r"(?<![\\$\w])\$(?!\s)([^$\n]+?)(?<!\s)\$(?![\w$])", md), "inline-math", 185
        )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.append(DocstringExtension())  # type: ignore[arg-type]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, path in GALLERY.items():
        content = (RESULTS / path).read_text(encoding="utf-8")
        files.append(File.generated(config, f"gallery/{name}.html", content=content))
    return files
