"""Models of nodes: what holds for graphs as a whole holds for each node."""

from dataclasses import replace

import pytest
import torch
from fitted import graphs_like
from strategies import (
    CATEGORIES,
    EDGE_LABELS,
    EDGE_VALUES,
    NODE_LABELS,
    NODE_VALUES,
    alone,
    order_within,
    renamed,
)

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.molecules import MOLECULES
from mnagt.models.config import ReadoutConfig
from mnagt.models.registry import MODELS, build_model
from mnagt.nn.activation_checkpointing import CheckpointedModel
from mnagt.nn.node_model import NodeModel

OUTPUTS = 3
SIZES = [5, 1, 4, 2, 7, 2, 3]
FEATURES = Features(
    Columns((CATEGORIES,) * NODE_LABELS, NODE_VALUES), Columns((CATEGORIES,) * EDGE_LABELS, EDGE_VALUES)
)
SETTINGS = {"san": {"spectrum": 0}, "gt": {"laplacian": 0}}
"""As in ``tests/models/test_conformance.py``: eigenvectors depend on how nodes are numbered."""
NETWORKS = [name for name, entry in MODELS.items() if issubclass(entry.config, ReadoutConfig) and not entry.is_joined]


def built(name: str) -> NodeModel:
    torch.manual_seed(0)
    model = build_model(name, SETTINGS.get(name, {}), FEATURES, OUTPUTS, level="node")
    assert isinstance(model, NodeModel)
    return model


def batch() -> GraphBatch:
    graph = graphs_like(FEATURES, SIZES, 0)
    assert graph.node_values is not None
    assert graph.edge_values is not None
    return replace(graph, node_values=graph.node_values.double(), edge_values=graph.edge_values.double())


def list_nodes(rows: torch.Tensor) -> torch.Tensor:
    """The outputs of all nodes of a batch, one after the other."""
    cells = rows.view(len(SIZES), max(SIZES), OUTPUTS)
    return torch.cat([row[:size] for row, size in zip(cells, SIZES, strict=True)])


@pytest.mark.parametrize("name", NETWORKS)
def test_renaming_nodes_renames_predictions(name):
    model, graph = built(name).double().eval(), batch()
    order = order_within(graph, 1)
    torch.testing.assert_close(list_nodes(model(renamed(graph, order))), list_nodes(model(graph))[order])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_does_not_see_its_batch_and_its_row_ends_in_nan(name):
    model, graph = built(name).double().eval(), batch()
    rows = model(graph)
    assert rows.shape == (len(SIZES), max(SIZES) * OUTPUTS)
    for g, size in enumerate(SIZES):
        torch.testing.assert_close(model(alone(graph, g))[0], rows[g, : size * OUTPUTS])
        assert rows[g, size * OUTPUTS :].isnan().all()


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_every_parameter(name):
    model = built(name).double().train()
    rows = model(batch())
    (rows.nan_to_num() * torch.randn_like(rows)).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]


def test_the_embedding_is_the_mean_of_the_nodes():
    model, graph = built("gin").double().eval(), batch()
    x, _ = model.encode(graph)
    for layer in model.layers:
        x = layer(x, graph)
    torch.testing.assert_close(model.embed(graph)[4], x[12:19].mean(dim=0))
    for ours, theirs in zip(model.predict_and_embed(graph), (model(graph), model.embed(graph)), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    torch.testing.assert_close(CheckpointedModel(model)(graph), model(graph), equal_nan=True)


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(NETWORKS)))
def test_models_without_vectors_of_nodes_are_refused(name):
    with pytest.raises(InputError, match=f"{name} has no vectors of nodes.*choose another model: mnagt"):
        build_model(name, {}, MOLECULES, OUTPUTS, level="node")


def test_descriptors_are_refused():
    with pytest.raises(InputError, match="leave out --descriptors"):
        build_model("mnagt", {"descriptors": ["rdkit2d"]}, MOLECULES, OUTPUTS, level="node")
