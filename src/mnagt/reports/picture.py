"""Pictures drawn with matplotlib: as SVG inside a page, or as SVG and PNG files."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from mnagt.files import write_atomically, write_text
from mnagt.reports.theme import CARD, FONT, interpolate_ramp, to_css_variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
TOOLTIP = "tooltip:"
"""Start of a link that stands for a tooltip: matplotlib can attach links to what it draws, but no tooltips."""
STYLE = Path(__file__).with_name("style.mplstyle")
LAYER = "layer-"
"""Start of a group id that a page shows or hides by its layer."""


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a line with ``dashes``, or a dot."""

    name: str
    colour: str
    dashes: tuple[float, ...] = ()
    is_line: bool = True


def kernel_keys(count: int) -> list[Key]:
    """Legend of ``count`` attention kernels: kernel k compares nodes by what is within k hops of them.

    >>> [key.name for key in kernel_keys(3)]
    ['itself', 'within 1 hop', 'within 2 hops']
    """
    names = ["itself", "within 1 hop", *(f"within {k} hops" for k in range(2, count))][:count]
    return [Key(name, colour, is_line=False) for name, colour in zip(names, interpolate_ramp(count), strict=True)]


@dataclass(frozen=True)
class Picture:
    """A drawing on one pair of axes.

    Args:
        caption: What it shows; read to those who cannot see it.
        size: Width and height in pixels.
        draw: Draws on the axes that it is given.
        keys: The legend.
        css_class: Class of the ``<svg>`` element in a page.
    """

    caption: str
    size: tuple[float, float]
    draw: "Callable[[Axes], None]"
    keys: Sequence[Key] = ()
    css_class: str = ""

    def to_svg(self) -> Markup:
        """The drawing as an ``<svg>`` element whose colours are CSS variables; without caption and legend."""
        with _figure(self.size, self.caption) as figure:
            self.draw(figure.subplots())
            root = _read_svg(figure)
        attributes = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": self.caption}
        root.attrib = {**attributes, "class": self.css_class} if self.css_class else attributes
        return Markup(to_css_variables(ElementTree.tostring(root, encoding="unicode")))

    __html__ = to_svg
    """How a template writes it."""

    def save(self, stem: Path, formats: Sequence[str] = ("svg", "png")) -> None:
        """Write ``stem.svg`` and ``stem.png`` in light colours, with the caption above and the legend below."""
        from matplotlib.lines import Line2D

        width, height = self.size
        title, legend_lines = wrap(self.caption, int(width / 8.5)), -(-len(self.keys) // 2)
        with _figure((width, height + 6 + 18 * len(title) + 19 * legend_lines), self.caption) as figure:
            self.draw(figure.subplots())
            figure.suptitle("\n".join(title), x=0.02, ha="left", fontsize=12.5, fontweight="bold")
            if self.keys:
                handles = [
                    Line2D([], [], color=k.colour, linestyle=(0, k.dashes) if k.dashes else "-") for k in self.keys
                ]
                figure.legend(handles, [key.name for key in self.keys], loc="outside lower left", ncols=2)
            root = _read_svg(figure, facecolor=CARD)
            root.set("xmlns", SVG)
            if "svg" in formats:
                write_text(stem.with_suffix(".svg"), ElementTree.tostring(root, encoding="unicode") + "\n")
            if "png" in formats:
                with write_atomically(stem.with_suffix(".png")) as scratch:
                    figure.savefig(scratch, format="png", dpi=144, facecolor=CARD)


@contextmanager
def _figure(size: tuple[float, float], salt: str) -> "Iterator[Figure]":
    """An empty figure in the theme's style; ``salt`` keeps the ids of pictures on one page apart."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": salt}, fname=STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser's fonts have more letters
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # very long names
        yield Figure((size[0] / 72, size[1] / 72), dpi=72, layout="constrained")


def _read_svg(figure: "Figure", **options: Any) -> ElementTree.Element:
    """The figure's SVG without what only matplotlib needs: metadata, clipping, ids, and links that hold tooltips."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, **options)
    root = ElementTree.fromstring(file.getvalue())
    for element in list(root.iter()):
        for child in list(element):
            name = child.tag.split("}")[1]
            if name in ("metadata", "style", "clipPath") or (name == "defs" and not len(child)):
                element.remove(child)
    for element in list(root.iter()):
        _clean(element)
    for side in ("width", "height"):
        root.set(side, f"{float(root.get(side, '0pt')[:-2]):g}")
    return root


def _clean(element: ElementTree.Element) -> None:
    element.tag, element.tail = element.tag.split("}")[1], None
    if element.tag != "text":
        element.text = None
    for name in ("clip-path", "target", "version"):
        element.attrib.pop(name, None)
    if link := element.attrib.pop(XLINK, ""):
        if link.startswith(TOOLTIP):
            element.tag = "g"
            title = ElementTree.Element("title")
            title.text = link.removeprefix(TOOLTIP)
            element.insert(0, title)
        else:
            element.set("href", link)
    if element.tag == "g" and (group := element.attrib.pop("id", "")).startswith(LAYER):
        element.set("class", f"layer {group}")
    for name in {"d", "x", "y", "transform"} & set(element.attrib):
        value = " ".join(element.attrib[name].split())
        element.set(name, re.sub(r"(\.\d\d)\d+", r"\1", value))
    if element.tag == "text":
        style = re.sub(r"font-family: [^;]*", f"font-family: {FONT}".replace('"', "'"), element.get("style", ""))
        element.set("style", style)
