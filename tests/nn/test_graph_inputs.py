"""Batches are made once for all layers, and bad input is named: nothing wrong is computed in silence."""

import gc
import weakref

import pytest
import torch
from strategies import generator, random_batch
from torch import Tensor

import mnagt.nn as mnn
from mnagt import from_pyg
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.models.registry import build_model
from mnagt.nn.graph_inputs import as_graph_batch
from mnagt.tasks import SingleLabel

EDGES = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
BATCH = torch.tensor([0, 0, 1, 1])


def test_layers_share_a_batch_until_its_tensors_change():
    edges, batch = EDGES.clone(), BATCH.clone()
    graph = as_graph_batch(4, edges, batch)
    assert as_graph_batch(4, edges, batch) is graph
    assert as_graph_batch(4, edges, batch.clone()) is not graph
    assert as_graph_batch(4, edges.clone(), batch) is not graph
    graph = as_graph_batch(4, edges, batch)
    edges[:, 0] = torch.tensor([3, 2])
    changed = as_graph_batch(4, edges, batch)
    assert changed is not graph
    assert sorted(changed.edge_index.T.tolist()) == sorted(edges.T.tolist())
    batch[:] = 0
    assert as_graph_batch(4, edges, batch).num_graphs == 1
    assert as_graph_batch(4, edges).num_graphs == 1
    assert as_graph_batch(5, edges).num_nodes == 5


def test_a_batch_is_freed_with_its_edges():
    edges, batch = EDGES.clone(), BATCH.clone()
    graph = as_graph_batch(4, edges, batch)
    assert graph.buckets.groups
    assert graph.neighbours.transposed is not None
    alive = weakref.ref(graph)
    del graph
    gc.collect()
    assert alive() is not None
    del edges
    gc.collect()
    assert alive() is None


def test_tensors_that_do_not_tell_of_changes_are_read_each_time():
    with torch.inference_mode():
        edges = EDGES.clone()
        first = as_graph_batch(4, edges, BATCH)
        edges[:, 0] = torch.tensor([0, 0])
        assert as_graph_batch(4, edges, BATCH).edge_index.tolist() != first.edge_index.tolist()
        assert mnn.MNAGTConv(6, heads=2)(torch.randn(4, 6), edges, BATCH).shape == (4, 6)


def test_edge_attr_follows_its_edges_and_shares_the_structure():
    graph = random_batch([5, 1, 7], 0.4, seed=0, is_directed=True)
    order = torch.randperm(graph.num_edges, generator=generator(0))
    edges, values = graph.edge_index[:, order], torch.arange(graph.num_edges).float()[order]
    base = as_graph_batch(13, edges, graph.graph_of_node)
    view = as_graph_batch(13, edges, graph.graph_of_node, values)
    assert view.edge_values is not None
    assert view.edge_values[:, 0].tolist() == list(range(graph.num_edges))
    assert view.buckets is base.buckets
    assert base.neighbours is view.neighbours
    assert base.edge_values is None
    labels = as_graph_batch(13, edges, graph.graph_of_node, values.long()).edge_labels
    assert labels is not None
    assert labels[:, 0].tolist() == list(range(graph.num_edges))
    with pytest.raises(InputError, match="edge_attr has 3 rows for"):
        as_graph_batch(13, edges, graph.graph_of_node, torch.ones(3))


@pytest.mark.parametrize(
    ("edges", "batch", "message"),
    [
        (EDGES, [0, 1, 0, 1], "batch is not sorted: node 2 is in graph 0 and the node before it in graph 1"),
        (EDGES, [-1, 0, 0, 0], "node 0 is in graph -1; graphs count from 0"),
        (EDGES, [0, 0, 0], "x has 4 rows, and batch 3"),
        ([[0, 1], [1, 2]], [0, 0, 1, 1], "edge 1 joins two graphs"),
        ([[0, 1], [1, 4]], [0, 0, 1, 1], "edge_index names node 4; nodes are 0 to 3"),
        ([[0, -1], [1, 0]], [0, 0, 1, 1], "edge_index names node -1; nodes are 0 to 3"),
    ],
)
def test_graphs_that_cannot_be_are_refused(edges, batch, message):
    with pytest.raises(InputError, match=message):
        mnn.MNAGTConv(6, heads=2)(torch.ones(4, 6), torch.as_tensor(edges), torch.tensor(batch))


def test_a_batch_of_graphs_needs_no_second_description():
    graph = mnn.GraphBatch.from_edges(EDGES, batch=BATCH)
    conv = mnn.MNAGTConv(6, heads=2)
    with pytest.raises(InputError, match="leave batch out"):
        conv(torch.ones(4, 6), graph, BATCH)
    with pytest.raises(InputError, match="x has 5 rows, and the GraphBatch 4 nodes"):
        conv(torch.ones(5, 6), graph)
    with pytest.raises(InputError, match="takes sizes, the nodes of each graph, or batch"):
        mnn.GraphBatch.from_edges(EDGES, [2, 2], batch=BATCH)
    with pytest.raises(InputError, match="batch names graph 1; there are 1"):
        mnn.GraphBatch.from_edges(EDGES, batch=BATCH, num_graphs=1)
    with pytest.raises(InputError, match="4 edges, and there are no nodes"):
        mnn.GraphBatch.from_edges(EDGES, [0])


def test_a_number_that_the_batch_leaves_out_is_a_graph_without_nodes():
    torch.manual_seed(0)
    model = mnn.GraphTransformer(6, 8, 2, 3, heads=2, readout="sum").eval()
    x = torch.randn(4, 6)
    out = model(x, EDGES, torch.tensor([0, 0, 2, 2]))
    assert out.shape == (3, 3)
    torch.testing.assert_close(out[[0, 2]], model(x, EDGES, BATCH))
    torch.testing.assert_close(out[1], model.head(torch.zeros(8)))
    graph = mnn.GraphBatch.from_edges(EDGES, batch=BATCH, num_graphs=5)
    assert graph.sizes.tolist() == [2, 2, 0, 0, 0]
    assert model(x, graph).shape == (5, 3)


def test_no_nodes_at_all_are_no_graphs():
    empty = torch.zeros(2, 0, dtype=torch.long)
    conv = mnn.MNAGTConv(6, heads=2)
    assert conv(torch.zeros(0, 6), empty, torch.zeros(0, dtype=torch.long)).shape == (0, 6)
    assert conv(torch.zeros(0, 6), empty).shape == (0, 6)
    assert mnn.attend(*[torch.zeros(0, 2, 3)] * 3).shape == (0, 2, 3)


@pytest.mark.parametrize("nan", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_graph(nan):
    torch.manual_seed(0)
    conv, x = mnn.MNAGTConv(6, heads=2), torch.randn(4, 6)
    expected = conv(x, EDGES, BATCH)
    x[0, 0] = nan
    out = conv(x, EDGES, BATCH)
    assert not out[0].isfinite().any()
    torch.testing.assert_close(out[2:], expected[2:], rtol=0, atol=0)


def labelled(labels: Tensor) -> mnn.GraphBatch:
    edge_labels = torch.zeros(4, 1, dtype=torch.long)
    return mnn.GraphBatch.from_edges(EDGES, batch=BATCH, node_labels=labels, edge_labels=edge_labels)


@pytest.mark.parametrize("name", ["mnagt", "gin", "transformer"])
def test_a_category_that_a_model_has_no_vector_for_is_refused(name):
    features = Features(Columns(labels=(3, 5)), Columns(labels=(1,)))
    model = build_model(name, {"dim": 8}, features, 2)
    labels = torch.tensor([[0, 4], [-1, -1], [2, 0], [1, 1]])
    model(labelled(labels))
    labels[2, 0] = 3
    with pytest.raises(InputError, match="node 2 has category 3 in column 0 of node_labels; the model knows 0 to 2"):
        model(labelled(labels))
    with pytest.raises(InputError, match="node_labels holds -4; categories count from 0, and -1 is none"):
        labelled(labels - 3)
    graph = labelled(torch.zeros(4, 2, dtype=torch.long)).with_edge_attr(torch.tensor([0, 0, 1, 0]))
    with pytest.raises(InputError, match="edge 2 has category 1 in column 0 of edge_labels"):
        model(graph)


def test_batches_know_the_categories_that_they_may_have():
    graph = labelled(torch.tensor([[0, 4], [-1, -1], [2, 0], [1, 1]]))
    assert graph.label_counts == {"node_labels": (3, 5), "edge_labels": (1,)}
    targets = torch.tensor([0, 1])
    dataset = PackedDataset.from_batch(
        "two",
        SingleLabel(("a", "b")),
        mnn.GraphBatch.from_edges(EDGES, [2, 2], node_labels=graph.node_labels, targets=targets),
    )
    assert dataset.batch(torch.tensor([1])).label_counts == {"node_labels": (3, 5)}


def test_batches_of_pytorch_geometric_are_graphs():
    data = pytest.importorskip("torch_geometric.data")
    graphs = [data.Data(x=torch.randn(n, 6), edge_index=torch.tensor([[0], [n - 1]])) for n in (3, 1, 4)]
    batch = data.Batch.from_data_list(graphs)
    conv = mnn.MNAGTConv(6, heads=2)
    torch.testing.assert_close(conv(batch.x, batch.edge_index, batch.batch), conv(batch.x, from_pyg(batch)))
