"""What the pages show runs: their Python in order, page by page; their commands are understood."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from mnagt import RunConfig, TrainConfig, load_dataset, train
from mnagt.attention.kernels import Hops, Kernel, Triplet
from mnagt.cli import _parser
from mnagt.data import Source
from mnagt.graphs.features import Features
from mnagt.models import Entry

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path.stem: path.read_text("utf-8") for path in [*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md")]}
PYTHON = {name: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for name, text in PAGES.items()}
COMMANDS = [
    (name, line.removeprefix("$ "))
    for name, text in sorted(PAGES.items())
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if "mnagt" in shlex.split(line, comments=True)
]
SHORTER = {r"epochs=\d+": "epochs=2", r"trials=\d+": "trials=2", '"NCI1"': '"MUTAG"'}
TINY = {"dim": 8, "depth": 1}
IN_TUTORIALS = {"researcher", "practitioner", "engineer"}  # run by test_tutorials.py, with their commands


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the files and models that the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")

    def trained(name: str, dataset: str, **settings: Any) -> None:
        config = RunConfig(dataset, "mnagt", TINY, TrainConfig(epochs=1, batch_size=32, **settings), device="cpu")
        train(config, folder / "runs" / name, dataset=load_dataset(dataset))

    smiles = ["C" * (n + 1) + end for n in range(15) for end in ("O", "N")]
    (folder / "my.csv").write_text("smiles,active\n" + "".join(f"{s},{int(s.endswith('N'))}\n" for s in smiles))
    graphs = [
        {"nodes": n, "edges": [[i, i + 1] for i in range(n - 1)], "y": "odd" if n % 2 else "even", "family": n % 5}
        for n in range(2, 42)
    ]
    (folder / "my.jsonl").write_text("".join(json.dumps(graph) + "\n" for graph in graphs))
    trained("mutag", "MUTAG")
    trained("mine", str(folder / "my.csv"))
    trained("paths", str(folder / "my.jsonl"))
    for seed, name in enumerate("abc"):
        trained(name, "MUTAG", seed=seed)
    (folder / "runs" / "nci1").mkdir()
    (folder / "runs" / "nci1" / "not-finite.json").write_text(json.dumps({"dataset": "MUTAG", "graphs": [3, 14]}))
    return folder


def names_of(page: str) -> dict[str, Any]:
    """What the reader of a page has at hand."""
    if page == "scale":
        return {"configs": [], "my_pieces": lambda: [([nx.path_graph(3), nx.cycle_graph(3)], ["path", "ring"])] * 3}
    if page == "extending":
        return {each.__name__: each for each in (Entry, Source, Kernel, Hops, Triplet)}
    return {}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "export" else [])
        for name, blocks in sorted(PYTHON.items())
        if blocks and name not in IN_TUTORIALS
    ],
)
def test_python_blocks_run(page, desk, monkeypatch):
    monkeypatch.chdir(desk)
    if page == "export":
        command = [sys.executable, "-m", "mnagt", "export", "runs/paths", "--out", "mine.onnx"]
        subprocess.run(command, check=True)  # in a process of its own: what is traced has no shapes to check
    names = names_of(page)
    for block in PYTHON[page]:
        for long, short in SHORTER.items():
            block = re.sub(long, short, block)
        if block.startswith('"') and not block.startswith('"""'):  # an entry of a registry
            block = f"entry = {{{block}}}"
        exec(compile(block, f"{page}.md", "exec"), names)
    if page == "extending":
        assert names["sat"](names["SatConfig"](dim=16), Features(), 2).parameter_count > 0


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=str)
def test_commands_are_understood(page, command):
    words = shlex.split(command, comments=True)
    words = words[words.index("mnagt") + 1 :]
    _, unknown = _parser(words).parse_known_args(words)
    assert not unknown
