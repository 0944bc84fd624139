"""What README, docs, tutorials, notebooks and docstrings show happens: their code runs, their commands parse."""

import ast
import doctest
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import pytest
import torch
from strategies import random_batch

from mnagt import MODELS, RunConfig, TrainConfig, load_dataset, train
from mnagt.attention.kernels import KERNELS, Hops, Kernel, Triplet
from mnagt.attention.mixers import MIXERS
from mnagt.cli import _parser, main
from mnagt.data.registry import DATASETS, EMBEDDED, Source
from mnagt.graphs.features import Features
from mnagt.models.registry import Entry
from mnagt.nn.readouts import READOUTS
from mnagt.registry import TASK_CHOICES
from mnagt.tasks import TASKS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import run_notebooks  # type: ignore[import-not-found]  # noqa: E402

USERS = ["engineer", "practitioner", "researcher"]
TINY = {"dim": 8, "depth": 1}
SHORTER = {r"epochs=\d+": "epochs=2", r"trials=\d+": "trials=2", '"NCI1"': '"MUTAG"'}


class Block(NamedTuple):
    kind: str
    """python or console; sh is shown and not run."""
    text: str

    def commands(self) -> list[str]:
        """The commands of a console or sh block that call mnagt, without the prompt and what they are piped into."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.kind != "python" else []
        lines = [line.removeprefix("$ ").split(" | ")[0] for line in lines if self.kind == "sh" or line[:2] == "$ "]
        return [line for line in lines if "mnagt" in shlex.split(line, comments=True)]


def blocks_of(path: Path) -> list[Block]:
    """The code of a Markdown page or of a notebook, in order."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return [Block("python", "".join(cell["source"])) for cell in cells_of(path) if cell["cell_type"] == "code"]
    return [Block(*found) for found in re.findall(r"```(python|console|sh)\n(.*?)```", text, re.DOTALL)]


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def words_of(command: str) -> list[str]:
    """What follows ``mnagt`` in a command."""
    words = shlex.split(command, comments=True)
    return words[words.index("mnagt") + 1 :]


def run_python(blocks: list[Block], where: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the Python among ``blocks`` one after the other; the names that they leave."""
    for block in (block for block in blocks if block.kind == "python"):
        source = block.text
        if source.startswith('"') and not source.startswith('"""'):  # an entry of a registry
            source = f"entry = {{{source}}}"
        exec(compile(source, where, "exec"), names)
    return names


def run_command(command: str, *more: str) -> None:
    """Run a command; an export in a process of its own, since what is traced has no shapes to check."""
    words = [*words_of(command), *more]
    if words[0] == "export":
        subprocess.run([sys.executable, "-m", "mnagt", *words], check=True)
    else:
        assert main(words) == 0, command


def replace_all(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        text = re.sub(old, new, text)
    return text


README = blocks_of(ROOT / "README.md")
DOCS = {path.stem: blocks_of(path) for path in sorted((ROOT / "docs").glob("*.md"))}
TUTORIALS = {name: blocks_of(ROOT / "docs" / "tutorials" / f"{name}.md") for name in USERS}
NOTEBOOKS = {name: ROOT / "notebooks" / f"{name}.ipynb" for name in USERS}
COMMANDS = [
    (page, command)
    for page, blocks in {"README": README, **DOCS, **TUTORIALS}.items()
    for block in blocks
    for command in block.commands()
]


def test_there_is_a_tutorial_and_a_notebook_for_each_kind_of_user():
    assert sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md")) == USERS
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == USERS
    assert all(f"tutorials/{name}.md" in (ROOT / "mkdocs.yml").read_text() for name in USERS)


@pytest.fixture
def _own_tables() -> Iterator[None]:
    """What a page registers is gone after the test."""
    tables: list[dict[str, Any]] = [MODELS, DATASETS, KERNELS, MIXERS, READOUTS, TASKS]
    before, choices = [dict(table) for table in tables], list(TASK_CHOICES)
    yield
    TASK_CHOICES[:] = choices
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=str)
@pytest.mark.usefixtures("_own_tables")
def test_commands_are_understood(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--plugin" in command:  # the module that the page shows
        Path("my_models.py").write_text([block for block in DOCS["extending"] if block.kind == "python"][-1].text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setitem(sys.modules, "my_models", None)  # gone after the test
        del sys.modules["my_models"]
        importlib.import_module("my_models")
    Path("one.toml").write_text('dataset = "NCI1"\n')
    Path("mine.toml").write_text('dataset = "NCI1"\n[models.gin]\n[models.gin-wide]\nmodel = "gin"\n')
    words = words_of(command)
    _, unknown = _parser(words).parse_known_args(words)
    assert not unknown


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    for block in README:
        run_python([Block(block.kind, replace_all(block.text, SHORTER))], "README.md", {})
    for command in (command for block in README if block.kind == "console" for command in block.commands()):
        is_new = words_of(command)[0] == "train" and "--resume" not in command
        run_command(command, *(["--epochs", "2"] if is_new else []))


def test_the_readme_is_short_and_has_the_figures_of_the_stored_report():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    report = (ROOT / "results" / "quickstart" / "report.html").read_text(encoding="utf-8")
    scores = re.findall(r"\d+\.\d ± \d+\.\d", text[text.index("$ make quickstart") : text.index("$ make test")])
    assert len(scores) == 5
    assert all(f"{score} %" in report for score in scores)


def test_make_commands_of_the_readme_are_targets_of_the_makefile():
    targets = {word for block in README for word in re.findall(r"^\$ make (\S+)", block.text, re.MULTILINE)}
    assert {"quickstart", "test"} <= targets
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


QUICKER = {
    "train": ("--epochs", "2", "--dim", "8", "--depth", "1"),
    "compare": ("--epochs", "2", "--seeds", "1", "--curve-seeds", "0"),
}


@pytest.mark.parametrize("name", ["researcher", "practitioner", pytest.param("engineer", marks=pytest.mark.slow)])
def test_tutorials_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TUTORIALS[name]
    for block in TUTORIALS[name]:
        run_python([block], name, {})
        for command in block.commands():
            run_command(command, *QUICKER.get(words_of(command)[0], ()))


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the files and models that the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")

    def save_run(name: str, dataset: str, **settings: Any) -> None:
        config = RunConfig(dataset, "mnagt", TINY, TrainConfig(epochs=1, batch_size=32, **settings), device="cpu")
        train(config, folder / "runs" / name, dataset=load_dataset(dataset))

    smiles = ["C" * (n + 1) + end for n in range(15) for end in ("O", "N")]
    (folder / "my.csv").write_text("smiles,active\n" + "".join(f"{s},{int(s.endswith('N'))}\n" for s in smiles))
    graphs = [
        {"nodes": n, "edges": [[i, i + 1] for i in range(n - 1)], "y": "odd" if n % 2 else "even", "family": n % 5}
        for n in range(2, 42)
    ]
    (folder / "my.jsonl").write_text("".join(json.dumps(graph) + "\n" for graph in graphs))
    raw = folder / "pyg" / "MUTAG" / "raw"  # where TUDataset of PyTorch Geometric looks for it
    with zipfile.ZipFile(EMBEDDED / "MUTAG.zip") as archive:
        archive.extractall(raw)
    (raw / "MUTAG").rename(raw.with_name("files"))
    raw.rmdir()
    raw.with_name("files").rename(raw)
    save_run("mutag", "MUTAG")
    save_run("mine", str(folder / "my.csv"))
    save_run("paths", str(folder / "my.jsonl"))
    for seed, name in enumerate("abc"):
        save_run(name, "MUTAG", seed=seed)
    (folder / "runs" / "nci1").mkdir()
    (folder / "runs" / "nci1" / "not-finite.json").write_text(json.dumps({"dataset": "MUTAG", "graphs": [3, 14]}))
    return folder


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
        if any(block.kind == "python" for block in blocks)
    ],
)
@pytest.mark.usefixtures("_own_tables")
def test_docs_run(page, desk, monkeypatch):
    monkeypatch.chdir(desk)
    if page == "export":
        run_command("mnagt export runs/mutag --out mine.onnx")
    blocks = [Block(kind, replace_all(text, SHORTER)) for kind, text in DOCS[page]]
    names = run_python(blocks, f"{page}.md", dict(NAMES_AT_HAND.get(page, {})))
    if page == "extending":
        assert_learns(names["sat"](names["SatConfig"](dim=16), Features(), 2))


NOT_RUN = {
    "mnagt serve": "does not end",
    "torchrun": "several processes",
    "--engine ray": "a cluster",
    "--storage postgresql": "a database",
    "--plugin": "a module of the reader's own",
    "MNAGT_PLUGINS": "a module of the reader's own",
    "FOLDER": "a folder of the reader's own",
    "path/to": "a folder of the reader's own",
    "mymodule.py": "a model of code, which takes minutes",
    "runs/names": "a model of code, which takes minutes",
    "trials nci1": "recipes as long as they are",
    "reproduce table1": "experiments as long as they are",
}
"""Commands that this test leaves out; they are parsed all the same, and tests of these parts run them."""
FEWER = {
    **QUICKER,
    "tune": ("--epochs", "2", "--trials", "2", "--jobs", "1"),
    "trials": ("--seeds", "1"),
}
SLOW_PAGES = ("explain", "export", "index", "molecules", "training", "uncertainty")
RECIPE = 'dataset = "MUTAG"\n[train]\nepochs = 2\n'


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW_PAGES else [])
        for page, blocks in DOCS.items()
        if any(block.commands() for block in blocks)
    ],
)
def test_commands_of_the_docs_run(page, desk, tmp_path, monkeypatch):
    """One after the other, in a folder with the files of a reader."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(desk, ".", dirs_exist_ok=True, ignore=shutil.ignore_patterns("pyg", "nci1"))
    shutil.copytree("runs/mutag", "model")
    shutil.copytree(ROOT / "examples", ".", dirs_exist_ok=True)
    Path("my.csv").write_text(Path("amines.csv").read_text().replace("amine", "active", 1))
    for name in ("new.jsonl", "my-graphs.jsonl"):
        shutil.copy("my.jsonl", name)
    Path("one.toml").write_text(RECIPE)
    Path("variants.toml").write_text(RECIPE)
    Path("mine.toml").write_text(f'{RECIPE}[models.gin]\n[models.gin-wide]\nmodel = "gin"\n')
    commands = [command for block in DOCS[page] for command in block.commands()]
    for command in (each for each in commands if not any(words in each for words in NOT_RUN)):
        words = words_of(command)
        if "--out" in words:  # of the reader, or of a test of the same page
            shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
        more = () if "--resume" in words else FEWER.get(words[0], ())
        run_command(replace_all(command, {"NCI1": "MUTAG"}), *(more[:2] if "--recipe" in words else more))


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


def printed_by(notebook: dict[str, Any]) -> str:
    """What cells print, numbers to two digits: the last ones depend on the processor."""
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", ())]
    text = "".join("".join(each["text"]) for each in outputs if each["output_type"] == "stream")
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
def test_the_notebook_of_the_engineer_runs(tmp_path):
    """In a process of its own, where no shapes are checked: an export has none."""
    source = "\n".join(block.text for block in blocks_of(NOTEBOOKS["engineer"]))
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True)


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
