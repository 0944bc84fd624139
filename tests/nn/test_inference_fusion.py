"""A fused model says what the model says."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from strategies import CATEGORIES, NODE_LABELS, random_batch
from torch import nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.models.registry import build_model
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.inference_fusion import FusedModel
from mnagt.nn.norms import BatchNorm

NODES = Columns((CATEGORIES,) * NODE_LABELS)
BONDS = Features(NODES, Columns((3, 5)))


def graphs(sizes: list[int], seed: int = 0) -> GraphBatch:
    batch = random_batch(sizes, 0.5, seed, node_labels=True, edge_labels=True)
    assert batch.edge_labels is not None
    return replace(batch, edge_labels=batch.edge_labels[:, :2] % torch.tensor([3, 5]))


def used(settings: dict[str, Any], features: Features, name: str = "mnagt") -> GraphModel:
    """A model whose norms and scales have moved away from where they start."""
    torch.manual_seed(0)
    model = build_model(name, {"dim": 7, "depth": 2, "heads": 3, "head_dim": 5, **settings}, features, 2).eval()
    for module in model.modules():
        for own in module.parameters(recurse=False):
            if own.ndim == 1:
                nn.init.normal_(own)
        if isinstance(module, BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model


@pytest.mark.parametrize("features", [Features(), Features(NODES), BONDS], ids=["bare", "labelled", "bonds"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_hop": 0},
        {"projections": "shared", "residual": "conv"},
        {"conv": "gin", "wl_iterations": 0, "readout": "mean"},
        {"readout": "virtual-node"},
    ],
    ids=str,
)
def test_folded_equals_the_model(settings, features):
    model, batch = used(settings, features).double(), graphs([5, 1, 7, 3, 1])
    fused = FusedModel(model)()
    assert fused is not model
    with torch.inference_mode():
        torch.testing.assert_close(fused(batch), model(batch), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sizes", [[1], [11]])
def test_folded_equals_the_model_on_one_graph(sizes):
    model, batch = used({}, BONDS), graphs(sizes)
    with torch.inference_mode():
        torch.testing.assert_close(FusedModel(model)()(batch), model(batch), rtol=1e-4, atol=1e-5)


def test_changed_weights_are_noticed():
    model, batch = used({}, Features(NODES)), graphs([5, 3])
    kept = FusedModel(model)
    first = kept()
    assert kept() is first
    states = {name: 0.9 * t for name, t in model.state_dict().items()}

    def in_place() -> None:
        with torch.no_grad():
            next(model.layers[1].parameters()).mul_(3)

    for change in (in_place, lambda: model.load_state_dict(states), model.double):
        before = kept()
        change()
        assert kept() is not before
        with torch.inference_mode():
            torch.testing.assert_close(kept()(batch), model(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings"), [("mnagt", {"norm": "layer"}), ("mnagt", {"mixer": "mean"}), ("mnagt", {"conv": "gcn"})]
)
def test_other_models_stay_as_they_are(name, settings):
    model = used(settings, Features(NODES), name)
    assert FusedModel(model)() is model


def test_a_model_that_trains_or_is_watched_is_not_folded():
    model = used({}, Features(NODES))
    handle = model.layers[1].register_forward_hook(lambda *seen: None)
    assert FusedModel(model)() is model
    handle.remove()
    assert FusedModel(model)() is not model
    assert FusedModel(model.train())() is model
