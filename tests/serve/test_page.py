"""The page in a real browser, by keyboard alone, wide and narrow."""

import shutil
from collections.abc import Iterator

import pytest
from serve.conftest import make_untrained

from mnagt.graphs.molecules import MoleculeFormat
from mnagt.tasks import SingleLabel

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[(1100, 900), (360, 740)], ids=["wide", "phone"])
def page(request, browser, at) -> Iterator:
    """The page; no request may leave the service, and nothing may be complained of."""
    wide, high = request.param
    page = browser.new_page(viewport={"width": wide, "height": high})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(at) else trouble.append(request.url))
    page.goto(at)
    page.wait_for_selector("#kinds label")
    yield page
    page.close()
    assert not [line for line in trouble if "422" not in line]  # Chromium tells of refused requests


def test_several_models_can_be_chosen(browser, start, molecules, tmp_path):
    for name in ("one", "two"):
        molecules.save(tmp_path / "models" / name)
    page = browser.new_page()
    page.goto(start(tmp_path / "models"))
    page.wait_for_selector("#about a")
    page.click("text=two")
    page.wait_for_selector("#kinds label")
    page.focus("#text")
    page.keyboard.type("CO")
    with page.expect_response("**/models/two/explain") as answered:
        page.keyboard.press("Enter")
    assert answered.value.headers["x-model"] == "two/1"
    page.wait_for_selector("#picture circle")
    page.close()


def test_rows_of_several_molecules_and_reactions(browser, start, tmp_path):
    formats = {"pairs": MoleculeFormat(components=2), "reactions": MoleculeFormat(is_reaction=True)}
    for name, row_format in formats.items():
        make_untrained("mnagt", row_format.features, SingleLabel(("slow", "fast"))).save(tmp_path / "models" / name)
    page, address = browser.new_page(), start(tmp_path / "models")
    page.goto(f"{address}/?model=pairs")
    page.wait_for_selector("#kinds label")
    assert page.inner_text("#text-label") == "2 SMILES with commas between them, one row per line"
    page.fill("#text", "CCO, O\nc1ccccc1,CO")
    page.click("#go")
    page.wait_for_selector("#picture circle")
    assert len(colours(page)) == 4
    assert [cell.inner_text() for cell in page.query_selector_all("#predictions td.input")] == [
        "CCO, O",
        "c1ccccc1, CO",
    ]
    page.goto(f"{address}/?model=reactions")
    page.wait_for_selector("#kinds label")
    page.fill("#text", "[CH3:1][Br:2].[OH-:3]>>[CH3:1][OH:3].[Br-:2]")
    page.click("#go")
    page.wait_for_selector("#picture circle")
    assert len(colours(page)) == 3
    assert "Br" in page.inner_text("#picture")
    page.close()


def test_numbers_of_atoms_are_listed(browser, start, charges):
    page = browser.new_page()
    page.goto(start(charges))
    page.wait_for_selector("#kinds label")
    for text, sizes in (("CCO", [3]), ("CCO\nc1ccccc1\nC1CC\nO", [3, 6, 1])):
        page.fill("#text", text)
        page.click("#go")
        page.wait_for_selector(f"#predictions tbody tr:nth-child({len(text.split())}):last-child")
        cells = [
            row.query_selector_all("td")[1].inner_text() for row in page.query_selector_all("#predictions tbody tr")
        ]
        assert [len(cell.split(", ")) for cell in cells if "not a SMILES" not in cell] == sizes
        assert not page.query_selector_all("#predictions button")
        assert page.is_hidden("#result")
        assert page.is_hidden("#error")
    page.close()


def colours(page) -> list[str]:
    return [circle.get_attribute("fill") for circle in page.query_selector_all("#picture circle")]


def test_a_molecule_by_keyboard(page, tmp_path):
    page.focus("#text")
    page.keyboard.type("CC(=O)Oc1ccccc1C(=O)O")
    page.keyboard.press("Enter")
    page.wait_for_selector("#picture circle")
    assert page.inner_text("#prediction") in ("active", "inactive")
    assert len(page.query_selector_all("#probabilities meter")) == 2
    attributed = colours(page)
    assert len(attributed) == 13
    assert len(set(attributed)) > 3

    page.focus("#layer")
    page.keyboard.press("ArrowRight")
    assert page.is_checked("[value=alpha]")
    assert page.inner_text("#layer-value") == "2 of 2"
    second = colours(page)
    assert second != attributed
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#kernel-value") == "1 of 0 to 1"
    assert colours(page) != second
    shown = float(page.get_attribute("#picture circle", "data-value"))
    alpha = page.evaluate("state.response.kernel_weights[1][0][1]")
    assert shown == pytest.approx(alpha)

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_several_molecules_and_what_cannot_be_read(page):
    page.fill("#text", "CCO\nc1ccccc1")
    page.click("#go")
    page.wait_for_selector("#predictions tbody tr:nth-child(2)")
    page.click("#predictions tr:nth-child(2) button")
    sync_api.expect(page.locator("#picture circle")).to_have_count(6)
    page.fill("#text", "C1CC\nCCO\nc1ccccc1")
    page.click("#go")
    page.wait_for_selector("#predictions .unread")
    sync_api.expect(page.locator("#picture circle")).to_have_count(3)
    assert page.inner_text("#predictions .unread") == "not a SMILES"
    assert len(page.query_selector_all("#predictions tbody button")) == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.fill("#text", "not a molecule")
    page.click("#go")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error").startswith("smiles[0]: more than a SMILES")
    assert page.is_hidden("#result")


def test_a_predicted_column_called_error_is_no_error(browser, start, error_model):
    page = browser.new_page()
    page.goto(start(error_model))
    page.wait_for_selector("#kinds label")
    page.fill("#text", "CCO\nC1CC")
    page.click("#go")
    page.wait_for_selector("#predictions .unread")
    sync_api.expect(page.locator("#picture circle")).to_have_count(3)
    assert len(page.query_selector_all("#predictions tbody button")) == 1
    page.close()


def test_a_graph_as_json(page):
    page.check("[name=kind][value=graphs]")
    page.click("#example")
    page.keyboard.press("Control+Enter")
    sync_api.expect(page.locator("#picture circle")).to_have_count(6)


def test_the_token_is_asked_for(browser, start, molecules):
    page = browser.new_page()
    page.goto(start(molecules, token="secret"))
    page.wait_for_selector("#token-row:not([hidden])")
    page.fill("#token", "secret")
    page.press("#token", "Tab")
    page.wait_for_selector("#kinds label")
    assert page.is_hidden("#error")
    page.close()
