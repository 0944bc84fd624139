"""Worked out twice, a layer learns what it learns when it is worked out once."""

from typing import Any

import pytest
import torch
from strategies import random_batch
from torch import nn

import mnagt.nn as mnn
from mnagt.graphs.features import Features
from mnagt.models.registry import build_model
from mnagt.nn.activation_checkpointing import CheckpointedModel


@pytest.mark.parametrize(
    ("name", "settings"),
    [("mnagt", {"dropout": 0.3}), ("mnagt-paper", {"attention_dropout": 0.3}), ("gps", {}), ("gin", {})],
)
def test_gradients_and_statistics_are_the_same(name, settings):
    graph = random_batch([5, 1, 7], 0.4, seed=0)
    outcomes = []
    for wrap in (lambda model: model, CheckpointedModel):
        torch.manual_seed(0)
        model = build_model(name, settings, Features(), 2)
        wrap(model)(graph).square().sum().backward()
        outcomes.append(([p.grad for p in model.parameters()], model.state_dict()))
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)


def count_kept(model: nn.Module, *args: Any) -> int:
    """Bytes that a forward pass keeps for the backward pass."""
    bytes_of = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        bytes_of[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(*args)
    return sum(bytes_of.values())


def test_only_what_goes_between_layers_is_kept():
    graph, model = random_batch([40, 30], 0.2, seed=0), build_model("mnagt-paper", {"depth": 4}, Features(), 2)
    assert count_kept(CheckpointedModel(model), graph) < count_kept(model, graph) / 5


def test_layers_of_other_models_are_checkpointed_one_by_one():
    graph, x = random_batch([40, 30], 0.2, seed=0), torch.randn(70, 8, requires_grad=True)
    settings = {"heads": 2, "dropout": 0.3, "norm": "batch"}
    outcomes, kept = [], []
    for is_checkpointed in (False, True):
        torch.manual_seed(0)
        residual = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        conv = mnn.MNAGTConv(8, **settings, residual=residual, activation_checkpointing=is_checkpointed)
        conv(x, graph.edge_index, graph.graph_of_node).square().sum().backward()
        statistics = {name: value for name, value in conv.state_dict().items() if "num_batches" not in name}
        outcomes.append(([p.grad for p in conv.parameters()], statistics))
        kept.append(count_kept(conv, x, graph))
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)
    assert kept[1] < kept[0] / 5
    assert conv.eval()(x, graph).shape == x.shape
