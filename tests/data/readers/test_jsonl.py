"""Graphs from JSONL train, score and predict; what is wrong with a line is told with its field."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

from mnagt import RunConfig, SplitConfig, TrainConfig, evaluate, load_dataset, predict, resume, to_networkx, train
from mnagt.cli import main
from mnagt.data.readers.jsonl import read_jsonl
from mnagt.errors import InputError
from mnagt.files import read_json
from mnagt.tasks import MultiLabel, Regression, SingleLabel, Unlabelled

TINY = {"dim": 8, "depth": 1}
ATOMS = ("C", "N", "O")


def molecule(i: int) -> dict:
    """A chain, or a ring where 3 divides ``i``."""
    n = 3 + i % 5
    nodes = [{"element": ATOMS[(i + k) % 3], "charge": k / 4, "at": [k, i]} for k in range(n)]
    edges: list = [[k, k + 1, {"bond": 1 + k % 2}] for k in range(n - 1)]
    return {
        "nodes": nodes,
        "edges": edges + ([[n - 1, 0, {"bond": 1}]] if i % 3 == 0 else []),
        "y": "ring" if i % 3 == 0 else "chain",
        "family": f"f{i % 11}",
        "weight": n / 2,
    }


@pytest.fixture
def written(tmp_path):
    """Writes a file."""

    def write(*graphs: dict | str, name: str = "mine.jsonl") -> Path:
        text = "\n".join(graph if isinstance(graph, str) else json.dumps(graph) for graph in graphs)
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return tmp_path / name

    return write


# What is read


def test_columns_keep_their_names_and_are_read_by_what_they_hold(written):
    dataset = load_dataset(written(*map(molecule, range(6)), name="mine.jsonl.gz"))
    assert dataset.name == "mine"
    assert dataset.columns == {
        "node_labels": ("element",), "node_values": ("charge", "at/0", "at/1"), "edge_labels": ("bond",)
    }  # fmt: skip
    assert dataset.vocabularies == {"node_labels/0": ATOMS, "edge_labels/0": ("1", "2")}
    assert dataset.task == SingleLabel(("chain", "ring"))
    assert dataset.targets.tolist() == [1, 0, 0, 1, 0, 0]
    batch = dataset.batch(torch.tensor([1]))
    assert batch.node_labels is not None
    assert batch.node_values is not None
    assert batch.node_labels[:, 0].tolist() == [1, 2, 0, 1]
    assert batch.node_values[2].tolist() == [0.5, 2, 1]
    bonds = {(u, v): label for (u, v), label in zip(batch.edge_index.T.tolist(), batch.edge_labels[:, 0], strict=True)}  # type: ignore[index]
    assert bonds == {(0, 1): 0, (1, 0): 0, (1, 2): 1, (2, 1): 1, (2, 3): 0, (3, 2): 0}


def test_a_number_of_nodes_will_do_and_missing_categories_are_none(written):
    plain = load_dataset(written({"nodes": 3, "edges": [[0, 1]]}, "", {"nodes": 1}))
    assert plain.sizes.tolist() == [3, 1]
    assert plain.task == Unlabelled()
    assert plain.node_labels is None
    some = load_dataset(written({"nodes": [{"a": "x"}, {}, {"a": None, "b": True}]}))
    assert some.node_labels is not None
    assert some.node_labels.tolist() == [[0, -1], [-1, -1], [-1, 0]]
    assert some.vocabularies["node_labels/1"] == ("true",)


def test_edges_run_both_ways_unless_the_graph_is_directed(written):
    graph = {"nodes": 3, "edges": [[0, 1], [1, 1], [0, 1], [2, 0]]}
    both, one = (load_dataset(written(graph | {"directed": way})) for way in (False, True))
    everything = torch.tensor([0])
    assert both.batch(everything).edge_index.T.tolist() == [[1, 0], [2, 0], [0, 1], [0, 2]]
    assert one.batch(everything).edge_index.T.tolist() == [[2, 0], [0, 1]]
    assert both.is_symmetric
    assert not one.is_symmetric


def test_node_link_data_of_networkx_are_read_as_they_are(written):
    graph: Any = nx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")], y=1.5)
    nx.set_node_attributes(graph, {"a": "x", "b": "y", "c": "x"}, "kind")
    dataset = load_dataset(written(nx.node_link_data(graph, edges="edges"), {"nodes": [{"kind": "x"}], "y": 2}))
    (back, _) = to_networkx(dataset.batch(torch.arange(2)), node_labels=["kind"])
    assert set(back.edges) == {(0, 1), (1, 2), (0, 2)}
    assert list(nx.get_node_attributes(back, "kind").values()) == [0, 1, 0]


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ([0, 1, 1], SingleLabel(("0", "1"))),
        ([True, False, None], SingleLabel(("false", "true"))),
        ([0.5, 1, 2], Regression(("y",))),
        ([[0, 1], [1, None], [0, 0]], MultiLabel(("y/0", "y/1"), "rocauc")),
        ([[0.1, 1], [1, 3], [2, 0]], Regression(("y/0", "y/1"))),
    ],
)
def test_the_task_is_found_from_the_targets(written, values, task):
    assert load_dataset(written(*({"nodes": 1, "y": value} for value in values)), targets=["y"]).task == task


def test_graphs_without_a_target_are_left_out_and_told(written, caplog):
    path = written({"nodes": 1, "y": 1}, {"nodes": 2}, {"nodes": 3, "y": 0})
    dataset = load_dataset(path)
    assert dataset.sizes.tolist() == [1, 3]
    assert f"1 of 3 graphs have no target and are left out: {path}, line 2" in caplog.text
    assert len(load_dataset(path, task=Unlabelled())) == 3


# What is refused

NODE = '{"nodes": [{"a": %s}, {"a": %s}]}'
REFUSED = {
    "no file": (None, "no such file"),
    "empty": ("", "no graphs in it"),
    "not JSON": ('{"nodes": 1}\n{', "line 2, column 2: not JSON"),
    "not UTF-8": (b'{"nodes": 1}\n{"y": "\xe9"}', "line 2: byte 8 is not UTF-8"),
    "deep": ("[" * 100_000, "line 1: not JSON"),
    "a list": ("[1]", r"line 1: expected an object, got \[1\]"),
    "no nodes": ('{"edges": []}', "line 1, nodes: missing"),
    "no node": ('{"nodes": 0}', "line 1, nodes: expected a number from 1"),
    "huge": ('{"nodes": 1e99}', "line 1, nodes: expected a number from 1"),
    "a text": ('{"nodes": "x"}', "line 1, nodes: expected a number from 1"),
    "bare nodes": ('{"nodes": [1]}', r"line 1, nodes\[0\]: expected an object"),
    "twice": ('{"nodes": [{"id": "a"}, {"id": "a"}]}', r"line 1, nodes\[1\].id: 'a' is there twice"),
    "list as id": ('{"nodes": [{"id": [1]}]}', r"line 1, nodes\[0\].id: expected a text or a whole number"),
    "edges": ('{"nodes": 1, "edges": 3}', "line 1, edges: expected a list, got 3"),
    "an edge": ('\n{"nodes": 1, "edges": [[0, 0], [1]]}', r"line 2, edges\[1\]: expected \[u, v\]"),
    "an end": ('{"nodes": 2, "edges": [[0, 2]]}', r"line 1, edges\[0\]: no node 2; the graph's 2 nodes are 0, 1"),
    "below": ('{"nodes": 2, "edges": [[0, -1]]}', r"edges\[0\]: no node -1"),
    "an odd end": ('{"nodes": 2, "edges": [[0, [1]]]}', r"edges\[0\]: no node \[1\]"),
    "directed": ('{"nodes": 1, "directed": "yes"}', "line 1, directed: expected true or false"),
    "not a number": (NODE % ("NaN", "1.0"), "line 1: not JSON .NaN is no number of JSON"),
    "too large": (NODE % ("1e39", "1.0"), r"line 1, nodes\[0\].a: expected a finite number, got 1e\+39"),
    "missing number": ('{"nodes": 1}\n' + NODE % ("1.5", "null"), r"line 1, nodes\[0\].a: expected a finite number"),
    "mixed": ('{"nodes": 2}\n' + NODE % ("1.5", '"x"'), r"line 2, nodes\[1\].a: 'x' is a text, and others are numbers"),
    "an object": (NODE % ("{}", "1"), r"line 1, nodes\[0\].a: expected a text, a number or a list"),
    "lengths": (NODE % ("[1, 2]", "[1]"), r"line 1, nodes\[1\].a: expected a list of 2 as before, got \[1\]"),
    "target": ('{"nodes": 1, "y": {"a": 1}}', "line 1, 'y': expected a text, a number or a list"),
    "odd target": ('{"nodes": 1, "y": 1.5}\n{"nodes": 1, "y": 2}\n{"nodes": 1, "y": "x"}', "line 3, 'y': 'x' is not a"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_are_refused_by_line_and_field(tmp_path, case):
    text, told = REFUSED[case]
    path = tmp_path / "mine.jsonl"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=told) as error:
        load_dataset(path)
    assert str(error.value).startswith(str(path))


def test_what_is_asked_must_be_there(written):
    path = written(*map(molecule, range(6)))
    with pytest.raises(InputError, match=r"no column 'z' \(--target\)"):
        load_dataset(path, targets=["z"])
    with pytest.raises(InputError, match=r"no column 'z' \(--split-column\)"):
        load_dataset(path, group="z")


# Training and answers


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("jsonl")
    (folder / "mine.jsonl").write_text("\n".join(json.dumps(molecule(i)) for i in range(66)))
    words = [
        "--target",
        "y",
        "--split",
        "group",
        "--split-column",
        "family",
        "--class-weights",
        "true",
        "--model",
        "gin",
    ]
    sizes = ["--dim", "8", "--depth", "1", "--epochs", "2", "--device", "cpu"]
    assert main(["train", str(folder / "mine.jsonl"), "--out", str(folder / "run"), *words, *sizes]) == 0
    return folder / "run"


def test_a_run_goes_by_its_columns_and_groups(run_folder):
    result = json.loads((run_folder / "result.json").read_text())
    assert evaluate(run_folder, device="cpu")["accuracy"] == result["test"]["accuracy"]
    assert resume(run_folder).result.test == result["test"]
    split = read_json(run_folder / "split.json")
    families = [{i % 11 for i in part} for part in split.values()]
    assert not families[0] & families[1] | families[0] & families[2] | families[1] & families[2]


def test_other_graphs_are_read_as_the_model_reads_them(run_folder, written):
    other = molecule(3)
    expected = predict(run_folder, str(written(molecule(3))), device="cpu")
    other["nodes"] = [dict(reversed(node.items())) | {"charge": 0, "more": "x"} for node in other["nodes"]]
    whole = predict(
        run_folder, str(written(other)), device="cpu"
    )  # charges that are all whole, columns in another order
    assert whole.keys() == expected.keys()
    for node in other["nodes"]:
        del node["element"]
    with pytest.raises(InputError, match="the model reads 'element' of nodes, which is not there"):
        predict(run_folder, str(written(other)), device="cpu")
    other = molecule(3)
    other["nodes"][0]["element"] = "X"
    with pytest.raises(InputError, match=r"\('element'\) of node_labels holds X, which the model does not know"):
        predict(run_folder, str(written(other)), device="cpu")


def test_a_file_without_edges_is_read_too(run_folder, written):
    alone = {"nodes": molecule(3)["nodes"][:1]}
    assert predict(run_folder, str(written(alone)), device="cpu")["graph"] == [0]


def test_predictions_go_by_the_names_of_the_graphs(run_folder, written):
    path = written(molecule(1) | {"id": "a"}, molecule(2), molecule(4) | {"id": 7})
    assert predict(run_folder, str(path), device="cpu")["graph"] == ["a", 1, "7"]
    assert predict(run_folder, str(path), graphs=[2], device="cpu")["graph"] == ["7"]


def test_all_graphs_of_another_file_are_scored_by_the_models_classes(run_folder, written):
    rings = written(*(molecule(i) for i in (0, 3, 6)))
    assert evaluate(run_folder, dataset=str(rings), device="cpu")["graphs"] == 3


def test_numbers_are_learned_from_another_field(written):
    path = written(*map(molecule, range(30)))
    config = RunConfig(str(path), "gin", TINY, TrainConfig(epochs=1), SplitConfig("random"), "cpu", targets=("weight",))
    assert train(config).result.metric == "rmse"


def test_without_a_target_nothing_can_be_learned(written):
    with pytest.raises(InputError, match=r"no targets to learn from; name the columns that hold them \(--target\)"):
        train(RunConfig(str(written({"nodes": 2}, {"nodes": 3}))))


def test_the_documented_code_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "own-data.md").read_text(encoding="utf-8")
    (schema,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert len(schema.splitlines()) == 3
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.jsonl").write_text(
        schema + "\n".join(json.dumps({**json.loads(schema.splitlines()[0]), "family": str(i)}) for i in range(20))
    )
    blocks = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "my.jsonl" in each]
    assert blocks
    for block in blocks:
        exec(compile(block.replace("epochs=100", "epochs=1"), "own-data.md", "exec"), {})


@pytest.mark.real_data
def test_a_set_written_as_jsonl_comes_back_the_same(data_root, tmp_path):
    nci1 = load_dataset(data_root / "NCI1.zip")
    graphs = to_networkx(nci1.batch(torch.arange(len(nci1))), node_labels=["element"], target="y")
    path = tmp_path / "nci1.jsonl"
    path.write_text("\n".join(json.dumps(nx.node_link_data(graph, edges="edges")) for graph in graphs))
    back = read_jsonl(path).pack()
    for field in ("source", "in_degree", "targets", "node_labels"):
        torch.testing.assert_close(getattr(back, field), getattr(nci1, field), check_dtype=False)
    assert (back.task, back.features) == (nci1.task, nci1.features)
