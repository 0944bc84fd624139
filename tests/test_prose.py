"""The code that README, docs, tutorials, notebooks and docstrings show runs; test_commands.py has their commands."""

import ast
import doctest
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from pages import (
    DOCS,
    NOTEBOOKS,
    QUICKER,
    README,
    ROOT,
    TUTORIALS,
    USERS,
    Block,
    blocks_of,
    fill_desk,
    replace_all,
    run_command,
    run_python,
    words_of,
)
from strategies import random_batch

from mnagt import MODELS
from mnagt.attention.kernels import Hops, Kernel, Triplet
from mnagt.data.registry import Source
from mnagt.graphs.features import Features
from mnagt.models.registry import Entry

sys.path.insert(0, str(ROOT / "tools"))

import run_notebooks  # type: ignore[import-not-found]

SHORTER = {r"epochs=\d+": "epochs=2", r"trials=\d+": "trials=2", '"NCI1"': '"MUTAG"'}


def test_there_is_a_tutorial_and_a_notebook_for_each_kind_of_user():
    assert sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md")) == USERS
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == USERS
    assert all(f"tutorials/{name}.md" in (ROOT / "mkdocs.yml").read_text() for name in USERS)


def test_pages_count_the_models():
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/index.md", "docs/compared.md")]
    others = len(MODELS) - 2  # than mnagt and mnagt-paper
    assert {int(n) for page in pages for n in re.findall(r"(\d+) other models", page)} == {others}
    assert {
        int(n) for n in re.findall(r"(\d+) on the same splits", pages[2]) + re.findall(r"one model of (\d+)", pages[2])
    } == {len(MODELS)}
    assert "scikit-learn fits three" in pages[2]
    assert sum(entry.is_fitted_by_sklearn for entry in MODELS.values()) == 3


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    for block in README:
        run_python([Block(block.kind, replace_all(block.text, SHORTER))], "README.md", {})
    for command in (command for block in README for command in block.typed()):
        is_new = words_of(command)[0] == "train" and "--resume" not in command
        run_command(command, *(["--epochs", "2"] if is_new else []))


def test_the_readme_is_short_and_has_the_figures_of_the_stored_report():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    report = (ROOT / "results" / "quickstart" / "report.html").read_text(encoding="utf-8")
    scores = re.findall(r"\d+\.\d ± \d+\.\d", text[text.index("$ make quickstart") : text.index("$ make test")])
    assert len(scores) == 5
    assert all(f"{score} %" in report for score in scores)


def test_the_tutorial_for_chemists_has_the_stored_outputs():
    stored = (ROOT / "results" / "gallery" / "tutorial.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for block in TUTORIALS["practitioner"] if block.kind == "console" for line in block.text.splitlines()]
    assert len(lines) > 20
    assert [line for line in lines if line not in (*stored, "...")] == []


@pytest.mark.parametrize("name", ["researcher", "practitioner", pytest.param("engineer", marks=pytest.mark.slow)])
def test_tutorials_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TUTORIALS[name]
    shutil.copytree(ROOT / "examples", "examples")
    for block in TUTORIALS[name]:
        run_python([block], name, {})
        for command in block.typed():  # those of sh: test_commands.py
            run_command(command, *QUICKER.get(words_of(command)[0], ()))


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return fill_desk(tmp_path_factory.mktemp("desk"))


NAMES_AT_HAND: dict[str, dict[str, Any]] = {
    "scale": {"configs": [], "my_parts": lambda: [([nx.path_graph(3), nx.cycle_graph(3)], ["path", "ring"])] * 3},
    "extending": {each.__name__: each for each in (Entry, Source, Kernel, Hops, Triplet)},
}
"""What the reader of a page has already."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page == "export" else [])
        for page, blocks in DOCS.items()
        if any(block.kind == "python" for block in blocks) and page != "serving"  # with a service: test_commands.py
    ],
)
@pytest.mark.usefixtures("_own_tables")
def test_docs_run(page, desk, monkeypatch):
    monkeypatch.chdir(desk)
    if page == "export":
        run_command("mnagt export runs/mutag --out mine.onnx")
        run_command("mnagt export runs/mutag --format compiled --out fast.pt2")
        run_command("mnagt export runs/mine --quantize int8 --out small.onnx")
    blocks = [Block(kind, replace_all(text, SHORTER)) for kind, text in DOCS[page]]
    names = run_python(blocks, f"{page}.md", dict(NAMES_AT_HAND.get(page, {})))
    if page == "extending":
        assert_learns(names["sat"](names["SatConfig"](dim=16), Features(), 2))


def assert_learns(model: torch.nn.Module) -> None:
    """The loss on three graphs falls to less than half within 20 steps."""
    torch.manual_seed(0)
    graph, target = random_batch([5, 1, 7], 0.4, seed=0), torch.tensor([0, 1, 1])
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(graph), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("name", USERS)
def test_notebooks_keep_the_outputs_of_their_code_and_import_what_there_is(name):
    notebook = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))
    assert notebook["metadata"]["mnagt"]["code"] == run_notebooks.digest_code(notebook), "run make notebooks"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell["outputs"]) for cell in code) > len(code) / 2
    assert "/tmp/" not in json.dumps([cell["outputs"] for cell in code])
    for block in blocks_of(NOTEBOOKS[name]):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(ast.unparse(node), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["practitioner", "researcher"])
def test_outputs_of_notebooks_are_what_they_print_now(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setitem(MODELS, "difference", MODELS["gin"])  # the researcher's own; gone afterwards
    kept = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))
    assert printed_by(run_notebooks.run_notebook(kept)) == printed_by(kept), "run make notebooks"


@pytest.mark.slow
def test_outputs_of_the_notebook_of_the_engineer_are_what_it_prints_now(tmp_path):
    """In a process of its own, where no shapes are checked: an export has none."""
    copy = Path(shutil.copy(NOTEBOOKS["engineer"], tmp_path))
    kept, environment = json.loads(copy.read_text(encoding="utf-8")), {**os.environ, "MPLBACKEND": "agg"}
    subprocess.run(
        [sys.executable, str(run_notebooks.__file__), "--here", copy], cwd=tmp_path, env=environment, check=True
    )
    now = json.loads(copy.read_text(encoding="utf-8"))
    assert printed_by(now) == printed_by(kept), "run make notebooks"
    assert "image/png" in now["cells"][-1]["outputs"][0]["data"]


def printed_by(notebook: dict[str, Any]) -> str:
    """What cells print, without times, and numbers to two digits: the last ones depend on the processor."""
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", ())]
    text = "".join("".join(each["text"]) for each in outputs if each["output_type"] == "stream")
    text = re.sub(r"\S+(?= ms| graphs a second| apart)", "...", text)
    return re.sub(r"\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.2f}", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["practitioner", "researcher"])
def test_notebooks_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(MODELS, "difference", MODELS["gin"])  # the researcher's own; gone afterwards
    blocks = [
        Block("python", re.sub("EPOCHS = ", "EPOCHS = 2 or ", block.text)) for block in blocks_of(NOTEBOOKS[name])
    ]
    run_python(blocks, name, {"__name__": "__main__"})


@pytest.mark.slow
def test_the_notebook_of_the_practitioner_finds_the_nitrogen_of_amines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_python(blocks_of(NOTEBOOKS["practitioner"]), "practitioner", {"__name__": "__main__"})
    assert names["run"].result.test["accuracy"] > 0.95
    for each in names["found"]:
        element = each.graph.node_labels[each.attribution.nodes.argmax(), 0]
        assert each.prediction["prediction"] == "yes"
        assert element == 6, each.smiles  # nitrogen: atomic numbers from 0


MODULES_WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES_WITH_EXAMPLES)
def test_examples_in_docstrings_run(module, desk, monkeypatch):
    monkeypatch.chdir(desk)
    torch.manual_seed(0)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=options)
    assert tried
    assert not failed
