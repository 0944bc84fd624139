"""Takes the pictures of the quickstart's report in README, light and dark: the molecules of its last section.

    python tools/report_picture.py

Needs Chromium; the report is results/quickstart/report.html.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "results" / "quickstart" / "report.html"
OUT = ROOT / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MARGIN = 16


def main() -> None:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed; the pictures stay as they are")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(REPORT.as_uri())
            section = page.locator("section").last
            legend = section.locator(".legend").first.bounding_box()
            row = [card.bounding_box() for card in section.locator(".chosen .card:visible").all()[:3]]
            boxes = [box for box in (legend, *row) if box]
            left, top = boxes[0]["x"] - MARGIN, boxes[0]["y"] - MARGIN
            right, bottom = (
                max(box[p] + box[size] for box in boxes) + MARGIN for p, size in (("x", "width"), ("y", "height"))
            )
            clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
            page.screenshot(path=OUT / f"report-{scheme}.png", clip=clip, full_page=True)  # type: ignore[arg-type]
        browser.close()


if __name__ == "__main__":
    main()
