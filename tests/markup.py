"""Reports as tests read them."""

import re
from html.parser import HTMLParser

VOID = {"input", "meta", "img"}
"""Elements that have no end tag."""


class Elements(HTMLParser):
    """Start tags in order, and the text; complains of an end tag that closes nothing."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(str(markup))
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes something else"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data.strip("\n")

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for name, attributes in self.found
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]


def numbers(markup: str) -> list[float]:
    """Every coordinate of a picture."""
    values = re.findall(r'\b(?:c?[xyr]|[xy][12]|width|height|d|viewBox)="([^"]*)"', markup)
    return [float(number) for value in values for number in re.split("[ ,MLQCz]+", value) if number]


def is_self_contained(page: str) -> bool:
    """Whether a page takes nothing from elsewhere: no scripts, and links to its own parts and data only."""
    sources = re.findall(r"""(?:src|href|url|@import)\s*[=(]?\s*["']?([^"')\s>]+)""", page)
    return all(s.startswith(("data:", "#")) for s in sources) and not re.search("https?://|<script|<link|<iframe", page)
