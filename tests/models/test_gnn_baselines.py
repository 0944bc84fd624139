"""GNN baselines are PyTorch Geometric's models, with its weights; the virtual node is what OGB describes."""

import pytest
import torch
from strategies import EDGE_VALUES, NODE_VALUES, generator, random_batch
from torch import nn

from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.models.gat import GatConfig, gat
from mnagt.models.gcn import GcnConfig, gcn
from mnagt.models.gin import GinConfig, gin
from mnagt.models.sage import SageConfig, sage
from mnagt.models.virtual_node import VirtualConfig, WithVirtualNode, gcn_virtual, gin_virtual
from mnagt.nn.convolutions import GAT, GCNE, SAGE
from mnagt.nn.norms import BatchNorm

pyg = pytest.importorskip("torch_geometric.nn")
from torch_geometric.nn import models as pyg_models  # noqa: E402

DIM, HEADS, DEPTH = 10, 2, 3
PLAIN = Features(Columns(values=NODE_VALUES))
WITH_EDGES = Features(Columns(values=NODE_VALUES), Columns(values=EDGE_VALUES))


@pytest.fixture
def graph():
    return random_batch([5, 1, 4, 7, 3], 0.4, seed=0, node_values=True, edge_values=True)


@pytest.fixture
def x(graph):
    return torch.randn(graph.num_nodes, DIM, generator=generator(1))


def copy_norm(ours, theirs):
    """A norm that has seen something, and its twin."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        getattr(ours, name).data.uniform_(0.5, 1.5, generator=generator(len(name)))
        getattr(theirs.module, name).data.copy_(getattr(ours, name))


def copy_gcn(ours, theirs):
    nn.init.zeros_(ours.project.bias)  # ours lies before the sum over neighbours
    nn.init.zeros_(theirs.bias)
    theirs.lin.weight.data.copy_(ours.project.weight)


def copy_sage(ours, theirs):
    nn.init.zeros_(theirs.lin_l.bias)
    theirs.lin_l.weight.data.copy_(ours.others.weight)
    theirs.lin_r.weight.data.copy_(ours.own.weight)


def copy_gat(ours, theirs):
    nn.init.zeros_(theirs.bias)
    theirs.lin.weight.data.copy_(ours.project.weight)
    theirs.att_src.data[0].copy_(ours.from_score)
    theirs.att_dst.data[0].copy_(ours.to_score)


def copy_gin(ours, theirs):
    first, second = theirs.nn.lins
    nn.init.zeros_(first.bias)
    first.weight.data.copy_(ours.mlp.first.weight)
    second.load_state_dict(ours.mlp.second.state_dict())
    copy_norm(ours.mlp.norm, theirs.nn.norms[0])


STACKS = {
    "gcn": (gcn, GcnConfig(DIM, DEPTH), pyg_models.GCN, {}, copy_gcn),
    "sage": (sage, SageConfig(DIM, DEPTH), pyg_models.GraphSAGE, {}, copy_sage),
    "gat": (gat, GatConfig(DIM, DEPTH, heads=HEADS), pyg_models.GAT, {"heads": HEADS}, copy_gat),
    "gin": (gin, GinConfig(DIM, DEPTH, conv="gin"), pyg_models.GIN, {}, copy_gin),
}


@pytest.mark.parametrize("name", STACKS)
def test_the_stack_is_that_of_pytorch_geometric(name, graph, x):
    build, config, theirs, settings, copy = STACKS[name]
    ours = build(config, PLAIN, 1).eval()
    # 'last' has a norm after every layer, and a linear map at the end, which shall do nothing
    theirs = theirs(DIM, DIM, DEPTH, norm="batch_norm", jk="last", **settings).eval()
    nn.init.eye_(theirs.lin.weight)
    nn.init.zeros_(theirs.lin.bias)
    for block, conv, norm in zip(ours.layers, theirs.convs, theirs.norms, strict=True):
        copy(block.conv, conv)
        copy_norm(block.norm, norm)
    expected = theirs(x, graph.edge_index)
    for block in ours.layers:
        x = block(x, graph)
    assert x.std() > 0.1
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("is_directed", [False, True])
def test_gat_scores_edges_as_pytorch_geometric_does(is_directed):
    graph = random_batch([5, 1, 4, 7, 3], 0.4, seed=0, is_directed=is_directed, edge_values=True)
    x = torch.randn(graph.num_nodes, DIM, generator=generator(1))
    ours = GAT(DIM, WITH_EDGES.edges, heads=HEADS).eval()
    assert ours.edges is not None
    assert ours.edge_score is not None
    theirs = pyg.GATConv(DIM, DIM // HEADS, HEADS, edge_dim=DIM)
    copy_gat(ours, theirs)
    score = theirs.lin_edge.weight.unflatten(0, (HEADS, -1)) * theirs.att_edge[0, :, :, None]
    ours.edge_score.weight.data.copy_(score.sum(dim=1))  # two linear maps, one after the other
    torch.testing.assert_close(ours(x, graph), theirs(x, graph.edge_index, ours.edges(graph)))


def test_attention_of_gat_adds_up_to_one(graph, x):
    on_edges, on_self = GAT(DIM, WITH_EDGES.edges, heads=HEADS).eval().weights(x, graph)
    torch.testing.assert_close(graph.edges_into @ on_edges + on_self, torch.ones(graph.num_nodes, HEADS))


def test_large_scores_do_not_overflow(graph, x):
    assert GAT(DIM, heads=HEADS)(1e4 * x, graph).isfinite().all()


def test_gcn_with_edges_node_by_node(graph, x):
    conv = GCNE(DIM, WITH_EDGES.edges).eval()
    nn.init.normal_(conv.loop)
    h, e = conv.project(x), conv.edges(graph)
    d = [1 + int(n) for n in graph.in_degree]
    expected = torch.stack([(h[v] + conv.loop).relu() / d[v] for v in range(graph.num_nodes)])
    for i, (u, v) in enumerate(graph.edge_index.T.tolist()):
        expected[v] += (h[u] + e[i]).relu() / (d[u] * d[v]) ** 0.5
    torch.testing.assert_close(conv(x, graph), expected)


def test_sage_with_edges_node_by_node(graph, x):
    conv = SAGE(DIM, WITH_EDGES.edges).eval()
    assert conv.edges is not None
    e, expected = conv.edges(graph), []
    for v in range(graph.num_nodes):
        around = [(x[u] + e[i]).relu() for i, (u, w) in enumerate(graph.edge_index.T.tolist()) if w == v]
        mean = torch.stack(around).mean(dim=0) if around else torch.zeros(DIM)
        expected.append(conv.own(x[v]) + conv.others(mean))
    torch.testing.assert_close(conv(x, graph), torch.stack(expected))


@pytest.mark.parametrize("build", [gcn_virtual, gin_virtual])
def test_the_virtual_node_graph_by_graph(build, graph, x):
    model = build(VirtualConfig(DIM, DEPTH), WITH_EDGES, 1).eval()
    (stack,) = model.layers
    assert isinstance(stack, WithVirtualNode)
    nn.init.normal_(stack.start)
    for norm in (m for m in stack.modules() if isinstance(m, BatchNorm)):
        norm.running_mean.normal_()

    virtual, y, sizes = [stack.start] * graph.num_graphs, x, graph.sizes.tolist()
    for i, layer in enumerate(stack.layers):
        heard = [part + z for part, z in zip(y.split(sizes), virtual, strict=True)]
        y = layer(torch.cat(heard), graph)
        if i < DEPTH - 1:
            virtual = [by_hand(stack.updates[i], z + h.sum(dim=0)) for z, h in zip(virtual, heard, strict=True)]
    torch.testing.assert_close(stack(x, graph), y)


def by_hand(update, z):
    for linear, norm in ((update.first, update.norm_first), (update.second, update.norm_second)):
        z = linear.weight @ z
        z = ((z - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias).relu()
    return z


def test_the_virtual_node_starts_at_zero_and_is_updated_after_every_layer_but_the_last():
    (stack,) = gin_virtual(VirtualConfig(DIM, DEPTH), PLAIN, 1).layers
    assert isinstance(stack, WithVirtualNode)
    assert not stack.start.any()
    assert len(stack.updates) == DEPTH - 1
    assert stack.state_dict()["layers.0.conv.mlp.first.weight"].shape == (2 * DIM, DIM)


@pytest.mark.parametrize("build", [gcn_virtual, gin_virtual])
def test_with_a_virtual_node_the_last_layer_and_the_head_are_linear_at_their_end(build, graph):
    model = build(VirtualConfig(DIM, DEPTH, readout="mean"), WITH_EDGES, 3)
    (stack,) = model.layers
    nodes = stack(*model.encode(graph))
    assert (nodes < 0).any()
    (answer,) = model.head
    means = torch.stack([part.mean(dim=0) for part in nodes.split(graph.sizes.tolist())])
    torch.testing.assert_close(model(graph), means @ answer.weight.T + answer.bias)


@pytest.mark.parametrize(
    ("build", "config"),
    [
        (gcn, GcnConfig),
        (sage, SageConfig),
        (gat, GatConfig),
        (gcn_virtual, VirtualConfig),
        (gin_virtual, VirtualConfig),
    ],
)
def test_edges_are_read_unless_told_not_to(build, config, graph):
    def changed_by_edges(reads_edges):
        torch.manual_seed(0)
        model = build(config(8, 2, reads_edges=reads_edges), WITH_EDGES, 3).eval()
        before = model(graph)
        graph.edge_values.neg_()
        return not torch.allclose(model(graph), before)

    assert changed_by_edges(True)
    assert not changed_by_edges(False)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="heads must divide dim, got 3 heads for a width of 64"):
        GatConfig(heads=3)
    for config in (GcnConfig, SageConfig, GatConfig, VirtualConfig):
        with pytest.raises(InputError, match="depth must be at least 1"):
            config(depth=0)
        with pytest.raises(InputError, match="dropout must be below 1"):
            config(dropout=1.0)
        with pytest.raises(InputError, match="readout must be one of"):
            config(readout="median")
