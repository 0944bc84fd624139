"""Models, data sets and parts of one's own, from a module outside the package."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mnagt.errors import InputError
from mnagt.experiments.executors import _work_remotely
from mnagt.plugins import VARIABLE, find_plugin, load_plugins
from mnagt.registry import add_entry
from mnagt.version import __version__

PLUGIN = """
from dataclasses import dataclass
import networkx as nx
import mnagt.nn as mnn
from mnagt import from_graphs, register_dataset, register_kernel, register_mixer, register_model, register_readout
from mnagt.models.builders import make_model
from mnagt.models.config import ReadoutConfig

@register_kernel("difference")
class Difference(mnn.Kernel):
    def forward(self, hops):
        h = hops[0] - hops[1]
        return mnn.Triplet(h, h, hops[0])

@register_mixer("first")
class First(mnn.Mixer):
    def forward(self, z):
        return z[:, 0]

@register_readout("double")
class Double(mnn.SumReadout):
    def forward(self, x, graph):
        return 2 * super().forward(x, graph)

@dataclass(frozen=True)
class OwnConfig(ReadoutConfig):
    dim: int = 8
    depth: int = 1
    readout: str = "double"

@register_model("own", OwnConfig)
def own(config, features, outputs):
    \"\"\"Differences alone.\"\"\"
    layers = [mnn.MNAGTConv(config.dim, heads=2, kernels=["difference"], mixer=First(config.dim, 1))]
    return make_model(config, features, outputs, layers)

@register_dataset("rings", "rings, odd or even")
def rings():
    return from_graphs([nx.cycle_graph(n) for n in range(3, 43)], targets=[n % 2 for n in range(3, 43)])
"""


PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_models.py").write_text(PLUGIN)
    return tmp_path


def run(folder: Path, *words: str, plugins: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, VARIABLE: plugins, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    command = [sys.executable, "-W", "ignore", "-m", "mnagt", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_plugin_is_trained_saved_and_asked_for(folder):
    words = [
        "train",
        "rings",
        "--model",
        "own",
        "--readout",
        "double",
        "--epochs",
        "1",
        "--out",
        "run",
        "--device",
        "cpu",
    ]
    done = run(folder, "--plugin", "my_models", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "run" / "config.json").read_text())["plugins"] == ["my_models"]
    missing = run(folder, "evaluate", "run")
    assert missing.returncode == 2
    assert "no model 'own'" in missing.stderr
    assert "it needs the plugin my_models" in missing.stderr
    assert "--plugin my_models or MNAGT_PLUGINS=my_models" in missing.stderr
    for done in (
        run(folder, "evaluate", "run", "--plugin=my_models"),
        run(folder, "evaluate", "run", plugins="my_models"),
    ):
        assert done.returncode == 0, done.stderr
    done = run(folder, "--plugin", "nothing_here", "models")
    assert (done.returncode, "plugin nothing_here: there is no such module" in done.stderr) == (2, True)


def test_the_plugin_of_the_page_trains_a_baseline_with_its_loss_on_its_graphs(tmp_path):
    block = next(
        block for block in PAGE.read_text(encoding="utf-8").split("```python\n") if "register_kernel(" in block
    )
    (tmp_path / "my_models.py").write_text(block.partition("```")[0], encoding="utf-8")
    lines = [{"nodes": n, "edges": [[0, 1]], "y": 1.5 * n} for n in range(2, 42)]
    (tmp_path / "my.jsonl").write_text("\n".join(map(json.dumps, lines)))
    short = ["--epochs", "1", "--device", "cpu", "--out"]
    for words in (
        ["rings", "--model", "gcn-plus"],
        ["my.jsonl", "--target", "y", "--task", "huber", "--model", "contrast"],
    ):
        done = run(tmp_path, "--plugin", "my_models", "train", *words, *short, words[0][:4])
        assert done.returncode == 0, done.stderr
        config = json.loads((tmp_path / words[0][:4] / "config.json").read_text())
        assert config["task"]["kind"] == "huber"
        assert config["plugins"] == ["my_models"]
    refused = run(tmp_path, "train", "my.jsonl", "--target", "y", "--task", "huber", *short, "none")
    assert "task must be one of" in refused.stderr


@pytest.mark.parametrize("part", [["--readout", "double"], ["--model", "mnagt-paper", "--mixer", "first"]])
def test_a_model_of_the_package_names_the_plugin_of_a_part(part, folder):
    done = run(
        folder, "--plugin", "my_models", "train", "MUTAG", *part, "--epochs", "1", "--out", "run", "--device", "cpu"
    )
    assert done.returncode == 0, done.stderr
    missing = run(folder, "evaluate", "run")
    assert (missing.returncode, "it needs the plugin my_models" in missing.stderr) == (2, True)


def test_worker_processes_import_the_same_plugins(folder):
    (folder / "own.toml").write_text('dataset = "rings"\n[models.own]\n[train]\nepochs = 1\n')
    words = ["trials", "own.toml", "--seeds", "2", "--jobs", "2", "--ledger", "ledger.jsonl", "--device", "cpu"]
    done = run(folder, "--plugin", "my_models", *words)
    assert done.returncode == 0, done.stderr
    assert len((folder / "ledger.jsonl").read_text().splitlines()) == 2


def test_workers_of_a_cluster_are_told_the_plugins(folder, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setitem(sys.modules, "a_plugin", sys)
    assert _work_remotely(abs, -3, 1, __version__, ["a_plugin"]) == 3
    assert os.environ[VARIABLE] == "a_plugin"


def test_packages_declare_plugins_by_an_entry_point(folder):
    about = folder / "my_models-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-models\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[mnagt.plugins]\nmine = my_models\n")
    program = f"""
import sys; sys.path.insert(0, {str(folder)!r})
from mnagt import build_model, load_dataset
dataset = load_dataset("rings")
assert build_model("own", {{}}, dataset.features, 2).readout.__class__.__name__ == "Double"
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_are_not_taken_twice():
    table: dict[str, Callable] = {"sum": test_names_are_not_taken_twice}
    add_entry(table, "sum", test_names_are_not_taken_twice, "readout")
    with pytest.raises(InputError, match="there is a readout 'sum' already"):
        add_entry(table, "sum", run, "readout")


def test_plugins_are_what_is_not_of_the_package(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    assert find_plugin(load_plugins) is None
    assert find_plugin(json.JSONDecoder) == "json.decoder"
    with pytest.raises(InputError, match="there is no such module"):
        load_plugins(["nothing_here"])
