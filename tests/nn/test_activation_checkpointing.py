"""Worked out twice, a layer learns what it learns when it is worked out once."""

import pytest
import torch
from strategies import random_batch
from torch import nn

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


def test_only_what_goes_between_layers_is_kept():
    graph, model = random_batch([40, 30], 0.2, seed=0), build_model("mnagt-paper", {"depth": 4}, Features(), 2)

    def kept(model: nn.Module) -> int:
        bytes_of = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            bytes_of[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(graph)
        return sum(bytes_of.values())

    assert kept(CheckpointedModel(model)) < kept(model) / 5
