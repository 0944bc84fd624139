"""Our convolutions are PyTorch Geometric's, with its weights."""

import pytest
import torch
from strategies import generator, random_batch

from mnagt.graphs.features import Columns
from mnagt.nn.convolutions import GCN, GIN, GINE

DIM = 7
pyg = pytest.importorskip("torch_geometric.nn")


@pytest.fixture(params=[False, True], ids=["undirected", "directed"])
def graph(request):
    return random_batch([5, 1, 4, 7], 0.4, seed=0, is_directed=request.param, edge_values=True)


@pytest.fixture
def x(graph):
    return torch.randn(graph.num_nodes, DIM, generator=generator(1))


def test_gin_is_gin(graph, x):
    ours = GIN(DIM)
    theirs = pyg.GINConv(lambda h: ours.mlp(h, graph))
    torch.testing.assert_close(ours(x, graph), theirs(x, graph.edge_index))


def test_gcn_is_gcn_on_undirected_graphs(graph, x):
    if not graph.is_symmetric:
        pytest.skip("PyTorch Geometric counts out-degrees at the source; eq. D of the paper does not")
    ours, theirs = GCN(DIM), pyg.GCNConv(DIM, DIM)
    with torch.no_grad():
        theirs.lin.weight.copy_(ours.project.weight)
        theirs.bias.zero_()
        ours.project.bias.zero_()
    torch.testing.assert_close(ours(x, graph), theirs(x, graph.edge_index))


def test_gine_is_gine(graph, x):
    ours = GINE(DIM, Columns(values=graph.edge_values.shape[1])).eval()
    theirs = pyg.GINEConv(lambda h: ours.mlp(h, graph))
    torch.testing.assert_close(ours(x, graph), theirs(x, graph.edge_index, ours.edges(graph)))
