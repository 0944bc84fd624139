"""What would not fit is refused before training, with what it would take."""

from dataclasses import replace

import pytest
import torch

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.random_graphs import random_graphs
from mnagt.models.registry import build_model
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.tasks import Regression
from mnagt.training import memory_check as module
from mnagt.training.memory_check import _kept_bytes, check_memory, measure_cost

CPU = torch.device("cpu")


def dots(sizes: list[int]) -> PackedDataset:
    batch = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), sizes, targets=torch.zeros(len(sizes), 1))
    return PackedDataset.from_batch("dots", Regression(("y",)), batch)


@pytest.mark.parametrize("name", ["mnagt", "gat", "graphormer"])
def test_the_measure_cost_another_graph_is_foretold(name):
    model = build_model(name, {}, Features(), 1)
    graph, cost = random_graphs(Features(), [397], 0.05), measure_cost(model)
    told = cost.node * 397 + cost.edge * graph.num_edges + cost.pair * 397**2
    assert told == pytest.approx(_kept_bytes(model, graph), rel=0.1)
    assert (cost.pair > 0) == (name == "graphormer")


def test_a_graph_that_would_not_fit_is_named(monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda device: 2**28)
    model, dataset = build_model("mnagt", {"depth": 1}, Features(), 1), dots([3, 50_000, 5])
    with pytest.raises(InputError, match=r"dots: graph 1 has 50,000 nodes, .* takes at least \S+ MiB where 256 MiB"):
        check_memory(model, dataset, TrainConfig(), CPU)
    with pytest.raises(InputError, match=r"pairs of nodes are what takes it: take a model without"):
        check_memory(build_model("graphit", {}, Features(), 1), dataset, TrainConfig(), CPU)
    with pytest.raises(InputError, match=r"batches of 999 graphs take at least \S+ MiB .* lower batch_size"):
        check_memory(model, dots([100] * 999), TrainConfig(batch_size=999), CPU)
    check_memory(model, dots([100] * 999), TrainConfig(batch_size=64), CPU)
    check_memory(build_model("gin", {"dim": 8}, Features(), 1), dataset, TrainConfig(), CPU)


def test_layers_that_are_worked_out_again_are_not_all_kept(monkeypatch):
    model, dataset = build_model("mnagt", {}, Features(), 1), dots([20_000])
    need = int(measure_cost(model).of(dataset).item())
    monkeypatch.setattr(module, "free_memory", lambda device: need - 1)
    with pytest.raises(InputError, match="train with activation_checkpointing"):
        check_memory(model, dataset, TrainConfig(), CPU)
    check_memory(model, dataset, replace(TrainConfig(), activation_checkpointing=True), CPU)


@pytest.mark.parametrize("take", [lambda: torch.empty(2**50), lambda: bytearray(2**60)])
def test_a_processor_out_of_memory_is_told_in_one_line(take):
    config = RunConfig("MUTAG")
    with pytest.raises(InputError, match="too little memory for batches"), module.explain_out_of_memory(CPU, config):
        take()
    with pytest.raises(RuntimeError, match="another"), module.explain_out_of_memory(CPU, config):
        raise RuntimeError("another")
