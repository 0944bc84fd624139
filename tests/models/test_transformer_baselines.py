"""Each transformer of the tables does what its paper says: held against independent code, or a slow twin."""

from importlib import import_module
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import networkx as nx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from strategies import CATEGORIES, EDGE_LABELS, alone, batches, random_batch
from torch import Tensor, nn

from mnagt.attention.kernels import Hop, Hops, Kernel, Structural
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.attention.pairs import edge_pairs, self_pairs
from mnagt.errors import InputError
from mnagt.graphs.adjacency import propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import shortest_paths
from mnagt.graphs.features import Columns, Features
from mnagt.models.gps import GatedGcn, GpsConfig, GpsLayer
from mnagt.models.graphormer import GraphormerConfig, PathBias, graphormer
from mnagt.models.gt import EdgeAttention, GtConfig, gt
from mnagt.models.sat import DegreeScaledAttention, StructureExtractor
from mnagt.nn.convolutions import GIN, GINE
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import IdentityResidual, PostNormLayer, SelfAttention, feed_forward
from mnagt.nn.norms import BatchNorm, LayerNorm
from mnagt.nn.readouts import ClsNode

DIM, HEADS, HEAD_DIM = 14, 7, 5
EDGES = Columns((CATEGORIES,) * EDGE_LABELS)


class Propagations(nn.Module):
    """A GNN without parameters: k steps of Â."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor, graph: GraphBatch) -> Tensor:
        for _ in range(self.k):
            x = propagate(x, graph)
        return x


def some_batch(seed: int = 0, **parts: bool) -> GraphBatch:
    """Single nodes, graphs without edges and a complete one among them."""
    return random_batch([5, 1, 4, 2, 7, 2, 1, 3], 0.4, seed, **parts)


def nodes(graph: GraphBatch, seed: int = 0) -> Tensor:
    return torch.randn(graph.num_nodes, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def post_norm(kernel: Kernel) -> PostNormLayer:
    torch.manual_seed(0)
    return PostNormLayer(
        MultiKernelAttention(DIM, [kernel], heads=HEADS, head_dim=HEAD_DIM),
        mixer=Mean(DIM, 1),
        residual=IdentityResidual(),
        ffn=feed_forward(DIM, 2 * DIM, activation=nn.ReLU),
        norms=(LayerNorm(DIM), LayerNorm(DIM)),
    ).double()


def randomised(module: nn.Module) -> nn.Module:
    """Norms that have learned something and seen something, in float64."""
    for part in module.modules():
        if isinstance(part, BatchNorm | LayerNorm):
            for tensor in (*part.parameters(), *part.buffers()):
                tensor.data.uniform_(0.5, 1.5)
    return module.double()


# GraphTrans


@given(batches())
def test_a_layer_normalised_last_is_that_of_the_original_transformer(graph):
    ours = post_norm(Hop(0))
    ours.attention = MultiKernelAttention(DIM, [Hop(0)], heads=HEADS, head_dim=2).double()
    theirs = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, dropout=0.0, batch_first=True, dtype=torch.double)
    maps = (ours.attention.to_query, ours.attention.to_key, ours.attention.to_value)
    theirs.self_attn.in_proj_weight.data = torch.cat([m.weight.data[0] for m in maps])
    theirs.self_attn.out_proj.weight.data = ours.attention.to_out.weight.data[0]
    theirs.linear1.load_state_dict(ours.ffn.get_submodule("0").state_dict())
    theirs.linear2.load_state_dict(ours.ffn.get_submodule("3").state_dict())
    x = nodes(graph)
    expected = [theirs(part[None])[0] for part in x.split(graph.sizes.tolist())]
    torch.testing.assert_close(ours(x, graph), torch.cat(expected))


# SAT


@pytest.mark.parametrize("k", [0, 1, 3])
def test_sat_with_a_gnn_without_parameters_is_attention_through_one_hop(k):
    graph = some_batch()
    ours, theirs = post_norm(Hop(k)), post_norm(Structural(Propagations(k)))
    torch.testing.assert_close(ours(nodes(graph), graph), theirs(nodes(graph), graph))


@given(batches())
def test_sat_attention_is_that_of_a_slow_twin(graph):
    torch.manual_seed(0)
    extractor = StructureExtractor(DIM, 2, "gin", Columns())
    attention = DegreeScaledAttention(DIM, [Structural(extractor)], heads=HEADS, head_dim=HEAD_DIM)
    randomised(attention).eval()
    x = nodes(graph)
    expected = [slow_sat(attention, extractor, x[graph.graph_of_node == g], graph, g) for g in range(graph.num_graphs)]
    torch.testing.assert_close(attention(Hops(x, graph))[:, 0], torch.cat(expected))


def slow_sat(attention: DegreeScaledAttention, extractor: StructureExtractor, x: Tensor, graph: GraphBatch, g: int):
    """One graph, with its dense adjacency matrix."""
    part = alone(graph, g)
    adjacency = torch.zeros(len(x), len(x), dtype=x.dtype)
    adjacency[part.edge_index[1], part.edge_index[0]] = 1
    seen = [x]
    for conv in extractor.convs:
        assert isinstance(conv, GIN)
        hidden = evaluated(conv.mlp.norm, conv.mlp.first(seen[-1] + adjacency @ seen[-1])).relu()
        seen.append(conv.mlp.second(hidden).relu())
    struct = extractor.project(evaluated(extractor.norm, torch.cat(seen, dim=1)))
    maps = (attention.to_query, attention.to_key, attention.to_value)
    q, k, v = (m.weight[0].view(HEADS, HEAD_DIM, DIM) for m in maps)
    out = []
    for h in range(HEADS):
        score = (struct @ q[h].T) @ (struct @ k[h].T).T / HEAD_DIM**0.5
        out.append(score.softmax(dim=1) @ (x @ v[h].T))
    degree = 1 + adjacency.sum(dim=1, keepdim=True)
    return degree**-0.5 * (torch.cat(out, dim=1) @ attention.to_out.weight[0].T)


def evaluated(norm: Any, x: Tensor) -> Tensor:
    return (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias


# GPS


@pytest.mark.parametrize("reads_edges", [False, True])
@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_gps_layer_is_that_of_pytorch_geometric(reads_edges, is_training, seed):
    from torch_geometric.nn import GINConv, GINEConv, GPSConv

    torch.manual_seed(seed)
    graph = some_batch(seed, edge_labels=reads_edges)
    conv = GINE(DIM, EDGES) if reads_edges else GIN(DIM)
    ours = GpsLayer(DIM, conv, SelfAttention(DIM, HEADS))
    randomised(ours).train(is_training)
    mlp = nn.Sequential(nn.Linear(DIM, DIM, bias=False), nn.BatchNorm1d(DIM), nn.ReLU(), nn.Linear(DIM, DIM))
    theirs = GPSConv(DIM, GINEConv(mlp) if reads_edges else GINConv(mlp), heads=HEADS, attn_type="multihead").double()
    pairs: list[tuple[nn.Module, nn.Module]] = [(mlp[0], conv.mlp.first), (mlp[1], conv.mlp.norm)]
    pairs += [(mlp[3], conv.mlp.second), (theirs.mlp[0], ours.mlp[0]), (theirs.mlp[3], ours.mlp[3])]
    pairs += [(theirs.norm1.module, ours.norm_conv), (theirs.norm2.module, ours.norm_attention)]
    pairs += [(theirs.norm3.module, ours.norm_mlp), (theirs.attn.out_proj, ours.attention.to_out)]
    for copy, original in pairs:
        copy.load_state_dict(original.state_dict(), strict=False)
    theirs.attn.in_proj_weight.data = ours.attention.to_inner.weight.data
    theirs.attn.in_proj_bias.data = ours.attention.to_inner.bias.data.uniform_(-1, 1)
    theirs.train(is_training)
    x, carried = nodes(graph), {"edge_attr": conv.edges(graph)} if isinstance(conv, GINE) else {}
    expected = theirs(x, graph.edge_index, graph.graph_of_node, **carried)
    torch.testing.assert_close(ours(x, graph), expected)
    for copy, original in pairs:
        if isinstance(original, BatchNorm):
            torch.testing.assert_close(original.running_var, copy.running_var)


@pytest.mark.parametrize("seed", range(3))
def test_gates_node_by_node_and_edge_by_edge(seed):
    torch.manual_seed(seed)
    graph = some_batch(seed)
    conv = GatedGcn(DIM)
    randomised(conv).eval()
    x, e = nodes(graph), torch.randn(graph.num_edges, DIM, dtype=torch.float64)
    gates = [
        conv.edge(e[i]) + conv.start(x[u]) + conv.end(x[v]) for i, (u, v) in enumerate(graph.edge_index.T.tolist())
    ]
    expected = []
    for v in range(graph.num_nodes):
        into = [(gates[i].sigmoid(), u) for i, (u, w) in enumerate(graph.edge_index.T.tolist()) if w == v]
        heard = sum((share * conv.sent(x[u]) for share, u in into), start=torch.zeros_like(x[v]))
        total = sum((share for share, _ in into), start=torch.zeros_like(x[v]))
        expected.append(x[v] + evaluated(conv.norm, conv.own(x[v]) + heard / (total + 1e-6)).relu())
    after, edges = conv(x, e, graph)
    torch.testing.assert_close(after, torch.stack(expected))
    torch.testing.assert_close(edges, e + evaluated(conv.norm_edge, torch.stack(gates)).relu())


def test_the_last_layer_leaves_edges_as_they_are():
    graph = some_batch(0)
    e = torch.randn(graph.num_edges, DIM, dtype=torch.float64)
    _, edges = GatedGcn(DIM, is_last=True).double()(nodes(graph), e, graph)
    assert edges is e


@pytest.mark.parametrize("config", [GpsConfig, GraphormerConfig, GtConfig])
def test_heads_that_do_not_divide_the_width_are_refused(config):
    with pytest.raises(InputError, match="heads must divide dim, got 7 heads for a width of 64"):
        config(dim=64, heads=7)


# Graphormer


@given(batches(edge_labels=True, is_directed=None))
def test_the_bias_of_graphormer_is_that_of_a_slow_twin(graph):
    torch.manual_seed(0)
    bias = PathBias(HEADS, 3, EDGES).double()
    more = ClsNode(DIM).prepare(torch.zeros(graph.num_nodes, DIM), graph)[1]
    expected = [slow_path_bias(bias, alone(more, g)) for g in range(graph.num_graphs)]
    torch.testing.assert_close(bias(more), torch.cat([e.flatten(0, 1) for e in expected]))


def slow_path_bias(bias: PathBias, graph: GraphBatch) -> Tensor:
    """One graph, path by path; its last node is the virtual one."""
    assert bias.edges is not None
    assert bias.places is not None
    n, limit, edges = graph.num_nodes, bias.max_distance, bias.edges(graph)
    number = {ends: e for e, ends in enumerate(map(tuple, graph.edge_index.T.tolist()))}
    network = nx.DiGraph(list(number))
    network.add_nodes_from(range(n))
    lengths = dict(nx.all_pairs_shortest_path_length(network))
    out = torch.zeros(n, n, HEADS, dtype=torch.double)
    for i in range(n):
        for j in range(n):
            distance = lengths[j].get(i, limit + 1)
            if n - 1 in (i, j):
                out[i, j] = bias.distances.weight[limit + 2]
                continue
            out[i, j] = bias.distances.weight[min(distance, limit + 1)]
            if 1 <= distance <= limit:
                paths = list(nx.all_shortest_paths(network, j, i))
                for path in paths:
                    for place, ends in enumerate(pairwise(path)):
                        term = edges[number[ends]] @ bias.places[place]
                        out[i, j] = out[i, j] + term / distance / len(paths)
    return out


def test_graphormer_is_its_slow_twin():
    features = Features(edges=EDGES)
    graph = some_batch(edge_labels=True)
    model = graphormer(GraphormerConfig(dim=DIM, heads=HEADS, depth=2, max_distance=4), features, 3)
    randomised(model).eval()
    expected = torch.cat([slow_graphormer(model, alone(graph, g)) for g in range(graph.num_graphs)])
    torch.testing.assert_close(model(graph), expected)


def slow_graphormer(model: GraphModel, graph: GraphBatch) -> Tensor:
    stack: Any = model.layers[0]
    x, more = model.readout.prepare(model.encoder(graph), graph)
    bias = slow_path_bias(stack.bias, more)
    for layer in stack.layers:
        q, k, v = layer.attention.to_inner(layer.norm_attention(x)).unflatten(1, (3, HEADS, -1)).unbind(1)
        score = torch.einsum("ihd,jhd->ijh", q, k) / q.shape[2] ** 0.5 + bias
        z = torch.einsum("ijh,jhd->ihd", score.softmax(dim=1), v)
        x = x + layer.attention.to_out(z.flatten(1))
        x = x + layer.ffn(layer.norm_ffn(x))
    return model.head(stack.norm(x)[-1:])


def test_graphormer_works_out_paths_once_a_batch():
    model = graphormer(GraphormerConfig(depth=4), Features(edges=EDGES), 3)
    with patch.object(import_module("mnagt.attention.biases"), "shortest_paths", wraps=shortest_paths) as worked_out:
        model(some_batch(edge_labels=True))
    assert worked_out.call_count == 1


# GT


@given(batches(edge_labels=None, is_directed=None))
def test_gt_is_its_slow_twin(graph):
    torch.manual_seed(0)
    columns = EDGES if graph.edge_labels is not None else Columns()
    model = gt(GtConfig(dim=DIM, heads=HEADS, depth=3), Features(edges=columns), 3)
    randomised(model).eval()
    stack = model.layers[0]
    x = nodes(graph)
    torch.testing.assert_close(stack(x, graph), slow_gt(stack, x, graph))


def slow_gt(stack: Any, x: Tensor, graph: GraphBatch) -> Tensor:
    """Edge by edge, as their code reads."""
    e = None if stack.edges is None else stack.edges(graph)
    for layer in stack.layers:
        maps = layer.attention
        q, k, v = (project(x) for project in (maps.to_query, maps.to_key, maps.to_value))
        total, weights = torch.zeros_like(x), torch.zeros_like(x)
        scores = []
        for number, (j, i) in enumerate(graph.edge_index.T.tolist()):
            score = k[j] * q[i] / (DIM // HEADS) ** 0.5
            score = score if e is None else score * maps.to_edge(e[number])
            scores.append(score)
            weight = score.view(HEADS, -1).sum(dim=1, keepdim=True).clamp(-5, 5).exp()
            weight = weight.expand(-1, DIM // HEADS).flatten()
            total[i], weights[i] = total[i] + weight * v[j], weights[i] + weight
        x = slow_branches(layer.of_nodes, x, total / (weights + 1e-6))
        if e is not None and layer.of_edges is not None and scores:
            e = slow_branches(layer.of_edges, e, torch.stack(scores))
    return x


def slow_branches(branches: Any, x: Tensor, z: Tensor) -> Tensor:
    x = evaluated(branches.norm_attention, x + branches.project(z))
    return evaluated(branches.norm_ffn, x + branches.ffn[3](F.relu(branches.ffn[0](x))))


def test_attention_along_edges_and_loops_is_attention_with_a_bias():
    """Without edge columns GT is the kernel ``Hop(0)`` with a mask of all pairs that no edge connects."""

    class EdgeMask(nn.Module):
        def forward(self, graph: GraphBatch) -> Tensor:
            bias = torch.full((int(graph.pair_ptr[-1]), 1), -torch.inf)
            bias[edge_pairs(graph)] = bias[self_pairs(graph)] = 0.0
            return bias

    torch.manual_seed(0)
    graph = some_batch()
    loops = torch.arange(graph.num_nodes).expand(2, -1)
    looped = GraphBatch.from_edges(torch.cat([graph.edge_index, loops], dim=1), graph.sizes)
    along = EdgeAttention(DIM, HEADS, reads_edges=False).double()
    paired = MultiKernelAttention(DIM, [Hop(0)], heads=HEADS, head_dim=2, bias=EdgeMask()).double()
    for name in ("to_query", "to_key", "to_value"):
        getattr(paired, name).weight.data = getattr(along, name).weight.data[None]
    paired.to_out.weight.data = torch.eye(DIM, dtype=torch.double)[None]
    x = nodes(graph)
    expected = paired(Hops(x, graph))[:, 0]
    torch.testing.assert_close(along(x, None, looped)[0], expected, rtol=1e-5, atol=1e-5)
