"""Graphs of others in memory become data sets."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from mnagt import from_graphs, from_networkx, load_dataset
from mnagt.data.splits import random_group_split
from mnagt.errors import InputError
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
    data = pytest.importorskip("torch_geometric.data")
    pyg = data.Data(x=torch.tensor([[2], [0]]), edge_index=torch.tensor([[0, 1], [1, 0]]))
    assert from_graphs([pyg, pyg]).label_counts == {"node_labels": (3,)}
    batch = from_networkx([nx.path_graph(2)])
    assert len(from_graphs(batch)) == 1
    mutag = load_dataset("MUTAG")
    assert from_graphs(mutag) is mutag
    pytest.importorskip("rdkit")
    assert from_graphs(np.array(["CC", "C=O"])).sizes.tolist() == [2, 2]
    with pytest.raises(InputError, match="molecule 1, 'C\\(': not a SMILES"):
        from_graphs(["C", "C("])


@pytest.mark.parametrize(
    ("graphs", "told"),
    [
        ([], "got no graphs"),
        ("CCO", "expected a list of SMILES.* got str"),
        (7, "got int"),
        ([7], "got a int"),
        ([nx.path_graph(2), "CC"], "graph 1 is a str, and graph 0 a Graph"),
        ([nx.path_graph(2), nx.Graph()], "graph 1 has no nodes"),
        ([triangle(w=1.5), triangle(w="x")], "graph 1, node 0, attribute 'w': 'x' is a text"),
        ([triangle(w=1.5), triangle(w=object())], "graph 1, node 0, attribute 'w': expected a text"),
    ],
    ids=range(8),
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
