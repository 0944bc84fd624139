"""Reading takes time and memory by the size of a file, whatever its shape: four times as large, four times as long.

Quadratic readers take sixteen times as long. Times are of the processor, and the best of a few.
"""

import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from data import tu_files
from reliability.fuzzing import READERS

from mnagt.data.readers.sdf import read_sdf
from mnagt.errors import InputError

TIMES = 4
MOST_SECONDS, MOST_MEMORY = 9.0, 6.0
"""How many times as long, and as much, for a file four times as large."""
NOISE_SECONDS, NOISE_BYTES = 0.03, 2**19


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    return folder / name


def lines(n: int, line: Callable[[int], str]) -> str:
    return "".join(f"{line(i)}\n" for i in range(n))


def write_tu(folder: Path, **files: str) -> Path:
    return tu_files.folder(folder, files, without=("edge_labels", "edge_attributes", "node_attributes"))


def write_triple(folder: Path, graphs: str, nodes: str, edges: str = "graph,source,target\n") -> Path:
    folder.mkdir(parents=True)
    for part, text in {"graphs": graphs, "nodes": nodes, "edges": edges}.items():
        (folder / f"{part}.csv").write_text(text)
    return folder


def graphml(folder: Path, keys: str, graphs: str) -> Path:
    return write(
        folder, "g.graphml", f'<graphml><key id="y" for="graph" attr.name="y" attr.type="int"/>{keys}{graphs}</graphml>'
    )


def node_key(i: int, inner: str = "") -> str:
    return f'<key id="k{i}" for="node" attr.name="a{i}" attr.type="string">{inner}</key>'


def graph(nodes: str, y: int = 0) -> str:
    return f'<graph edgedefault="directed"><data key="y">{y % 2}</data>{nodes}</graph>'


def record(i: int) -> str:
    return json.dumps({"nodes": [{"e": "C"}, {"e": "O"}], "edges": [[0, 1]], "y": i % 2})


MOL = "\n\n\n  1  0  0  0  0  0  0  0  0  0999 V2000\n    0.0 0.0 0.0 C   0  0\nM  END\n"
TRIAL = {"config": {"dataset": "MUTAG", "model": "gin", "settings": {"dim": 8}}, "result": {"test": {"accuracy": 1}}}

Shape = tuple[int, Callable[[Path, int], Path], Callable[[Path], object]]
SHAPES: dict[str, Shape] = {
    "TU: many graphs": (
        1500,
        lambda f, n: write_tu(
            f,
            A="",
            graph_indicator=lines(2 * n, lambda i: str(i // 2 + 1)),
            graph_labels=lines(n, lambda i: str(i % 2)),
            node_labels=lines(2 * n, lambda i: "1"),
        ),
        READERS["tu"].read,
    ),
    "TU: one large graph": (
        4000,
        lambda f, n: write_tu(
            f,
            A=lines(n, lambda i: f"{i + 1}, {(i + 1) % n + 1}"),
            graph_indicator=lines(n, lambda i: "1") + "2\n",
            graph_labels="0\n1\n",
            node_labels=lines(n + 1, lambda i: str(i)),
        ),
        READERS["tu"].read,
    ),
    "molecules: many rows": (
        300,
        lambda f, n: write(f, "m.csv", "smiles,y\n" + lines(n, lambda i: f"CCO,{i % 2}")),
        READERS["molecules"].read,
    ),
    "molecules: many columns": (
        4000,
        lambda f, n: write(
            f, "m.csv", "smiles," + ",".join(f"c{i}" for i in range(n)) + "\nCCO" + ",1" * n + "\nCC" + ",0" * n
        ),
        READERS["molecules"].read,
    ),
    "SDF: many records": (100, lambda f, n: write(f, "m.sdf", (MOL + "$$$$\n") * n), read_sdf),
    "SDF: a property of many lines": (
        40_000,
        lambda f, n: write(f, "m.sdf", MOL + ">  <a>\n" + "x\n" * n + "\n$$$$\n"),
        read_sdf,
    ),
    "SDF: other properties in each record": (
        1000,
        lambda f, n: write(f, "m.sdf", "".join(f"{MOL}>  <p{i}>\n1\n\n$$$$\n" for i in range(n))),
        read_sdf,
    ),
    "JSONL: many graphs": (1000, lambda f, n: write(f, "g.jsonl", lines(n, record)), READERS["jsonl"].read),
    "JSONL: one large graph": (
        4000,
        lambda f, n: write(
            f,
            "g.jsonl",
            f"{record(0)}\n"
            + json.dumps({"nodes": [{"e": "C"}] * n, "edges": [[i, (i + 1) % n] for i in range(n)], "y": 1}),
        ),
        READERS["jsonl"].read,
    ),
    "JSONL: other columns in each graph": (
        300,
        lambda f, n: write(f, "g.jsonl", lines(n, lambda i: json.dumps({"nodes": [{f"a{i}": 1}], "y": i % 2}))),
        READERS["jsonl"].read,
    ),
    "GraphML: many graphs": (
        500,
        lambda f, n: graphml(f, "", "".join(graph('<node id="a"/><node id="b"/>', i) for i in range(n))),
        READERS["graphml"].read,
    ),
    "GraphML: keys and nodes": (
        300,
        lambda f, n: graphml(
            f,
            "".join(map(node_key, range(n))),
            graph("".join(f'<node id="n{i}"><data key="k{i}">x</data></node>' for i in range(n)))
            + graph('<node id="b"/>', 1),
        ),
        READERS["graphml"].read,
    ),
    "GraphML: defaults": (
        300,
        lambda f, n: graphml(
            f,
            "".join(node_key(i, "<default>x</default>") for i in range(n)),
            graph("".join(f'<node id="n{i}"/>' for i in range(n))) + graph('<node id="b"/>', 1),
        ),
        READERS["graphml"].read,
    ),
    "GraphML: elements within elements": (
        4000,
        lambda f, n: graphml(f, "", graph('<node id="a">' + "<a>" * n + "</a>" * n + "</node>")),
        READERS["graphml"].read,
    ),
    "CSV triple: many rows": (
        2000,
        lambda f, n: write_triple(
            f,
            "graph,y\n" + lines(n, lambda i: f"g{i},{i % 2}"),
            "graph,node,element\n" + lines(n, lambda i: f"g{i},a,C"),
        ),
        READERS["triple"].read,
    ),
    "CSV triple: many columns": (
        4000,
        lambda f, n: write_triple(
            f,
            "graph,y\na,0\nb,1\n",
            "graph,node," + ",".join(f"c{i}" for i in range(n)) + "\na,0" + ",1" * n + "\nb,0" + ",2" * n,
        ),
        READERS["triple"].read,
    ),
    "split": (
        20_000,
        lambda f, n: [
            write(f, "train.csv", lines(n, lambda i: "0")),
            (f / "valid.csv").write_text("1\n"),
            (f / "test.csv").write_text("2\n"),
            f,
        ][-1],  # type: ignore[return-value]
        READERS["split"].read,
    ),
    "recipe": (
        2000,
        lambda f, n: write(
            f, "recipe.toml", 'dataset = "NCI1"\nmodel = "mnagt"\n[settings]\n' + lines(n, lambda i: f"k{i} = 1")
        ),
        READERS["recipe"].read,
    ),
    "code: many functions": (
        500,
        lambda f, n: write(f, "a.py", lines(n, lambda i: f"def f{i}(x):\n    return x")),
        READERS["code"].read,
    ),
    "code: one long function": (
        1500,
        lambda f, n: write(f, "a.py", "def f(x):\n" + lines(n, lambda i: f"    x = x + {i}")),
        READERS["code"].read,
    ),
    "code: functions within functions": (
        20,
        lambda f, n: write(f, "a.py", lines(n, lambda i: " " * i + f"def f{i}(x):") + " " * n + "return x\n"),
        READERS["code"].read,
    ),
    "ledger": (
        300,
        lambda f, n: write(f, "trials.jsonl", lines(n, lambda i: json.dumps(TRIAL))),
        READERS["ledger"].read,
    ),
}


def measure(read: Callable[[Path], object], path: Path) -> tuple[float, int]:
    """Seconds of the processor, and the most memory of Python and NumPy."""

    def attempt() -> None:
        with suppress(InputError):
            read(path)

    seconds = []
    gc.disable()  # collections come when they come
    for _ in range(3):
        start = time.process_time()
        attempt()
        seconds.append(time.process_time() - start)
    gc.enable()
    tracemalloc.start()
    attempt()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(seconds), most


QUICK = ("SDF: a property of many lines", "SDF: other properties in each record", "GraphML: elements within elements")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in SHAPES]
)
def test_a_larger_file_takes_as_much_more(name, tmp_path):
    n, make, read = SHAPES[name]
    small, large = (measure(read, make(tmp_path / str(times), times * n)) for times in (1, TIMES))
    assert large[0] <= MOST_SECONDS * small[0] + NOISE_SECONDS, f"{small[0]:.3f} s, then {large[0]:.3f} s"
    assert large[1] <= MOST_MEMORY * small[1] + NOISE_BYTES, f"{small[1]:,} bytes, then {large[1]:,}"
