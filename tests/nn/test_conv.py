"""Layers on PyTorch Geometric's tensors compute what the internal layers do, from any parts, for any order of edges."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, generator, random_batch
from torch import Tensor, nn

import mnagt.nn as mnn
from mnagt.attention import attend as backends
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.models.registry import build_model
from mnagt.reference import paper

DIM, HEADS, HEAD_DIM = 6, 2, 5


def vectors(rows: int, dim: int = DIM) -> Tensor:
    return torch.randn(rows, dim, generator=generator(1))


def shuffled(graph: mnn.GraphBatch, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The edges in another order, and that order."""
    order = torch.randperm(graph.num_edges, generator=generator(seed))
    return graph.edge_index[:, order], order


def test_with_the_settings_of_the_paper_it_is_the_layer_of_mnagt_paper():
    settings = {"dim": 12, "depth": 1, "heads": 3, "head_dim": 5, "max_hop": 2, "adjacency": "row"}
    layer = build_model("mnagt-paper", settings, Features(), 1).layers[0]
    conv = mnn.MNAGTConv(12, heads=3, head_dim=5, hops=2, adjacency="row", dropout=0.2)
    assert conv.state_dict().keys() == layer.state_dict().keys()
    conv.load_state_dict(layer.state_dict())
    graph = random_batch([5, 1, 7], 0.4, seed=0)
    edge_index, _ = shuffled(graph)
    x = vectors(13, 12)
    torch.testing.assert_close(conv.eval()(x, edge_index, graph.graph_of_node), layer.eval()(x, graph))
    torch.manual_seed(3)
    expected = layer.train()(x, graph)
    torch.manual_seed(3)
    torch.testing.assert_close(conv.train()(x, edge_index, graph.graph_of_node), expected)


@given(batches(is_directed=None), st.integers(0, 100))
def test_the_order_of_edges_and_how_graphs_are_given_do_not_matter(graph, seed):
    torch.manual_seed(0)
    conv = mnn.MNAGTConv(DIM, heads=HEADS, hops=[0, 2]).double()
    x = vectors(graph.num_nodes).double()
    edge_index, _ = shuffled(graph, seed)
    expected = conv(x, graph)
    torch.testing.assert_close(conv(x, edge_index, graph.graph_of_node), expected)
    explicit = mnn.GraphBatch.from_edges(edge_index, batch=graph.graph_of_node)
    torch.testing.assert_close(conv(x, explicit), expected)
    first = slice(0, int(graph.sizes[0]))
    is_first = edge_index[0] < first.stop
    torch.testing.assert_close(conv(x[first], edge_index[:, is_first]), expected[first])  # batch=None: one graph


def test_attention_is_that_of_the_reference_on_each_graph():
    graph = random_batch([5, 1, 7], 0.4, seed=0)
    torch.manual_seed(0)
    attention = mnn.MultiNeighborhoodAttention(DIM, heads=HEADS, head_dim=HEAD_DIM, hops=2).double()
    x = vectors(13).double()
    z, weights = attention(x, graph.edge_index, graph.graph_of_node, return_weights=True)
    torch.testing.assert_close(attention(x, graph.edge_index, graph.graph_of_node), z)
    assert weights.kernels is not None
    torch.testing.assert_close(weights.kernels.sum(dim=1), torch.ones(13).double())
    assert [tuple(each.shape) for each in weights.pairs] == [(3, HEADS, n, n) for n in (5, 1, 7)]
    edges = [(int(u), int(v)) for u, v in graph.edge_index.T if u < 5]
    hop = paper.adjacency_hat(edges, 5, "sym").double() @ x[:5]
    query, key = (getattr(attention.attention, f"to_{name}").weight[1][:HEAD_DIM] for name in ("query", "key"))
    score = (hop @ query.T) @ (hop @ key.T).T / HEAD_DIM**0.5
    torch.testing.assert_close(weights.pairs[0][1, 0], score.softmax(dim=1))


@pytest.mark.parametrize("mixer", ["mean", "sum", "concat"])
def test_mixers_without_weights_give_none(mixer):
    attention = mnn.MultiNeighborhoodAttention(DIM, heads=HEADS, mixer=mixer)
    _, weights = attention(vectors(3), torch.tensor([[0, 1], [1, 0]]), return_weights=True)
    assert weights.kernels is None


def test_the_special_cases_of_section_4_3_are_settings():
    graph, x = random_batch([5, 7], 0.4, seed=0), vectors(12)
    for kernel, value in ((mnn.Hop(2), 0), (mnn.Hop(2, value=2), 2)):
        conv = mnn.MNAGTConv(DIM, heads=HEADS, kernels=[kernel])
        hops = conv.hops(x, graph)
        triplet = kernel(hops)
        assert triplet.query is hops[2]
        assert triplet.value is hops[value]
        assert [type(each) for each in conv.attention.kernels] == [mnn.Hop]
    assert [kernel.k for kernel in mnn.MNAGTConv(DIM, heads=1, hops=[0, 2, 4]).attention.kernels] == [0, 2, 4]


def test_a_kernel_of_ones_own_and_any_modules_are_parts():
    class Difference(mnn.Kernel):
        def forward(self, hops: mnn.Hops) -> mnn.Triplet:
            h = hops[0] - hops[1]
            return mnn.Triplet(h, h, hops[0])

    class FirstKernel(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z[:, 0]

    conv = mnn.MNAGTConv(
        DIM,
        heads=HEADS,
        kernels=[mnn.Hop(0), Difference()],
        mixer=FirstKernel(),
        residual=nn.Linear(DIM, DIM),
        norm=nn.RMSNorm,
        ffn=nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU()),
        layer_scale=0.1,
    )
    graph, x = random_batch([5, 1, 7], 0.4, seed=0), vectors(13).requires_grad_()
    z = conv.residual.module(x) + 0.1 * conv.attend(x, graph)[:, 0]  # type: ignore[operator]
    expected = z + 0.1 * conv.ffn(conv.norm_ffn.norm(z))  # type: ignore[operator]
    torch.testing.assert_close(conv(x, graph.edge_index, graph.graph_of_node), expected)
    norms = (nn.LayerNorm(DIM), nn.BatchNorm1d(DIM))
    assert mnn.MNAGTConv(DIM, heads=1, norm=norms).norm_ffn.norm is norms[1]
    assert isinstance(mnn.MNAGTConv(DIM, heads=1, norm="batch").norm_attention, mnn.BatchNorm)
    assert isinstance(mnn.MNAGTConv(DIM, heads=1, residual="identity").residual, mnn.IdentityResidual)


def test_convolutions_of_pytorch_geometric_are_kernels_and_residuals():
    pyg = pytest.importorskip("torch_geometric.nn")
    graph, x = random_batch([5, 1, 7], 0.4, seed=0, is_directed=True), vectors(13)
    edge_index, _ = shuffled(graph)
    edge_attr = torch.randn(graph.num_edges, 3, generator=generator(2), requires_grad=True)
    torch.manual_seed(0)
    gnn: Any = [pyg.GCNConv(DIM, DIM), pyg.GINEConv(nn.Linear(DIM, DIM), edge_dim=3)]
    residual = pyg.GINEConv(nn.Linear(DIM, DIM), edge_dim=3)
    conv = mnn.MNAGTConv(DIM, heads=HEADS, hops=2, gnn=gnn, residual=residual, norm=pyg.GraphNorm)
    kernels: Any = conv.attention.kernels
    assert [kernel.describe() for kernel in kernels] == ["GnnHop(0)", "GnnHop(1)", "GnnHop(2)"]
    batch = graph.graph_of_node
    norms: list[Any] = [conv.norm_attention.norm, conv.norm_ffn.norm]
    normed = norms[0](x, batch)
    hops = [normed, gnn[0](normed, edge_index)]
    hops.append(gnn[1](hops[1], edge_index, edge_attr))
    seen = conv.hops(x, mnn.GraphBatch.from_edges(edge_index, batch=batch).with_edge_attr(edge_attr))
    for k in range(3):
        torch.testing.assert_close(seen.gnn_output(k), hops[k])
    z = conv.mixer(conv.attention(seen)) + residual(x, edge_index, edge_attr)
    expected = z + conv.ffn(norms[1](z, batch))
    out = conv(x, edge_index, batch, edge_attr)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(each.square().sum(), edge_attr)[0] for each in (out, expected)), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(InputError, match="GINEConv reads edge_attr: give it to the layer"):
        conv(x, edge_index, batch)
    structural = mnn.MNAGTConv(DIM, heads=HEADS, kernels=[mnn.Structural(pyg.GCNConv(DIM, DIM))])
    assert structural(x, edge_index, batch).shape == x.shape


@given(batches(), st.sampled_from([(), (2,), (2, 3)]))
def test_attend_is_the_reference(graph, heads):
    q, k, v = (torch.randn(graph.num_nodes, *heads, 5, generator=generator(s)).double() for s in range(3))
    q.requires_grad_()
    z = mnn.attend(q, k, v, batch=graph.graph_of_node)
    wide = [t if heads else t[:, None] for t in (q, k, v)]
    expected = backends.attend(wide[0], wide[1], wide[2], graph, backend="reference").view_as(v)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), q)[0] for each in (z, expected)))
    torch.testing.assert_close(mnn.attend(q, k, v, graph), expected)


BATCH = torch.tensor([0, 0, 0, 1, 1])
HEADS_OF_5 = torch.randn(5, 4, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": HEADS_OF_5[:3]}, r"key must be \[5, 4, 6\] of float32, as query is, got \[3, 4, 6\]"),
        ({"key": torch.randn(7, 4, 6)}, "key must be"),
        ({"key": HEADS_OF_5[:, :1]}, "repeat heads that are shared"),
        ({"value": HEADS_OF_5[..., :3]}, "value must be"),
        ({"value": HEADS_OF_5.double()}, "value must be .* got .* of float64"),
        (dict.fromkeys(("query", "key", "value"), HEADS_OF_5.long()), "query must be .* of floats"),
        ({"bias": torch.zeros(3, 1)}, r"bias must be \[13, 4\] or \[13, 1\]"),
        ({"bias": torch.zeros(14, 1)}, "a row for each pair of nodes"),
        ({"bias": torch.zeros(13, 3)}, "bias must be"),
    ],
)
def test_attend_refuses_what_does_not_fit_together(change, message):
    with pytest.raises(InputError, match=message):
        mnn.attend(**{"query": HEADS_OF_5, "key": HEADS_OF_5, "value": HEADS_OF_5, "batch": BATCH} | change)


def test_attend_without_a_batch_is_one_graph():
    q, k, v = (torch.randn(7, 2, 5, generator=generator(s)) for s in range(3))
    wide = [t.transpose(0, 1) for t in (q, k, v)]
    fused = nn.functional.scaled_dot_product_attention(wide[0], wide[1], wide[2])
    torch.testing.assert_close(mnn.attend(q, k, v), fused.transpose(0, 1))


@pytest.mark.parametrize("readout", [*mnn.READOUTS, None])
def test_a_whole_network_learns(readout):
    torch.manual_seed(0)
    model = mnn.GraphTransformer(DIM, 8, 2, 3, heads=2, hops=[0, 1], readout=readout)
    graph, x = random_batch([5, 1, 7], 0.4, seed=0), vectors(13)
    out = model(x, graph.edge_index, graph.graph_of_node)
    assert out.shape == (13 if readout is None else 3, 3)
    out.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    torch.testing.assert_close(model(x, graph), out)


def test_a_network_makes_its_layers_one_by_one():
    def layer(i: int) -> nn.Module:
        return mnn.MNAGTConv(8, heads=2, kernels=[mnn.Hop(3, value=3)] if i == 0 else [mnn.Hop(0)])

    model = mnn.GraphTransformer(DIM, 8, 3, 2, layer=layer, encoder=nn.Sequential(nn.Linear(DIM, 8), nn.ReLU()))
    layers: list[Any] = list(model.layers)
    assert [each.attention.kernels[0].describe() for each in layers] == ["Hop(3, value=3)", "Hop(0)", "Hop(0)"]
    with pytest.raises(TypeError, match="layer makes the layers; give it these settings: hops"):
        mnn.GraphTransformer(DIM, 8, 3, 2, layer=layer, hops=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 4}, "heads must divide channels, got 4 heads for 6; or give head_dim"),
        ({"heads": 2, "hops": []}, "hops must be a whole number from 0, or some of them"),
        ({"heads": 2, "hops": -1}, "hops must be a whole number from 0"),
        ({"heads": 2, "kernels": []}, "attention needs a kernel"),
        ({"heads": 2, "kernels": ["hops"]}, "no kernel 'hops'; did you mean 'hop'"),
        ({"heads": 2, "kernels": ["hop"]}, r"kernel 'hop' needs arguments; give Hop\(...\) in place of its name"),
        ({"heads": 2, "gnn": [nn.Linear(6, 6)], "hops": 2}, "output of layer 2 of a GNN, and gnn has 1 layers"),
        ({"heads": 2, "mixer": "average"}, "no mixer 'average'"),
        ({"heads": 2, "residual": "skip"}, "no residual 'skip'"),
        ({"heads": 2, "norm": "group"}, "no norm 'group'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        mnn.MNAGTConv(DIM, **settings)


def test_copies_and_state_dicts_give_the_same_outputs():
    torch.manual_seed(0)
    graph, x = random_batch([5, 1, 7], 0.4, seed=0), vectors(13)
    model = mnn.GraphTransformer(DIM, 8, 2, 3, heads=2, norm="batch")
    model(x, graph)  # running statistics
    other = mnn.GraphTransformer(DIM, 8, 2, 3, heads=2, norm="batch")
    other.load_state_dict(model.state_dict())
    expected = model.eval()(x, graph.edge_index, graph.graph_of_node)
    torch.testing.assert_close(other.eval()(x, graph.edge_index, graph.graph_of_node), expected, rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(model)(x, copy.deepcopy(graph)), expected, rtol=0, atol=0)
    assert not {id(p) for p in copy.deepcopy(model).parameters()} & {id(p) for p in model.parameters()}


def test_heads_learn_neighbourhoods_in_models_of_others_too():
    torch.manual_seed(0)
    conv = mnn.MNAGTConv(DIM, heads=HEADS, hops=[0], eigenpairs=4, degree=3, gate=True)
    graph = random_batch([5, 1, 7], 0.4, seed=0)
    edge_index, _ = shuffled(graph)
    x = vectors(graph.num_nodes).requires_grad_()
    found = conv(x, edge_index, graph.graph_of_node)
    torch.testing.assert_close(found, mnn.Layer.forward(conv, x, graph))
    found.sum().backward()
    gradients = {name: p.grad for name, p in conv.named_parameters() if p.grad is not None}
    assert gradients["attention.spectral.coefficients"].any()
    attention = mnn.MultiNeighborhoodAttention(DIM, heads=HEADS, hops=1, eigenpairs=4, degree=3, gate=True)
    z, weights = attention(x, edge_index, graph.graph_of_node, return_weights=True)
    gate = attention.attention.gate
    assert z.shape == x.shape
    assert gate is not None
    for size, pairs in zip([5, 1, 7], weights.pairs, strict=True):
        torch.testing.assert_close(pairs.sum(dim=3), torch.ones(2, HEADS, size))


def test_a_norm_that_is_given_once_is_copied_for_the_feed_forward():
    conv = mnn.MNAGTConv(DIM, heads=HEADS, norm=nn.LayerNorm(DIM))
    norms: list[Any] = [conv.norm_attention, conv.norm_ffn]
    assert [type(each.norm) for each in norms] == [nn.LayerNorm, nn.LayerNorm]
    assert norms[0].norm.weight is not norms[1].norm.weight
