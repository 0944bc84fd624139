"""Checks the built documentation: links and anchors lead somewhere, nothing is loaded from outside, tags are closed.

python tools/check_site.py site
"""

import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
OPTIONAL = {"p", "li", "dt", "dd", "option", "tr", "td", "th", "tbody", "thead", "tfoot", "colgroup"}
"""Elements whose end tag HTML lets one leave out."""
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "srcset", "link": "href"}


class Page(HTMLParser):
    """The ids, links and loaded files of a page, and what is wrong with its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.problems: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.problems += [f"<{tag}> is not closed" for tag in self._open if tag not in OPTIONAL]
        self.problems += [f"id {name!r} is there {count} times" for name, count in self.ids.items() if count > 1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids[str(values["id"])] += 1
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        elif values.get(LOADED.get(tag, "")) and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(str(values[LOADED[tag]]))
        if tag == "img" and "alt" not in values:
            self.problems.append(f"{values.get('src')} has no alt text")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        while self._open and self._open[-1] != tag and self._open[-1] in OPTIONAL:
            self._open.pop()
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.problems.append(f"</{tag}> closes {f'<{self._open[-1]}>' if self._open else 'nothing'}")


def check_site(site: Path) -> list[str]:
    """What is wrong, page by page; nothing if all is well."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    problems = [] if pages else [f"{site}: no pages; `make docs` builds them"]
    for path, page in pages.items():
        found = list(page.problems)
        found += [f"{url} is loaded from outside" for url in page.loaded if urlsplit(url).netloc]
        for url in {*page.links, *page.loaded}:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc or path.name == "404.html":  # whose links start at the root of a server
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if not target.is_file():
                found.append(f"{url}: there is no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{url}: the page has no such anchor")
        problems += [f"{path.relative_to(site)}: {problem}" for problem in sorted(found)]
    return problems


def main() -> None:
    problems = check_site(Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve())
    print("\n".join(problems) or "links, tags and files are in order")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
