"""Graphs of others in memory become data sets."""

import json
import logging
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from data.tu_files import SMALL, folder
from hypothesis import given
from hypothesis import strategies as st
from strategies import generator
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader

from mnagt import from_graphs, from_networkx, load_dataset
from mnagt.data.categories import align_categories
from mnagt.data.in_memory import read_graphs
from mnagt.data.readers.pyg_graphs import find_one_hot
from mnagt.data.readers.tu import read_tu
from mnagt.data.splits import random_group_split
from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.pyg_fields import log_once
from mnagt.tasks import MultiLabel, Regression, SingleLabel, Unlabelled


def triangle(**attributes) -> nx.Graph:
    graph = nx.cycle_graph(3)
    for name, value in attributes.items():
        nx.set_node_attributes(graph, dict.fromkeys(graph, value), name)
    return graph


def test_networkx_attributes_are_columns():
    graphs = [triangle(kind="a", w=np.float32(0.5), at=np.array([1, 2])), triangle(kind="b", w=1, at=[3, 4])]
    dataset = from_graphs(graphs, ["x", "y"])
    assert dataset.task == SingleLabel(("x", "y"))
    assert dataset.columns == {"node_labels": ("kind",), "node_values": ("w", "at/0", "at/1")}
    again = from_graphs(graphs[1:], columns={"node_labels": ["kind"], "node_values": ["w"]})
    assert again.task == Unlabelled()
    assert again.node_values is not None
    assert again.node_values[:, 0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("targets", "task"),
    [
        ([0, 1], SingleLabel(("0", "1"))),
        (np.array([0.25, 1]), Regression(("y",))),
        (torch.tensor([[0.0, 1.0], [1.0, torch.nan]]), MultiLabel(("y/0", "y/1"), "rocauc")),
    ],
)
def test_targets_tell_the_task(targets, task):
    two = [nx.path_graph(2), nx.path_graph(3)]
    if task == SingleLabel(("0", "1")):
        assert from_graphs(two, targets).targets.tolist() == [0, 1]
    assert from_graphs(two, targets, task=task.kind).task == task


def test_data_of_pyg_batches_and_smiles():
    pyg = Data(x=torch.tensor([[2], [0]]), edge_index=torch.tensor([[0, 1], [1, 0]]))
    assert from_graphs([pyg, pyg]).label_counts == {"node_labels": (3,)}
    batch = from_networkx([nx.path_graph(2)])
    assert len(from_graphs(batch)) == 1
    mutag = load_dataset("MUTAG")
    assert from_graphs(mutag) is mutag
    pytest.importorskip("rdkit")
    assert from_graphs(np.array(["CC", "C=O"])).sizes.tolist() == [2, 2]
    with pytest.raises(InputError, match="molecule 1, 'C\\(': not a SMILES"):
        from_graphs(["C", "C("])


# PyTorch Geometric


@pytest.fixture(scope="module")
def tu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A data set of PyTorch Geometric from files of the TU collection; labels have gaps and do not begin at 0."""
    root = tmp_path_factory.mktemp("pyg")
    edge = {
        "A": "7, 8\n8, 7\n",
        "edge_labels": "5\n5\n",
        "edge_attributes": "3\n3\n",
    }  # PyG needs one in the last graph
    folder(root / "SMALL" / "raw", {field: SMALL[field] + lines for field, lines in edge.items()})
    return TUDataset(str(root), "SMALL", use_node_attr=True, use_edge_attr=True)


def test_a_data_set_of_pyg_and_its_files_are_read_alike(tu, caplog):
    caplog.set_level(logging.WARNING, "mnagt")
    log_once.cache_clear()
    ours, theirs = read_tu(Path(tu.raw_dir)), from_graphs(tu)
    assert theirs.name == "SMALL"
    assert theirs.features == ours.features
    for name, tensor in ours.named_tensors.items():
        torch.testing.assert_close(theirs.named_tensors[name].to(tensor.dtype), tensor, rtol=0, atol=0)
    assert len(theirs.task.class_names) == len(ours.task.class_names)
    again = from_graphs(DataLoader(tu, batch_size=2))
    assert again.node_labels.equal(theirs.node_labels)  # type: ignore[union-attr]
    assert [record.message for record in caplog.records if record.message.startswith("SMALL")] == [
        "SMALL: x/3:11, x/11:13 are one-hot and read as categories; edge_attr/1:7 are one-hot and read as categories; "
        "y is the target, single-label (0, 1, 2)"
    ]


def test_one_graph_is_read_as_the_whole_data_set_was(tu):
    whole = from_graphs(tu)
    for number, graph in enumerate(tu):
        alone = read_graphs(graph, columns=whole.columns)
        assert alone.columns == whole.columns
        aligned = align_categories(alone, whole.features, whole.vocabularies)
        assert aligned.node_labels.equal(whole.batch(torch.tensor([number])).node_labels)  # type: ignore[union-attr]


def test_a_model_of_the_files_reads_the_graphs_of_pyg(tu):
    ours = read_tu(Path(tu.raw_dir))
    for number, graph in enumerate(tu):
        alone = read_graphs(graph, features=ours.features, vocabularies=ours.vocabularies)
        aligned = align_categories(alone, ours.features, ours.vocabularies)
        for kind in ("node_labels", "node_values", "edge_labels", "edge_values"):
            expected = getattr(ours.batch(torch.tensor([number])), kind)
            torch.testing.assert_close(getattr(aligned, kind).to(expected.dtype), expected)


def test_columns_can_be_chosen_and_one_hot_vectors_kept_as_numbers(tu):
    plain = from_graphs(tu, columns={"node_values": ["x"], "edge_values": ["edge_attr/0"]})
    assert plain.features == Features(Columns(values=tu.num_node_features), Columns(values=1))
    old = read_graphs(tu, features=Features(Columns(values=tu.num_node_features), Columns(values=tu.num_edge_features)))
    assert old.node_values.equal(plain.node_values)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="the model reads 'x/90:97' of nodes, which is not there; there are: x with"):
        from_graphs(tu, columns={"node_labels": ["x/90:97"]})
    with pytest.raises(InputError, match="x/0:2 is not one-hot in row 0"):
        from_graphs([Data(x=torch.ones(2, 2))], columns={"node_labels": ["x/0:2"]})


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(0, 2**16))
def test_one_hot_vectors_are_found_among_numbers(widths, seed):
    """A width of 0 is a column of numbers."""
    g, parts, expected, at = generator(seed), [], [], 0
    for width in widths:
        rows = torch.cat([torch.arange(width), torch.randint(max(width, 1), (7,), generator=g)])[:7]
        parts.append(torch.rand(7, 1, generator=g) + 2 if width == 0 else torch.eye(width)[rows])
        expected += [range(at, at + width)] if width else []
        at += max(width, 1)
    assert find_one_hot(torch.cat(parts, dim=1)) == expected


@pytest.mark.parametrize(
    ("y", "task"),
    [
        ([torch.tensor([4]), torch.tensor([0]), torch.tensor([2])], SingleLabel(("0", "2", "4"))),
        ([torch.tensor([[0.5]]), torch.tensor([[1.5]]), torch.tensor([[2.0]])], Regression(("y",))),
        (
            [torch.tensor([[0, 1]]), torch.tensor([[1, 1]]), torch.tensor([[0, 0]])],
            MultiLabel(("y/0", "y/1"), "rocauc"),
        ),
        ([0.25, 1.5, 3], Regression(("y",))),
    ],
)
def test_graphs_carry_their_targets(y, task):
    assert from_graphs(Data(num_nodes=2, y=y[0])).task == Unlabelled(), "one graph, to be predicted"
    assert from_graphs([Data(num_nodes=2, y=value) for value in y]).task == task
    named = [Data(num_nodes=2, activity=value) for value in y]
    assert from_graphs(named).task == Unlabelled()
    of_name = from_graphs(named, "activity").task
    assert of_name.kind == task.kind
    assert of_name.target_names == tuple(name.replace("y", "activity") for name in task.target_names)
    if task.kind == "regression":
        graphs = [nx.path_graph(2) for _ in y]
        for graph, value in zip(graphs, y, strict=True):
            graph.graph["y"] = float(value)
        assert from_graphs(graphs).task == task
        assert read_graphs(graphs).task == Unlabelled()
        with pytest.raises(InputError, match="graph 3 has no y, and others do"):
            from_graphs([*graphs, nx.path_graph(2)])
        with pytest.raises(InputError, match="no attribute 'dose' to take targets from"):
            from_graphs(graphs, "dose")


@pytest.mark.parametrize(
    ("graphs", "told"),
    [
        ([], "got no graphs"),
        ("CCO", "expected a list of SMILES.* got str"),
        (7, "got int"),
        ([7], "got a int"),
        ([nx.path_graph(2), "CC"], "graph 1 is a str, and graph 0 a Graph"),
        ([nx.path_graph(2), nx.Graph()], "graph 1 has no nodes"),
        ([Data(num_nodes=2), Data(num_nodes=0)], "graph 1 has no nodes"),
        ([HeteroData()], "graph 0 is a HeteroData"),
        (HeteroData(), "graph 0 is a HeteroData"),
        (Data(x=torch.tensor([[torch.nan]])), "node_values holds values that are not finite"),
        ([triangle(w=1.5), triangle(w="x")], "graph 1, node 0, attribute 'w': 'x' is a text"),
        ([triangle(w=1.5), triangle(w=object())], "graph 1, node 0, attribute 'w': expected a text"),
    ],
    ids=range(12),
)
def test_what_are_no_graphs_is_told(graphs, told):
    with pytest.raises(InputError, match=told):
        from_graphs(graphs)


def test_each_graph_needs_a_target_and_a_group():
    two = [nx.path_graph(2), nx.path_graph(3)]
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"targets": [1]}, "1 targets for 2 graphs"),
        ({"targets": [1, None], "task": "regression"}, r"targets\[1\]: no target"),
        ({"groups": ["a"]}, "1 groups for 2 graphs"),
        ({"groups": ["a", None]}, r"groups\[1\], 'group': no group"),
    ]
    for beside, told in mistakes:
        with pytest.raises(InputError, match=told):
            from_graphs(two, **beside)
    assert from_graphs(two, groups=["b", "a"]).groups.tolist() == [1, 0]  # type: ignore[union-attr]


# Parallel edges


def test_a_multigraph_is_the_same_from_every_reader(tmp_path):
    edges = [(0, 1, "a"), (1, 1, "b"), (0, 1, "c"), (1, 2, "b")]
    multigraph: Any = nx.MultiGraph()
    multigraph.add_nodes_from(range(3))
    for u, v, kind in edges:
        multigraph.add_edge(u, v, kind=kind)
    nx.write_graphml(multigraph, tmp_path / "mine.graphml")
    lines = [[u, v, {"kind": kind}] for u, v, kind in edges]
    (tmp_path / "mine.jsonl").write_text(json.dumps({"nodes": 3, "edges": lines}))
    tables = tmp_path / "tables"
    tables.mkdir()
    rows = "".join(f"0,{u},{v},{kind}\n" for u, v, kind in edges)
    for name, text in {
        "graphs": "graph\n0\n",
        "nodes": "graph,node\n0,0\n0,1\n0,2\n",
        "edges": f"graph,source,target,kind\n{rows}",
    }.items():
        (tables / f"{name}.csv").write_text(text)
    both = torch.tensor([[u, v] for u, v, _ in edges] + [[v, u] for u, v, _ in edges]).T
    kinds = torch.tensor(["abc".index(kind) for *_, kind in edges] * 2)
    found = [
        from_graphs(multigraph),
        from_graphs(Data(num_nodes=3, edge_index=both, edge_attr=kinds)),
        *(load_dataset(tmp_path / name) for name in ("mine.graphml", "mine.jsonl", "tables")),
    ]
    for dataset in found:
        batch = dataset.batch(torch.tensor([0]))
        assert batch.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
        assert batch.edge_labels.tolist() == [[0], [0], [1], [1]]  # type: ignore[union-attr]


# Splits by groups


@pytest.mark.parametrize("seed", range(5))
def test_groups_stay_together_and_parts_keep_their_shares(seed):
    groups = torch.randint(37, (500,), generator=torch.Generator().manual_seed(seed))
    split = random_group_split(groups, seed)
    parts = [set(groups[part].tolist()) for part in (split.train, split.valid, split.test)]
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert len(split.train) + len(split.valid) + len(split.test) == 500
    assert 25 <= len(split.valid) <= 50
    assert 25 <= len(split.test) <= 50


def test_another_seed_draws_other_groups_and_the_same_the_same():
    groups = torch.arange(100) // 5
    first, again, other = (random_group_split(groups, seed).test.tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_a_few_large_groups_are_one_a_part_and_two_cannot_be_split():
    split = random_group_split(torch.tensor([0] * 20 + [1] * 30 + [2] * 50), 0)
    assert [len(part) for part in (split.train, split.valid, split.test)] == [50, 30, 20]
    with pytest.raises(InputError, match="part is empty"):
        random_group_split(torch.tensor([0, 0, 1, 1]), 0)


def test_a_table_of_molecules_has_groups_too(tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "mine.csv").write_text("smiles,y,project\nC,1.5,b\nC(,2.5,a\nCC,3.5,a\n")
    assert load_dataset(tmp_path / "mine.csv", targets=["y"], group="project").groups.tolist() == [1, 0]  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"no column 'x' \(--split-column\); there are: smiles, y"):
        load_dataset(tmp_path / "mine.csv", targets=["y"], group="x")
