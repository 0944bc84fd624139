"""Models of nodes and of edges: what holds for graphs as a whole holds for each of them."""

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
from mnagt.nn.list_model import EdgeModel, ListModel, NodeModel, pad_rows
from mnagt.tasks.base import Level

OUTPUTS = 3
SIZES = [5, 1, 4, 2, 7, 2, 3]
FEATURES = Features(
    Columns((CATEGORIES,) * NODE_LABELS, NODE_VALUES), Columns((CATEGORIES,) * EDGE_LABELS, EDGE_VALUES)
)
SETTINGS = {"san": {"spectrum": 0}, "gt": {"laplacian": 0}}
"""As in ``tests/models/test_conformance.py``: eigenvectors depend on how nodes are numbered."""
NETWORKS = [name for name, entry in MODELS.items() if issubclass(entry.config, ReadoutConfig) and not entry.is_joined]


LEVELS: dict[Level, type[ListModel]] = {"node": NodeModel, "edge": EdgeModel}


def built(name: str, level: Level = "node") -> ListModel:
    torch.manual_seed(0)
    model = build_model(name, SETTINGS.get(name, {}), FEATURES, OUTPUTS, level=level)
    assert type(model) is LEVELS[level]
    return model


def batch() -> GraphBatch:
    graph = graphs_like(FEATURES, SIZES, 0)
    assert graph.node_values is not None
    assert graph.edge_values is not None
    return replace(graph, node_values=graph.node_values.double(), edge_values=graph.edge_values.double())


def list_ends(graph: GraphBatch) -> list[tuple[int, int]]:
    """The ends of each edge, the smaller first, in the order of a model's outputs."""
    return [(i, j) for i, j in graph.edge_index.T.tolist() if i < j]


def count_items(graph: GraphBatch, level: Level) -> list[int]:
    if level == "node":
        return graph.sizes.tolist()
    owner = graph.graph_of_node.tolist()
    return [sum(owner[i] == g for i, _ in list_ends(graph)) for g in range(graph.num_graphs)]


def list_items(rows: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """The outputs of all nodes or edges of a batch, one after the other."""
    cells = rows.view(len(sizes), max(sizes), OUTPUTS)
    return torch.cat([row[:size] for row, size in zip(cells, sizes, strict=True)])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_renaming_nodes_renames_predictions(name, level):
    model, graph = built(name, level).double().eval(), batch()
    order, sizes = order_within(graph, 1), count_items(graph, level)
    other = renamed(graph, order)
    expected, found = list_items(model(graph), sizes), list_items(model(other), sizes)
    if level == "edge":
        place = {ends: i for i, ends in enumerate(list_ends(graph))}
        order = torch.tensor([place[tuple(sorted(order[[i, j]].tolist()))] for i, j in list_ends(other)])
    torch.testing.assert_close(found, expected[order])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_does_not_see_its_batch_and_its_row_ends_in_nan(name, level):
    model, graph = built(name, level).double().eval(), batch()
    rows, sizes = model(graph), count_items(graph, level)
    assert rows.shape == (len(SIZES), max(sizes) * OUTPUTS)
    for g, size in enumerate(sizes):
        torch.testing.assert_close(model(alone(graph, g))[0], rows[g, : size * OUTPUTS])
        assert rows[g, size * OUTPUTS :].isnan().all()


def test_edges_stand_where_their_numbers_say():
    model, graph = built("gin", "edge").double().eval(), batch()
    sizes, number = count_items(graph, "edge"), torch.full((graph.num_edges,), -1)
    is_counted = graph.source < graph.destination
    number[is_counted] = torch.cat([torch.arange(size).flip(0) for size in sizes])
    turned = torch.cat([part.flip(0) for part in list_items(model(graph), sizes).split(sizes)])
    torch.testing.assert_close(list_items(model(replace(graph, edge_numbers=number)), sizes), turned)


def test_edges_that_run_one_way_are_refused():
    graph = GraphBatch.from_edges(torch.tensor([[0], [1]]), [2], node_labels=torch.zeros(2, 1, dtype=torch.long))
    model = build_model("gin", {"dim": 8}, Features(Columns((1,))), 1, level="edge")
    with pytest.raises(InputError, match="both ways"):
        model(graph)


def test_a_batch_without_edges_has_rows_without_cells():
    edges = torch.zeros(2, 0, dtype=torch.long)
    graph = GraphBatch.from_edges(edges, [1, 2], node_labels=torch.zeros(3, 1, dtype=torch.long))
    assert build_model("gin", {"dim": 8}, Features(Columns((1,))), 2, level="edge")(graph).shape == (2, 0)


def test_a_number_that_is_nan_is_marked_as_infinite():
    rows = pad_rows(torch.tensor([[torch.nan], [2.0]]), torch.tensor([0, 0]), graphs=2)
    torch.testing.assert_close(rows, torch.tensor([[torch.inf, 2], [torch.nan, torch.nan]]), equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_every_parameter(name, level):
    model = built(name, level).double().train()
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
