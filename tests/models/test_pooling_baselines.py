"""Pooling baselines against PyTorch Geometric, with its weights, and against the obvious way."""

from functools import partial
from importlib import import_module

import pytest
import torch
from hypothesis import given
from strategies import EDGE_VALUES, NODE_VALUES, batches, generator, random_batch
from torch import nn

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.subgraph import induce_subgraph
from mnagt.models.gat import GatConfig, gat
from mnagt.models.gcn import GcnConfig, gcn
from mnagt.models.sage import SageConfig, sage
from mnagt.models.sagpool import SagPoolConfig, SelfAttentionPool, sagpool
from mnagt.models.set2set import Set2Set, Set2SetConfig, set2set
from mnagt.models.sortpool import SortPool, SortPoolConfig, TanhStack, sorted_nodes, sortpool
from mnagt.models.virtual_node import VirtualConfig, gcn_virtual, gin_virtual

pyg = pytest.importorskip("torch_geometric.nn")

DIM = 7
FEATURES = Features(Columns(values=NODE_VALUES), Columns(values=EDGE_VALUES))


def nodes_like(graph: GraphBatch, dim: int = DIM) -> torch.Tensor:
    return torch.randn(graph.num_nodes, dim, generator=generator(1))


@given(batches())
def test_set2set_is_set2set(graph):
    ours, theirs = Set2Set(DIM, 3), pyg.aggr.Set2Set(DIM, 3)
    theirs.lstm.load_state_dict({f"{name}_l0": weight for name, weight in ours.lstm.state_dict().items()})
    x = nodes_like(graph)
    torch.testing.assert_close(ours(x, graph), theirs(x, graph.graph_of_node, dim_size=graph.num_graphs))


@pytest.mark.parametrize("k", [2, 3, 5, 11])
@given(graph=batches())
def test_the_sort_is_that_of_pytorch_geometric(k, graph):
    x = nodes_like(graph)
    theirs = pyg.aggr.SortAggregation(k)(x, graph.graph_of_node, dim_size=graph.num_graphs)
    torch.testing.assert_close(sorted_nodes(x, graph, k).flatten(1), theirs, rtol=0, atol=0)


def test_gradients_go_back_to_the_nodes_kept():
    graph = random_batch([5, 1, 3], 0.4, seed=0)
    x = nodes_like(graph).requires_grad_()
    sorted_nodes(x, graph, 2).sum().backward()
    assert x.grad is not None
    kept = torch.cat([part >= part.sort(descending=True).values[:2].min() for part in x[:, -1].split([5, 1, 3])])
    torch.testing.assert_close(x.grad, kept[:, None].expand_as(x).float())


@pytest.mark.parametrize("k", [2, 5, 30])
def test_maps_of_windows_are_convolutions(k):
    """The head of DGCNN as its authors have it, with Conv1d and MaxPool1d."""
    graph, dim = random_batch([5, 1, 40, 7], 0.4, seed=0), 13
    ours, x = SortPool(dim, k), nodes_like(graph, dim)
    window = min(5, k // 2)
    first, second = nn.Conv1d(1, 16, dim, dim), nn.Conv1d(16, 32, window)
    theirs = nn.Sequential(first, nn.ReLU(), nn.MaxPool1d(2, 2), second, nn.ReLU())
    first.weight.data.copy_(ours.each.weight[:, None])
    second.weight.data.copy_(ours.along.weight.unflatten(1, (window, 16)).transpose(1, 2))
    first.bias, second.bias = ours.each.bias, ours.along.bias
    expected = theirs(sorted_nodes(x, graph, k).flatten(1)[:, None])
    torch.testing.assert_close(ours(x, graph), expected.transpose(1, 2).flatten(1))


def test_layers_before_the_sort_stand_side_by_side_the_last_of_one_column():
    graph = random_batch([5, 1, 3], 0.4, seed=0)
    (stack,) = sortpool(SortPoolConfig(DIM, depth=3), Features(), 2).layers
    assert isinstance(stack, TanhStack)
    adjacency = torch.eye(9).index_put((graph.destination, graph.source.long()), torch.ones(()), accumulate=True)
    x, expected = nodes_like(graph), []
    for project in stack.maps:
        expected.append(torch.tanh(adjacency @ project(expected[-1] if expected else x) / adjacency.sum(1)[:, None]))
    assert [part.shape[1] for part in expected] == [DIM, DIM, 1]
    torch.testing.assert_close(stack(x, graph), torch.cat(expected, dim=1))


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.8])
@given(graph=batches(is_directed=False))
def test_a_pooling_is_that_of_pytorch_geometric(ratio, graph):
    ours, theirs = SelfAttentionPool(DIM, ratio), pyg.SAGPooling(DIM, ratio, GNN=pyg.GCNConv)
    for bias in (ours.score.bias, theirs.gnn.bias):
        nn.init.zeros_(bias)
    nn.init.ones_(theirs.select.weight)
    theirs.gnn.lin.weight.data.copy_(ours.score.weight)
    x = nodes_like(graph)
    if ties(ours.scores(x, graph)):
        return  # theirs breaks ties by the names of nodes
    pooled, smaller = ours(x, graph)
    expected, edges, _, home, kept, _ = theirs(x, graph.edge_index, batch=graph.graph_of_node)
    order = kept.argsort()  # theirs stand by score, ours as they stood
    torch.testing.assert_close(pooled, expected[order])
    torch.testing.assert_close(smaller.graph_of_node, home[order])
    pairs = {tuple(pair) for pair in order.argsort()[edges].T.tolist()}
    assert {tuple(pair) for pair in smaller.edge_index.T.tolist()} == pairs


def ties(score: torch.Tensor) -> bool:
    return bool((score.flatten().sort().values.diff() < 1e-5).any())


@pytest.mark.parametrize("training", [False, True])
def test_nothing_is_waited_for_and_nothing_changes(training, monkeypatch):
    """On a GPU what was left out stays in the batch; nobody notices."""
    graph = random_batch([5, 1, 4, 7, 3], 0.4, seed=0, node_values=True, edge_values=True)
    outcomes = []
    for is_cut in (True, False):
        monkeypatch.setattr(
            import_module("mnagt.models.sagpool"), "induce_subgraph", partial(induce_subgraph, is_cut=is_cut)
        )
        torch.manual_seed(0)
        model = sagpool(SagPoolConfig(DIM), FEATURES, 3).train(training)
        out = model(graph)
        out.square().sum().backward()
        outcomes.append([out, *(p.grad for p in model.parameters()), *model.buffers()])
    torch.testing.assert_close(outcomes[1], outcomes[0])


@pytest.mark.parametrize(
    ("build", "config"),
    [
        *((gcn, GcnConfig), (gat, GatConfig), (sage, SageConfig), (gcn_virtual, VirtualConfig)),
        *(
            (gin_virtual, VirtualConfig),
            (set2set, lambda: Set2SetConfig(conv="gine")),
            (sortpool, SortPoolConfig),
            (sagpool, SagPoolConfig),
        ),
    ],
)
def test_no_value_decides_a_shape(build, config):
    """A step is recorded on a GPU only if nobody reads what lies there. On 'meta' there is nothing to be read."""
    graph = random_batch([5, 1, 4, 7], 0.4, seed=0, node_values=True, edge_values=True).to("meta")
    out = build(config(), FEATURES, 3).to("meta").train()(graph)
    out.sum().backward()
    assert out.shape == (4, 3)


def test_settings_that_make_no_sense_are_refused():
    for ratio, message in ((0.0, "above 0"), (1.5, "at most 1")):
        with pytest.raises(InputError, match=f"ratio must be {message}"):
            SagPoolConfig(ratio=ratio)
    with pytest.raises(InputError, match="k must be at least 2"):
        SortPoolConfig(k=1)
    with pytest.raises(InputError, match="steps must be at least 1"):
        Set2SetConfig(steps=0)
