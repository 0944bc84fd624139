"""The commands that README, docs and tutorials show are understood and run, on less data and for fewer epochs.

Most run in this process. Those that take several processes, a service or a cluster are slow tests.
"""

import importlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pages import (
    DOCS,
    INLINE,
    QUICKER,
    README,
    ROOT,
    SHOWN_IN_TEXT,
    TUTORIALS,
    Block,
    fill_desk,
    replace_all,
    run_command,
    run_python,
    words_of,
)

from mnagt.cli import _parser, main
from mnagt.data.registry import EMBEDDED
from mnagt.errors import InputError
from mnagt.experiments.tune_space import read_space
from mnagt.runs.recipes import read_recipes
from mnagt.serve.callers import read_callers

PAGES = {"README": README, **DOCS, **TUTORIALS}
COMMANDS = [(page, command) for page, blocks in PAGES.items() for block in blocks for command in block.commands()]
RECIPE = 'dataset = "MUTAG"\n[train]\nepochs = 2\n'
MY_MODELS = [block for block in DOCS["extending"] if block.kind == "python"][-1].text
"""The module that the page on plugins shows."""


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=str)
@pytest.mark.usefixtures("_own_tables")
def test_commands_are_understood(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--plugin" in command:
        Path("my_models.py").write_text(MY_MODELS)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setitem(sys.modules, "my_models", None)  # gone after the test
        del sys.modules["my_models"]
        importlib.import_module("my_models")
    Path("one.toml").write_text('dataset = "NCI1"\n')
    Path("mine.toml").write_text('dataset = "NCI1"\n[models.gin]\n[models.gin-wide]\nmodel = "gin"\n')
    words = words_of(command)
    _, unknown = _parser(words).parse_known_args(words)
    assert not unknown


@pytest.mark.parametrize("command", INLINE)
def test_commands_in_running_text_have_options_that_there_are(command):
    words = words_of(command.replace("NAME", "gin").replace("COMMAND", "train"))
    try:
        unknown = _parser(words).parse_known_args(words)[1]
    except SystemExit as end:  # --help
        unknown = [end.code] if end.code else []
    except InputError as error:
        is_short = re.search("arguments are required|expected one argument", str(error))
        unknown = [] if is_short else [str(error)]
    assert not unknown


def test_targets_of_make_and_extras_of_pip_exist():
    lines = [line for blocks in PAGES.values() for block in blocks for line in block.lines()]
    targets = {word for line in lines for word in re.findall(r"^make (\S+)", line)}
    extras = {
        word
        for line in lines
        for found in re.findall(r"^pip install '[^']*\[(.*)\]'", line)
        for word in found.split(",")
    }
    assert (
        {"quickstart", "test"}
        <= targets
        <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    )
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"serve", "export"} <= extras <= set(known)


READERS = {"training": read_recipes, "tuning": read_space, "serving": read_callers, "extending": Path.read_text}


@pytest.mark.parametrize(
    "page", [page for page, blocks in PAGES.items() if {"toml", "json"} & {b.kind for b in blocks}]
)
def test_toml_and_json_of_the_docs_are_read(page, tmp_path):
    for number, block in enumerate(PAGES[page]):
        if block.kind == "json":
            assert all(json.loads(line) for line in block.text.splitlines())
        elif block.kind == "toml":
            file = tmp_path / f"{number}.toml"
            file.write_text(re.sub(r'\[(\w+)\]\ntoken = "\.\.\."', r'[\1]\ntoken = "sixteen letters \1"', block.text))
            assert tomllib.loads(file.read_text())
            assert READERS[page](file)


SLOW = (
    *("mnagt serve", "torchrun", "--engine ray", "--storage", "curl ", "cp -r", "pytest "),
    *("trials nci1", "table1 --jobs", "table1 --quick", "--onnx", "export"),
)
"""Parts of commands that the quick test leaves to the slow one."""
SLOW_PAGES = ("explain", "index", "molecules", "training", "uncertainty")
SMALLER = {
    r"\bNCI1\b": "MUTAG",
    r"\bstdlib\b": "functions",
    r"\bFOLDER\b": "functions",
    r"PATH\.\.\.": str(ROOT / "src" / "mnagt" / "graphs"),
    r"--nproc-per-node 4": "--nproc-per-node 2",
    r"--jobs 12 --devices cuda": "--jobs 2",
    r"--device cuda": "--device cpu",
    r"postgresql\+psycopg://me@db/searches": "sqlite:///searches.db",  # needs no server
    r"-k mymodel": "-k 'gin and smallest'",
}
FEWER = {
    **QUICKER,
    "reproduce": ("--datasets", "MUTAG", "--seeds", "1"),
    "quickstart": ("--epochs", "1", "--folds", "3", "--jobs", "1"),
}


def read_exceptions() -> list[str]:
    """The commands that tests do not run, ``*`` for any text: the first column of the table in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Commands that tests do not run", 1)[1]
    rows = [line.split("|")[1] for line in text.split("\n## ")[0].splitlines() if line.startswith("| `")]
    return [code for row in rows for code in re.findall("`([^`]+)`", row)]


EXCEPTIONS = read_exceptions()


def find_exceptions(line: str) -> list[str]:
    """Those of the exceptions that are the command."""
    bare = line.split("  #")[0].strip()
    return [each for each in EXCEPTIONS if re.fullmatch(re.escape(each).replace(r"\*", ".*"), bare)]


def list_quick_lines(page: str) -> list[str]:
    """Commands of a page of the docs that run in this process, in seconds."""
    lines = [line for block in DOCS.get(page, []) for line in block.commands()]
    return [line for line in lines if not any(part in line for part in SLOW)]


def list_slow_lines(page: str) -> list[str]:
    """All commands of a page with one that takes processes, a service or a cluster."""
    lines = [line for block in PAGES[page] for line in block.lines()] if page != "README" else []
    return lines if any(part in line for line in lines for part in SLOW) else []


def test_every_command_of_readme_and_docs_runs_or_is_an_exception():
    left_out = {code for code in SHOWN_IN_TEXT if not COMMAND.match(code)}
    for page, blocks in PAGES.items():
        typed = [line for block in blocks for line in block.typed()] if page not in DOCS else []
        run = {*typed, *list_quick_lines(page), *list_slow_lines(page)}
        shown = {line for block in blocks for line in block.lines()}
        left_out |= (shown - run) | {line for line in shown if find_exceptions(line)}
    assert sorted(line for line in left_out if not find_exceptions(line)) == []
    assert {each for line in left_out for each in find_exceptions(line)} == set(EXCEPTIONS)
    texts = [path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]]
    assert sum(text.count("```py\n") for text in texts) == 1, "of the Hugging Face Hub; other Python runs"


def shorten(line: str) -> str:
    """The command on less data, for fewer epochs."""
    line = replace_all(line.split("  #")[0].split(" | ")[0], SMALLER)
    words = words_of(line) if "mnagt" in shlex.split(line) else []
    more = FEWER.get(next((word for word in words if word in FEWER), ""), ())
    if "--resume" in words or "--quick" in words:
        more = ()
    return shlex.join([*shlex.split(line), *(more[:2] if "--recipe" in words else more)]) if more else line


def fill_folder(folder: Path, desk: Path, page: str) -> None:
    """What a reader of the page has: tables, graphs, recipes, models, sources, a plugin, a model of code."""
    shutil.copytree(desk, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("pyg", "nci1"))
    shutil.copytree(folder / "runs" / "mutag", folder / "model")
    for place in (folder, folder / "examples"):
        shutil.copytree(ROOT / "examples", place, dirs_exist_ok=True)
    (folder / "my.csv").write_text((folder / "amines.csv").read_text().replace("amine", "active", 1))
    shutil.copy(folder / "my.csv", folder / "large.csv")
    header, *rows = (folder / "my.csv").read_text().splitlines(keepends=True)
    for number, part in enumerate(("train", "valid", "test")):
        (folder / f"{part}.csv").write_text("".join([header, *rows[number::3]]))
    for name in ("new.jsonl", "my-graphs.jsonl"):
        shutil.copy(folder / "my.jsonl", folder / name)
    for name in ("one.toml", "variants.toml"):
        (folder / name).write_text(RECIPE)
    (folder / "mine.toml").write_text(f'{RECIPE}[models.gin]\n[models.gin-wide]\nmodel = "gin"\n')
    (folder / "my_models.py").write_text(MY_MODELS)
    for name in ("file.py", "mymodule.py"):
        shutil.copy(ROOT / "src" / "mnagt" / "graphs" / "batch.py", folder / name)
    target = folder / "path" / "to" / "my-graphs"
    with zipfile.ZipFile(EMBEDDED / "MUTAG.zip") as archive:
        archive.extractall(target.parent)
    (target.parent / "MUTAG").rename(target)
    for file in target.glob("MUTAG*"):
        file.rename(file.with_name(file.name.replace("MUTAG", "my-graphs")))
    for name in ("models/solubility/1", "models/solubility/2", "models/toxicity/1", "runs/new"):
        shutil.copytree(folder / "runs" / "mine", folder / name)
    if page == "extending":  # numbers
        text = (folder / "my.jsonl").read_text()
        (folder / "my.jsonl").write_text(text.replace('"odd"', "1.5").replace('"even"', "0.5"))
    if page in ("molecules", "uncertainty"):
        add_numbers(folder)
    if page == "serving":
        write_chains(folder / "elements.jsonl")
        run_command(f"mnagt train elements.jsonl {' '.join(FEWER['train'])} --out runs/elements")
    if page in ("code", "explain", "serving"):
        run_command(f"mnagt data code {ROOT / 'src' / 'mnagt' / 'graphs'} --out functions")
        run_command(f"mnagt train functions {' '.join(FEWER['train'])} --out runs/code")


def add_numbers(folder: Path) -> None:
    """Columns of numbers for ``my.csv``, a table of descriptors, and one with a length for each bond."""
    from rdkit.Chem import MolFromSmiles

    header, *rows = (folder / "my.csv").read_text().splitlines()
    smiles = [row.split(",")[0] for row in rows]
    numbers = [f"{row},{len(row) / 10},{len(row)},{n % 7}" for n, row in enumerate(rows)]
    (folder / "my.csv").write_text("\n".join([f"{header},logP,y,ph", *numbers, ""]))
    described = dict.fromkeys([*smiles, *(folder / "new.csv").read_text().split()[1:]])
    (folder / "own.csv").write_text(
        "\n".join(["smiles,logd", *(f"{each},{len(each) / 3:.2f}" for each in described), ""])
    )
    lengths = [f'{each},"{[1.5] * MolFromSmiles(each).GetNumBonds()}"' for each in smiles]
    (folder / "lengths.csv").write_text("\n".join(["smiles,length", *lengths, ""]))


def write_chains(path: Path) -> None:
    """Paths of carbons that end in an oxygen or a nitrogen, with names of elements as their only column."""
    chains = [
        {"nodes": [{"element": each} for each in "C" * n + end], "edges": [[i, i + 1] for i in range(n)], "y": end}
        for n in range(1, 16)
        for end in "ON"
    ]
    path.write_text("".join(f"{json.dumps(chain)}\n" for chain in chains))


def remove_output(words: list[str]) -> None:
    """What ``--out`` names may be there, of the reader or of a test of the same page."""
    if "--out" in words and "--resume" not in words:
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return fill_desk(tmp_path_factory.mktemp("desk"))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW_PAGES else [])
        for page in DOCS
        if list_quick_lines(page)
    ],
)
@pytest.mark.usefixtures("_own_tables")
def test_commands_of_the_docs_run(page, desk, tmp_path, monkeypatch):
    """One after the other, in a folder with the files of a reader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    fill_folder(tmp_path, desk, page)
    for line in map(shorten, list_quick_lines(page)):
        for name, value in re.findall(r"^(MNAGT_\w+)=(\S+) ", line):
            monkeypatch.setenv(name, value)
        remove_output(words_of(line))
        run_command(line)


# --- commands in running text ---


PLACEHOLDERS = {
    "FOLDER": "runs/mine",
    "TABLE|DATA|ogbg-molesol": "my.csv",
    "RECIPE": "one.toml",
    "NAME": "gin",
    "COMMAND": "train",
    "runs/esol ogbg-molfreesolv": "runs/mutag MUTAG",
    r"\bENZYMES\b": "MUTAG",
    r" \.\.\.$": " MUTAG",
}
"""What stands in a command for something of the reader's own, or for more data."""
COMMAND = re.compile(r"(\w+=\S+ )*mnagt ")
LASTING = ("compare", "export", "quickstart", "reproduce", "serve", "train", "trials")
"""Commands that the quick test leaves to the slow one."""


def list_whole_commands(*, is_quick: bool) -> list[str]:
    """Commands of mnagt in running text that have all their arguments, as they run; others only name a command."""
    found = [shorten(replace_all(code, PLACEHOLDERS)) for code in SHOWN_IN_TEXT if COMMAND.match(code)]
    chosen = [line for line in found if (words_of(line)[0] not in LASTING or "--help" in line) == is_quick]
    return list(dict.fromkeys(line for line in chosen if is_whole(words_of(line))))


def is_whole(words: list[str]) -> bool:
    if "--help" in words:
        return True
    try:
        args = _parser(words).parse_known_args(words)[0]
    except InputError:
        return False
    has_data = any(getattr(args, name, None) for name in ("dataset", "resume", "recipe"))
    return has_data or words[0] not in ("train", "compare", "tune")


def run_in_text(line: str) -> None:
    """Run a command of running text; ``--help`` ends by an exit."""
    if "--help" in line:
        with pytest.raises(SystemExit, match=r"^0$"):
            main(words_of(line))
    else:
        run_command(line)


@pytest.mark.usefixtures("_own_tables")
def test_quick_commands_in_running_text_run(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill_folder(tmp_path, desk, "")
    lines = list_whole_commands(is_quick=True)
    assert {words_of(line)[0] for line in lines} >= {"calibrate", "datasets", "evaluate", "info", "models", "monitor"}
    for line in lines:
        run_in_text(line)


@pytest.mark.slow
@pytest.mark.parametrize("line", list_whole_commands(is_quick=False))
@pytest.mark.usefixtures("_own_tables")
def test_lasting_commands_in_running_text_run(line, desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill_folder(tmp_path, desk, "code" if "functions" in line else "")
    shrink_recipes(tmp_path / "recipes")
    monkeypatch.setattr("mnagt.runs.recipes._shipped_file", lambda name: tmp_path / "recipes" / f"{name.lower()}.toml")
    monkeypatch.setattr("webbrowser.open", lambda address: address.startswith("file:"))
    if "runs/five" in line:
        run_command("mnagt train my.csv --model gin --dim 8 --epochs 1 --ensemble 2 --out runs/five")
    if "serve" in line:
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
        with serve(line) as address:
            assert httpx.get(address).status_code == 200
    else:
        run_in_text(line)


# --- what takes processes, a service or a cluster ---


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def in_shell(line: str) -> list[str]:
    """A command of this Python's packages, for bash."""
    names = {"mnagt": "mnagt", "torchrun": "torch.distributed.run", "pytest": "pytest"}
    functions = "".join(f'{name}() {{ {sys.executable} -m {module} "$@"; }}; ' for name, module in names.items())
    return ["bash", "-euc", functions + line]


@contextmanager
def serve(line: str) -> Iterator[str]:
    """The address of a service that the command starts; it ends by Ctrl-C."""
    port = find_port()
    command = line.replace("0.0.0.0", "127.0.0.1")  # not for other machines
    words = in_shell(f"{command} --port {port} --reload-seconds 1")
    with subprocess.Popen(words, start_new_session=True) as service:
        try:
            address, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
            while service.poll() is None and time.monotonic() < end:
                try:
                    assert httpx.get(f"{address}/readyz").status_code == 200
                    break
                except httpx.TransportError:
                    time.sleep(0.2)
            assert service.poll() is None, line
            yield address
        finally:
            subprocess.run(["kill", "-INT", "--", f"-{service.pid}"], check=False)
            service.wait(60)


class Shell:
    """Runs the lines of a page; services stay until the page ends, clusters too."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.services = stack, list[str]()

    def run(self, line: str) -> None:
        remove_output(shlex.split(line))
        if "mnagt serve" in line:
            self.services.append(self.stack.enter_context(serve(line)))
        elif line.startswith("curl"):
            address = self.services[0].removeprefix("http://")
            answer = subprocess.run(
                ["bash", "-c", line.replace("127.0.0.1:8000", address)], check=True, capture_output=True, text=True
            )
            assert "predictions" in json.loads(answer.stdout), answer.stdout
        elif line.startswith("cp -r"):
            subprocess.run(["bash", "-euc", line], check=True)
            self.wait_for_version("3")
        elif "--nnodes 2" in line:  # two machines in one
            line = line.replace("head:29500", f"127.0.0.1:{find_port()}")
            both = [self.stack.enter_context(subprocess.Popen(in_shell(line))) for _ in range(2)]
            assert [each.wait(900) for each in both] == [0, 0]
        elif line.startswith("pytest"):
            subprocess.run(in_shell(line), check=True, cwd=ROOT)
        elif line.startswith("mnagt ") and "--plugin" not in line:
            run_command(line.replace("head:6379", self.start_ray()) if "head:6379" in line else line)
        else:
            subprocess.run(in_shell(line), check=True)

    def with_address(self, block: Block) -> Block:
        """The code, for the first of the services."""
        address = self.services[0] if self.services else ""
        return Block(block.kind, block.text.replace("http://127.0.0.1:8000", address))

    def wait_for_version(self, version: str) -> None:
        """Until the last service has loaded it."""
        models = ""
        for _ in range(100):
            models = httpx.get(f"{self.services[-1]}/models").text
            if f'"{version}"' in models:
                return
            time.sleep(0.2)
        pytest.fail(f"version {version} is not served: {models}")

    def start_ray(self) -> str:
        """The address of a cluster on this machine, as ``ray start`` makes one."""
        cluster_utils = pytest.importorskip("ray.cluster_utils")
        cluster = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
        )
        self.stack.callback(cluster.shutdown)
        return cluster.address


def send_requests(address: str) -> None:
    """Send each request that the page on the service shows to a model of its kind; compare the response it shows."""
    bodies = [json.loads(block.text) for block in DOCS["serving"] if block.kind == "json"]
    for field, model in {"graphs": "runs/elements", "code": "runs/code"}.items():
        with serve(f"mnagt serve {model}") as other:
            assert [predict_over_http(other, body) for body in bodies if field in body]
    assert [predict_over_http(address, body) for body in bodies if "smiles" in body]
    (shown,) = (body["predictions"] for body in bodies if "predictions" in body)
    found = predict_over_http(address, {"smiles": ["CCO", "C("]})
    assert ["error" in each for each in found] == ["error" in each for each in shown]


def predict_over_http(address: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return httpx.post(f"{address}/predict", json=body).json()["predictions"]


def shrink_recipes(folder: Path) -> None:
    """Recipes of the package, for one epoch on MUTAG."""
    folder.mkdir()
    for source in (ROOT / "recipes").glob("*.toml"):
        text = replace_all(source.read_text(), {r"epochs = \d+": "epochs = 1", '"NCI1"': '"MUTAG"'})
        (folder / source.name).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if list_slow_lines(page)])
@pytest.mark.usefixtures("_own_tables")
def test_every_command_of_a_page_runs(page, desk, tmp_path, monkeypatch):
    """All lines of the page, those of the quick test too."""
    monkeypatch.chdir(tmp_path)
    fill_folder(tmp_path, desk, page)
    shrink_recipes(tmp_path / "recipes")
    monkeypatch.setattr("mnagt.runs.recipes._shipped_file", lambda name: tmp_path / "recipes" / f"{name.lower()}.toml")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(tmp_path)]))
    with ExitStack() as stack:
        shell = Shell(stack)
        for block in PAGES[page]:
            if block.kind == "python" and page in (*TUTORIALS, "serving"):
                run_python([shell.with_address(block)], page, {})
            for line in block.lines():
                if not find_exceptions(line):
                    shell.run(shorten(line))
        if page == "serving":
            send_requests(shell.services[0])
