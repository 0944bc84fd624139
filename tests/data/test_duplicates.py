"""Structural duplicates: which graphs have one, and which do not."""

from dataclasses import replace

import networkx as nx
import torch

from mnagt import PackedDataset, SingleLabel, from_networkx
from mnagt.data.duplicates import has_duplicate, structural_signatures


def dataset_of(graphs: list[nx.Graph], labels: list[int] | None = None) -> PackedDataset:
    batch = replace(from_networkx(graphs), targets=torch.zeros(len(graphs), dtype=torch.long))
    if labels is not None:
        batch = replace(batch, node_labels=torch.tensor(labels)[:, None])
    return PackedDataset.from_batch("graphs", SingleLabel(("a", "b")), batch)


def test_renamed_graphs_are_duplicates_and_other_graphs_are_not():
    wheel = nx.wheel_graph(7)
    renamed = nx.relabel_nodes(wheel, {n: (3 * n + 1) % 7 for n in wheel})
    renamed = nx.from_edgelist(renamed.edges)
    signatures = structural_signatures(dataset_of([wheel, nx.cycle_graph(7), renamed, nx.cycle_graph(5)])).tolist()
    assert signatures[0] == signatures[2]
    assert len(set(signatures)) == 3


def test_equal_degrees_without_equal_triangles_are_no_duplicates():
    two_triangles = nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))
    dataset = dataset_of([nx.cycle_graph(6), two_triangles, nx.cycle_graph(6)])
    found = has_duplicate(dataset, torch.tensor([0, 1]), torch.tensor([2]))
    assert found.tolist() == [True, False]


def test_labels_of_nodes_count():
    dataset = dataset_of([nx.path_graph(3)] * 3, [0, 0, 0, 1, 0, 0, 0, 0, 1])  # the third is the second, reversed
    assert has_duplicate(dataset, torch.tensor([0, 1]), torch.tensor([2])).tolist() == [False, True]
