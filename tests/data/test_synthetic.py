"""Targets that depend on nodes far apart, checked by walking the graphs."""

import networkx as nx
import pytest
import torch

from mnagt.data.registry import DATASETS, load_dataset
from mnagt.data.synthetic import SYNTHETIC
from mnagt.graphs.convert import to_networkx

SOME = torch.arange(0, 5000, 499)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_statistics_are_those_that_are_listed(name):
    source, dataset = DATASETS[name], load_dataset(name)
    assert (len(dataset), dataset.task.num_outputs) == (source.graphs, source.classes)
    assert dataset.task.metric == source.metric
    assert dataset.sizes.double().mean().item() == pytest.approx(source.mean_nodes, abs=0.051)
    assert len(dataset.source) / 2 / len(dataset) == pytest.approx(source.mean_edges, abs=0.051)
    assert dataset.official is not None
    assert dataset.official.bincount().tolist() == [4000, 500, 500]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_it_is_the_same_every_time(name):
    one, other = load_dataset(name), load_dataset(name)
    assert torch.equal(one.source, other.source)
    assert torch.equal(one.targets, other.targets)


def test_the_leaf_with_the_roots_key_has_the_class():
    for graph, target in graphs_of("tree-neighbours-match"):
        key = graph.nodes[0]["node_labels/0"]
        leaves = [v for v in graph if v and graph.degree(v) == 1 and graph.nodes[v]["node_labels/0"] == key]
        assert [graph.nodes[v]["node_labels/1"] for v in leaves] == [target]
        assert nx.is_tree(graph)


def test_the_node_opposite_the_marked_one_has_the_class():
    for graph, target in graphs_of("ring-transfer"):
        (marked,) = (v for v in graph if graph.nodes[v]["node_labels/1"] == 1)
        distance = nx.single_source_shortest_path_length(graph, marked)
        (opposite,) = (v for v, steps in distance.items() if steps == len(graph) // 2)
        assert graph.nodes[opposite]["node_labels/0"] == target


def test_cycles_of_four_nodes_are_counted():
    for graph, target in graphs_of("cycle-count"):
        assert sum(len(cycle) == 4 for cycle in nx.simple_cycles(graph, length_bound=4)) == target


def graphs_of(name: str) -> list[tuple[nx.Graph, float]]:
    """Some graphs of a data set with their targets."""
    dataset = load_dataset(name)
    batch = dataset.batch(SOME)
    return list(zip(map(nx.Graph, to_networkx(batch)), dataset.targets[SOME].flatten().tolist(), strict=True))
