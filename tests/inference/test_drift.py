"""Drift is found where shares differ, and seldom where they do not."""

import pytest
import torch

from mnagt.graphs.batch import GraphBatch
from mnagt.inference.drift import (
    Bins,
    bins_from_dict,
    bins_to_dict,
    count_bins,
    fit_bins,
    measure_drift,
)


def graphs() -> GraphBatch:
    """A triangle of 0, 0, 1; a node of 2; an edge between nodes without category."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 0, 4, 5], [1, 0, 2, 1, 0, 2, 5, 4]])
    labels = torch.tensor([[0], [0], [1], [2], [-1], [-1]])
    return GraphBatch.from_edges(edges, [3, 1, 2], node_labels=labels, edge_labels=torch.zeros(8, 1, dtype=torch.long))


def test_a_graph_counts_once_in_each_feature():
    bins = {
        "nodes": Bins((1, 1), edges=(1.0,)),
        "edges": Bins((1, 1, 1), edges=(0.0, 4.0)),
        "distance": Bins((1, 1), edges=(1.0,)),
        "node_labels/0": Bins((1, 1, 1), categories=(0, 2)),
        "edge_labels/0": Bins((1, 1), categories=(0,)),
        "node_labels/7": Bins((1,)),
    }
    counts = count_bins(bins, graphs(), torch.tensor([0.5, 0.7, 3.0]))
    found = {name: pytest.approx(counted.tolist()) for name, counted in counts.items()}
    assert found == {
        "nodes": [1, 2],
        "edges": [1, 1, 1],
        "distance": [2, 1],
        "node_labels/0": [2 / 3, 1, 1 / 3 + 1],
        "edge_labels/0": [2, 0],
    }


def test_bins_are_those_of_the_graphs_and_survive_json():
    bins = fit_bins(graphs(), torch.arange(100.0))
    assert bins["distance"].counts == (10.0,) * 10
    assert bins["node_labels/0"].categories == (0, 1, 2)
    assert bins["node_labels/0"].counts == pytest.approx((2 / 3, 1 / 3, 1, 1))
    assert bins_from_dict(bins_to_dict(bins), "here") == bins
    again = count_bins(bins, graphs(), torch.arange(100.0))
    assert all(each.psi == pytest.approx(0) for each in measure_drift(bins, again).values())


def test_chance_is_seldom_exceeded_without_drift():
    generator, above = torch.Generator().manual_seed(0), 0
    share = torch.full((10,), 0.1)
    for _ in range(500):
        expected, counts = (
            torch.multinomial(share, n, replacement=True, generator=generator).bincount(minlength=10)
            for n in (400, 150)
        )
        drift = measure_drift({"x": Bins(tuple(map(float, expected)), (0.0,) * 9)}, {"x": counts})["x"]
        above += drift.psi > drift.by_chance
    assert above <= 15  # 1 % of them would be 5


def test_a_shift_is_drift():
    bins = {"x": Bins((100.0,) * 10, (0.0,) * 9)}
    drift = measure_drift(bins, {"x": torch.tensor([0.0] * 8 + [50.0, 50.0])})["x"]
    assert drift.is_significant
    assert not measure_drift(bins, {"x": torch.tensor([0.0] * 9 + [1.0])})["x"].is_significant  # one graph says little
    assert measure_drift(bins, {"x": torch.zeros(10)}) == {}
