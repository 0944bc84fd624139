"""Takes the screenshots of README and docs, light and dark: of pages under results/, and of the service's page.

    python tools/screenshots.py [MODEL]

Needs Chromium. MODEL is the folder of a model of molecules, which is served for its page; without it those stay.
"""

import io
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
OUT = ROOT / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MARGIN = 16
MOLECULE = "NCCc1ccccc1"
"""What is typed into the service's page."""
COLOURS = 128
"""More make files larger, and nothing clearer."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Chromium, or the end of the program where there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed; the pictures stay as they are")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def list_report_parts(page: Page) -> list[Locator]:
    """The quickstart's molecules: the legend and the first three drawings."""
    section = page.locator("section").last
    return [section.locator(".legend").first, *section.locator(".chosen .card:visible").all()[:3]]


def list_first_molecule(page: Page) -> list[Locator]:
    """The legend, and the first molecule of the quickstart: what fits a phone."""
    return list_report_parts(page)[:2]


def list_card(page: Page) -> list[Locator]:
    """The first explained molecule."""
    return [page.locator("article.card").first]


def list_top(page: Page) -> list[Locator]:
    """The title of a page, and its first section."""
    return [page.locator("h1"), page.locator("section").first]


WIDE, PHONE = 1000, 390
PAGES: dict[str, tuple[str, int, Callable[[Page], list[Locator]]]] = {
    "report": ("quickstart/report.html", WIDE, list_report_parts),
    "report-phone": ("quickstart/report.html", PHONE, list_first_molecule),
    "explain": ("gallery/explain.html", WIDE, list_card),
    "compare": ("gallery/compare.html", WIDE, list_top),
    "monitor": ("gallery/monitor.html", WIDE, list_top),
}
"""Pictures, their pages under results/, the width of the window, and what of the page they show."""
TALLEST = 1000


def save_picture(page: Page, parts: list[Locator], path: Path) -> None:
    """A PNG of the rectangle around parts of a page, at most ``TALLEST`` pixels high."""
    boxes = [box for part in parts if (box := part.bounding_box())]
    left, top = (max(min(box[side] for box in boxes) - MARGIN, 0) for side in ("x", "y"))
    right, bottom = (max(box[p] + box[s] for box in boxes) + MARGIN for p, s in (("x", "width"), ("y", "height")))
    width = min(right, page.evaluate("innerWidth")) - left
    clip = {"x": left, "y": top, "width": width, "height": min(bottom - top, TALLEST)}
    picture = Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True)))  # type: ignore[arg-type]
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


@contextmanager
def serve(model: Path) -> Iterator[str]:
    """The address of a service."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mnagt", "serve", str(model), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
        try:
            for _ in range(600):
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/"
        finally:
            service.terminate()


def main() -> None:
    with open_browser() as browser:

        def open_page(address: str, scheme: str, width: int) -> Page:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(address)
            return page

        for scheme in ("light", "dark"):
            for name, (path, width, choose) in PAGES.items():
                page = open_page((RESULTS / path).as_uri(), scheme, width)
                save_picture(page, choose(page), OUT / f"{name}-{scheme}.png")
        if len(sys.argv) > 1:
            with serve(Path(sys.argv[1])) as address:
                for scheme in ("light", "dark"):
                    for name, width in (("service", WIDE), ("service-phone", PHONE)):
                        page = open_page(address, scheme, width)
                        page.fill("#text", MOLECULE)
                        page.click("#go")
                        page.wait_for_selector("#picture circle")
                        save_picture(page, [page.locator("main")], OUT / f"{name}-{scheme}.png")


if __name__ == "__main__":
    main()
