"""The page of benchmarks, made from the kept results: every figure is on it, and what was missed is said."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markup import Elements, is_self_contained, numbers

from mnagt.errors import InputError
from mnagt.files import read_json, write_json

pytest.importorskip("torch_geometric")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import attention_gpu  # type: ignore[import-not-found]
import epoch  # type: ignore[import-not-found]
import page  # type: ignore[import-not-found]

KEPT = {part.file: read_json(page.RESULTS / part.file) for part in page.PARTS}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the kept results and their page."""
    folder = tmp_path_factory.mktemp("results")
    for file, content in KEPT.items():
        write_json(folder / file, content)
    page.write_page(folder)
    return folder


def write_changed(folder: Path, file: str, **rows: dict[str, Any]) -> None:
    """Write this file alone, with other figures for the batches of these names."""
    write_json(folder / file, {**KEPT[file], "attention": {**KEPT[file]["attention"], **rows}, "sweep": {}})


def figures(content: Any) -> Iterator[float]:
    """What was measured, wherever it stands."""
    if isinstance(content, float):
        yield content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from figures(value) if key not in ("machine", "bytes_per_second") else ()


def test_every_figure_is_on_the_page(results):
    markup = (results / "benchmarks.html").read_text(encoding="utf-8")
    pieces = re.findall(r">([^<]+)<", markup)
    seen = {word for piece in pieces for word in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?", piece)}
    wanted = {page.format_figure(figure).removeprefix("-") for figure in figures(KEPT)}
    assert len(wanted) > 100
    assert wanted <= seen
    for content in KEPT.values():
        assert f"torch {content['machine']['torch']}" in markup


def test_page_and_pictures_are_whole_and_need_nothing_from_outside(results):
    markup = (results / "benchmarks.html").read_text(encoding="utf-8")
    elements = Elements(markup)
    assert is_self_contained(markup)
    drawn = sorted((results / "benchmarks").glob("*.svg"))
    assert len(drawn) == len(elements.all("figure")) == len(elements.all("svg", role="img"))
    for path in drawn:
        picture = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in picture
        assert all(number > -100 for number in numbers(picture))


def test_what_the_scripts_call_missed_is_missed_on_the_page():
    told = {
        "attention-gpu.json": lambda name, row: list(attention_gpu.list_misses(name, row)),
        "epoch-gpu.json": lambda name, row: epoch.list_misses(name, row, "cuda"),
        "epoch-cpu.json": lambda name, row: epoch.list_misses(name, row, "cpu"),
    }
    for part in page.PARTS:
        if part.file in told:
            rows = KEPT[part.file]["epochs" if part.script is epoch else "attention"]
            lines = [line for name, row in rows.items() for line in told[part.file](name, row)]
            assert sum(not target.is_reached for target in part.targets(KEPT[part.file])) == len(lines)


def test_missed_targets_are_said_at_the_top(tmp_path):
    slow = {
        **KEPT["attention-gpu.json"]["attention"]["COLLAB"],
        "floor, us": 10.0,
        "ours, us": 70.0,
        "padded, us": 35.0,
    }
    write_changed(tmp_path, "attention-gpu.json", COLLAB=slow)
    text = Elements(page.write_page(tmp_path).read_text(encoding="utf-8")).text
    header, _, _ = text.partition("wantedmeasured")
    assert "COLLAB, ours over the floor 7.00x, wanted ≤\N{NO-BREAK SPACE}4.5x" in header
    assert "COLLAB, padded over ours 0.50x, wanted ≥\N{NO-BREAK SPACE}9x" in header


def test_variants_without_a_figure_stay_with_the_reason(tmp_path):
    row = {"nodes": 7, "largest": 3, "floor, us": 5.0, "ours": "failed: <no memory>", "padded": "would need 80 GiB"}
    row |= {"flex": "timed eagerly: not to be recorded", "flex, us": 11.0, "flex, peak MiB": 2.0}
    write_changed(tmp_path, "attention-gpu.json", NCI1=row)
    elements = Elements(page.write_page(tmp_path).read_text(encoding="utf-8"))
    for words in ("ours: failed: <no memory>", "padded: would need 80 GiB", "flex: timed eagerly: not to be recorded"):
        assert words in elements.text
    assert "NCI1, padded over ours not measured" in elements.text
    assert (tmp_path / "benchmarks.html").read_text(encoding="utf-8").count("stroke-dasharray: 3,2") == 1
    picture = (tmp_path / "benchmarks" / "attention-gpu-nci1-time.svg").read_text(encoding="utf-8")
    assert "failed" in picture
    assert "would need 80 GiB" in picture


def test_files_that_are_not_there_are_named(tmp_path):
    write_json(tmp_path / "imports-cpu.json", KEPT["imports-cpu.json"])
    text = Elements(page.write_page(tmp_path).read_text(encoding="utf-8")).text
    assert "Not there, and left out: attention-gpu.json, epoch-gpu.json," in text
    assert "Training steps on a GPU" not in text


def test_a_folder_without_results_and_a_damaged_file_are_refused(tmp_path):
    with pytest.raises(InputError, match="none of the benchmarks' files is there"):
        page.write_page(tmp_path)
    (tmp_path / "models-cpu.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"models-cpu\.json: not JSON"):
        page.write_page(tmp_path)
