"""The documentation as it is built: links and tags, and what a browser makes of it at the width of a phone."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import check_site  # type: ignore[import-not-found]  # noqa: E402

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def test_what_is_wrong_with_a_page_is_found(tmp_path):
    (tmp_path / "index.html").write_text(
        '<p id="a">one</p><p id="a">two</p><div><a href="other.html">x</a><a href="#b">y</a>'
        '<script src="https://example.org/x.js"></script><img src="index.html">'
    )
    problems = "\n".join(check_site.check_site(tmp_path))
    for words in ("<div> is not closed", "'a' is there 2 times", "no such file", "no such anchor", "outside", "no alt"):
        assert words in problems
    (tmp_path / "index.html").write_text('<p id="a">one <a href="#a">two</a><p>three<br>')
    assert check_site.check_site(tmp_path) == []


def list_anchors(page: Path) -> set[str]:
    """What the headings of a Markdown page are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "name", ["README", "CHANGELOG", "CONTRIBUTING", "SECURITY", "examples/README", "results/README"]
)
def test_links_of_pages_outside_the_site_lead_to_files_and_headings(name):
    page = ROOT / f"{name}.md"
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", page.read_text(encoding="utf-8"))
    for link in ("".join(pair) for pair in links):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not link.startswith("http"):
            assert target.exists(), link
            assert not anchor or anchor in list_anchors(target), link


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def list_pages(site: Path) -> list[Path]:
    """All pages but the one for missing files, whose links start at the root of a server."""
    return [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]


@pytest.mark.slow
def test_links_anchors_and_tags_of_the_site(site):
    assert check_site.check_site(site) == []


FIND_FAINT = (ROOT / "tests" / "contrast.js").read_text().split("\n", 1)[1]


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways_loads_from_outside_or_has_faint_text(site, browser, scheme, width):
    """Faint is below the contrast of WCAG AA: text, equations and the words of charts."""
    requests, wide, faint = [], [], {}
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.on("request", lambda request: requests.append(request.url))
    for path in list_pages(site):
        page.goto(path.as_uri())
        page.wait_for_timeout(300)  # what moves in is faint at first
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wide.append(str(path.relative_to(site)))
        if found := page.evaluate(FIND_FAINT):
            faint[str(path.relative_to(site))] = found
    assert not wide
    assert [url for url in requests if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
    assert not faint


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_have_no_faint_text(browser, scheme):
    page = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme).new_page()
    pictures = [*(ROOT / "docs" / "pictures").glob("*.svg"), ROOT / "docs" / "architecture.svg"]
    for picture in pictures:
        page.set_content(f"<body>{picture.read_text(encoding='utf-8')}</body>")
        assert not page.evaluate(FIND_FAINT), picture.name
    page.set_content(
        "<body><p style='color: #888'>faint</p><svg><rect width='99' height='9'/><text y='9'>x</text></svg>"
    )
    assert len(page.evaluate(FIND_FAINT)) == 2


@pytest.mark.slow
def test_search_works_from_a_file(site, browser):
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").fill("calibration")
    page.wait_for_selector(".md-search-result__item", timeout=20_000)
    assert "calibrat" in page.locator(".md-search-result__list").inner_text().lower()


@pytest.mark.slow
def test_equations_are_shown_without_scripts(site, browser):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((site / "concepts.html").as_uri())
    box = page.locator("math[display=block]").first.bounding_box()
    assert box["width"] > 200
    assert box["height"] > 20


@pytest.mark.slow
def test_equations_have_the_font_of_the_site(site, browser):
    page = browser.new_context().new_page()
    page.goto((site / "concepts.html").as_uri())
    page.evaluate("document.fonts.ready.then(() => true)")
    assert page.evaluate("[...document.fonts].filter(font => font.family == 'Equations').map(font => font.status)") == [
        "loaded"
    ]


WIDE_TABLES = {"results.html"}
"""Pages with a table that scrolls by itself even on a wide screen: it has a column for each of ten data sets."""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "kind"), [(390, ".equation"), (1280, ".md-typeset__scrollwrap")])
def test_equations_fit_a_phone_and_tables_a_screen(site, browser, width, kind):
    """The API page has equations of docstrings, which scroll by themselves."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    cut = {}
    for path in [*site.glob("*.html"), *site.glob("tutorials/*.html")]:
        if path.name in {"404.html", "api.html", *WIDE_TABLES}:
            continue
        page.goto(path.as_uri())
        found = page.evaluate(
            "kind => [...document.querySelectorAll(kind)].filter(e => e.scrollWidth > e.clientWidth + 1).length", kind
        )
        cut |= {path.name: found} if found else {}
    assert not cut
