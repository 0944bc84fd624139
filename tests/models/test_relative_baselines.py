"""GraphiT, GRPE, GROVER, Gophormer and SAN answer to their papers, one graph at a time with dense matrices."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import CATEGORIES, EDGE_LABELS, EDGE_VALUES, batches, order_within, random_batch, renamed
from torch import Tensor, nn

from mnagt.attention.biases import ProximityBias
from mnagt.attention.kernels import Hops
from mnagt.errors import InputError
from mnagt.graphs import dense
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import spectrum
from mnagt.graphs.features import Columns, Features
from mnagt.models.gophormer import GophormerConfig, gophormer
from mnagt.models.graphit import GraphitConfig, TiedAttention, graphit
from mnagt.models.grover import DyMpn, GroverConfig, grover
from mnagt.models.grpe import GrpeConfig, RelativeAttention, grpe
from mnagt.models.san import RealAndVirtualAttention, SanConfig, san

DIM, HEADS, HEAD_DIM = 11, 2, 3
EDGES = Columns((CATEGORIES,) * EDGE_LABELS, EDGE_VALUES)


def adjacency_of(graph: GraphBatch, g: int) -> Tensor:
    """Entry (i, j) counts the edges from j to i."""
    first, n = int(graph.node_ptr[g]), int(graph.sizes[g])
    adjacency = torch.zeros(n, n, dtype=torch.float64)
    for source, destination in (graph.edge_index.T - first).tolist():
        if 0 <= destination < n:
            adjacency[destination, source] += 1
    return adjacency


def nodes_of(rows: Tensor, graph: GraphBatch, g: int) -> Tensor:
    return rows[graph.node_ptr[g] : graph.node_ptr[g + 1]]


def laplacian_of(adjacency: Tensor) -> Tensor:
    degree = adjacency.sum(dim=1)
    scale = degree.clamp(min=1).rsqrt()
    return torch.diag((degree > 0).double()) - scale[:, None] * adjacency * scale


def heads_of(module: nn.Module, x: Tensor) -> Tensor:
    """What a projection of one kernel says, head by head."""
    assert isinstance(module.weight, Tensor)
    return (x @ module.weight[0].T).unflatten(1, (HEADS, HEAD_DIM))


def randomised(module: nn.Module) -> Any:
    """Every parameter drawn anew, in float64: no term is hidden by how it begins."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def distances_of(adjacency: Tensor) -> list[list[int]]:
    """Fewest edges from j to i, by Floyd and Warshall; a large number where there is no path."""
    n = len(adjacency)
    d = [[0 if i == j else 1 if adjacency[i, j] else 99 for j in range(n)] for i in range(n)]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                d[i][j] = min(d[i][j], d[i][k] + d[k][j])
    return d


@given(batches(max_graphs=3), st.sampled_from(["diffusion", "random-walk"]))
def test_graphit_multiplies_attention_by_a_kernel_and_normalises(graph, kernel):
    config = GraphitConfig(dim=DIM, heads=HEADS, head_dim=HEAD_DIM, kernel=kernel, beta=0.7, steps=2, gamma=0.4)
    layer = randomised(TiedAttention(config))
    x = torch.randn(graph.num_nodes, DIM, dtype=torch.float64)
    out = layer(Hops(x, graph))[:, 0]
    for g in range(graph.num_graphs):
        here, a = nodes_of(x, graph, g), adjacency_of(graph, g)
        q, v = heads_of(layer.to_query, here), heads_of(layer.to_value, here)
        if kernel == "diffusion":
            k = torch.matrix_exp(-0.7 * laplacian_of(a))
        else:
            step = torch.eye(len(a)) - 0.4 * laplacian_of(a)
            k = step @ step
        weight = torch.einsum("ihd,jhd->hij", q, q).div(HEAD_DIM**0.5).exp() * k
        weight = weight / weight.sum(dim=2, keepdim=True)
        z = torch.einsum("hij,jhd->ihd", weight, v).flatten(1) @ layer.to_out.weight[0].T
        z = z / (a.sum(dim=1, keepdim=True) + 1).sqrt()
        torch.testing.assert_close(nodes_of(out, graph, g), z, rtol=1e-5, atol=1e-6)  # the kernel is kept in float32


def test_a_diffusion_that_has_faded_out_is_no_number_to_take_the_logarithm_of():
    path = torch.arange(60)
    edges = torch.stack([path[:-1], path[1:]])
    graph = GraphBatch.from_edges(torch.cat([edges, edges.flip(0)], dim=1), [60])
    out = graphit(GraphitConfig(), Features(), 1).eval()(graph)
    assert out.isfinite().all()


@given(batches(max_graphs=3, max_nodes=5, is_directed=None), st.booleans())
def test_grpe_scores_and_values_as_printed(graph, has_columns):
    if has_columns:
        graph = random_batch(graph.sizes.tolist(), 0.5, seed=7, edge_labels=True, edge_values=True)
    limit = 2
    config = GrpeConfig(dim=DIM, heads=HEADS, head_dim=HEAD_DIM, max_distance=limit)
    layer = randomised(RelativeAttention(config, EDGES if has_columns else Columns()))
    x = torch.randn(graph.num_nodes, DIM, dtype=torch.float64)
    out = layer(Hops(x, graph))[:, 0]
    carried = layer.edges(graph).unflatten(1, (3, HEADS, HEAD_DIM)) if has_columns else None
    tables = torch.stack([layer.query_table, layer.key_table, layer.value_table])
    none, self, edge = limit + 2, limit + 3, limit + 4
    for g in range(graph.num_graphs):
        here, a, first = nodes_of(x, graph, g), adjacency_of(graph, g), int(graph.node_ptr[g])
        d, n = distances_of(a), len(a)
        q, k, v = (heads_of(to, here) for to in (layer.to_query, layer.to_key, layer.to_value))
        for i in range(n):
            relative = []
            for j in range(n):
                r = tables[:, min(d[i][j], limit + 1)] + tables[:, self if i == j else edge if a[i, j] else none]
                for e, (source, destination) in enumerate(graph.edge_index.T.tolist()):
                    if carried is not None and (destination, source) == (first + i, first + j):
                        r = r + carried[e]
                relative.append(r)
            r = torch.stack(relative, dim=1)  # role, j, head, dim
            score = (q[i] * k + q[i] * r[0] + k * r[1]).sum(dim=2) / HEAD_DIM**0.5
            z = (score.softmax(dim=0)[:, :, None] * (v + r[2])).sum(dim=0)
            torch.testing.assert_close(out[first + i], z.flatten() @ layer.to_out.weight[0].T)


@given(batches(max_graphs=3), st.integers(1, 4))
def test_gophormer_adds_a_learned_mixture_of_powers(graph, views):
    bias = randomised(ProximityBias(HEADS, views))
    out = bias(graph)
    for g in range(graph.num_graphs):
        joined = adjacency_of(graph, g) + torch.eye(int(graph.sizes[g]))
        scale = joined.sum(dim=1).rsqrt()
        step = scale[:, None] * joined * scale
        phi = torch.stack([torch.linalg.matrix_power(step, m) for m in range(views)], dim=2)
        expected = (phi @ bias.weigh.weight.T).flatten(0, 1)
        here = out[graph.pair_ptr[g] : graph.pair_ptr[g + 1]]
        torch.testing.assert_close(here, expected, rtol=1e-5, atol=1e-6)  # the powers are kept in float32


@given(batches(max_graphs=3, is_directed=None))
def test_grover_passes_messages_with_the_same_weights_each_hop(graph):
    gnn = randomised(DyMpn(DIM, Columns(), hops=2, spread=1))
    x = torch.randn(graph.num_nodes, DIM, dtype=torch.float64)
    out = gnn(x, graph)
    for g in range(graph.num_graphs):
        start = gnn.first(nodes_of(x, graph, g))
        h = start
        for _ in range(2):
            h = gnn.norm((start + gnn.each(adjacency_of(graph, g) @ h)).relu())
        torch.testing.assert_close(nodes_of(out, graph, g), h)


def test_grover_draws_the_number_of_hops_in_training_only():
    graph, x = random_batch([7], 0.4, seed=0), torch.randn(7, DIM)
    gnn = DyMpn(DIM, Columns(), hops=3, spread=1)
    fixed = []
    for hops in (2, 3, 4):
        twin = DyMpn(DIM, Columns(), hops=hops, spread=0)
        twin.load_state_dict(gnn.state_dict())
        fixed.append(twin(x, graph))
    drawn = [gnn.train()(x, graph) for _ in range(40)]
    assert all(any(torch.allclose(one, other) for other in fixed) for one in drawn)
    assert all(any(torch.allclose(one, other) for one in drawn) for other in fixed)
    torch.testing.assert_close(gnn.eval()(x, graph), fixed[1])


@given(batches(max_graphs=3, max_nodes=5, is_directed=None), st.booleans())
def test_san_attends_along_edges_and_apart_from_them_to_the_rest(graph, has_columns):
    if has_columns:
        graph = random_batch(graph.sizes.tolist(), 0.5, seed=7, edge_labels=True, edge_values=True)
    columns, gamma = EDGES if has_columns else Columns(), 0.3
    config = SanConfig(dim=DIM, heads=HEADS, head_dim=HEAD_DIM, gamma=gamma)
    layer = randomised(RealAndVirtualAttention(config, columns))
    x = torch.randn(graph.num_nodes, DIM, dtype=torch.float64)
    out = layer(Hops(x, graph))[:, 0]
    carried = layer.edges(graph).expand(graph.num_edges, -1).unflatten(1, (HEADS, -1))
    q, k, v, q2, k2 = (
        heads_of(to, x)
        for to in (layer.to_query, layer.to_key, layer.to_value, layer.to_virtual_query, layer.to_virtual_key)
    )
    fake = layer.virtual_edge.unflatten(0, (HEADS, -1))
    for i in range(graph.num_nodes):
        sources = {s: e for e, (s, d) in enumerate(graph.edge_index.T.tolist()) if d == i}
        z = torch.zeros(HEADS, HEAD_DIM, dtype=torch.float64)
        if sources:
            near, edges = list(sources), list(sources.values())
            score = (q[i] * k[near] * carried[edges]).sum(dim=2) / HEAD_DIM**0.5
            z = z + (score.softmax(dim=0)[:, :, None] * v[near]).sum(dim=0)
        mates = (graph.graph_of_node == graph.graph_of_node[i]).nonzero().flatten().tolist()
        far = [j for j in mates if j not in sources]
        score = (q2[i] * k2[far] * fake).sum(dim=2) / HEAD_DIM**0.5
        z = z + gamma * (score.softmax(dim=0)[:, :, None] * v[far]).sum(dim=0)
        torch.testing.assert_close(out[i], (z / (1 + gamma)).flatten() @ layer.to_out.weight[0].T)


@given(batches(max_graphs=3, is_directed=None), st.sampled_from([2, 5]))
def test_san_reads_eigenvalues_and_eigenvectors(graph, m):
    values, vectors = spectrum(graph, m).double().chunk(2, dim=1)
    for g in range(graph.num_graphs):
        adjacency = adjacency_of(graph, g)
        matrix = laplacian_of(adjacency.maximum(adjacency.T))
        n = min(m, len(matrix))
        value, vector = nodes_of(values, graph, g), nodes_of(vectors, graph, g)
        expected = torch.linalg.eigvalsh(matrix)[:n].expand(len(matrix), -1)
        torch.testing.assert_close(value[:, :n], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(matrix @ vector[:, :n], vector[:, :n] * value[:, :n], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(vector[:, :n].T @ vector[:, :n], torch.eye(n).double(), rtol=1e-5, atol=1e-5)
        assert (value[:, n:] == -1).all()
        assert (vector[:, n:] == 0).all()


def test_san_does_not_mind_renaming_where_eigenvalues_are_simple():
    lopsided = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1], [1, 2, 3, 4, 5, 6, 2, 7]])
    graph = GraphBatch.from_edges(torch.cat([lopsided, lopsided.flip(0)], dim=1), [8])
    assert torch.linalg.eigvalsh(laplacian_of(adjacency_of(graph, 0))).diff().min() > 1e-3
    model = san(SanConfig(), Features(), 1).double().eval()
    torch.testing.assert_close(model(renamed(graph, order_within(graph, 1))), model(graph), rtol=1e-5, atol=1e-5)


def test_san_flips_signs_in_training_only():
    graph = random_batch([7, 5], 0.6, seed=0)
    model = san(SanConfig(dropout=0.0), Features(), 1)
    assert len({tuple(model.eval().encoder(graph).flatten().tolist()) for _ in range(5)}) == 1
    assert len({tuple(model.train().encoder(graph).flatten().tolist()) for _ in range(5)}) > 1


MODELS = [(graphit, GraphitConfig), (grpe, GrpeConfig), (gophormer, GophormerConfig), (san, SanConfig)]


@pytest.mark.parametrize(("build", "config"), MODELS)
def test_a_graph_too_large_is_refused_with_its_cost(build, config, monkeypatch):
    monkeypatch.setattr(dense, "GIB_PER_GRAPH", 1e-6)
    with pytest.raises(InputError, match="graph 1 has 7 nodes, and dense matrices over its pairs need"):
        build(config(), Features(), 1)(random_batch([2, 7], 0.5, seed=0))


@pytest.mark.parametrize(
    ("config", "settings", "said"),
    [
        (GraphitConfig, {"gamma": 1.5}, "gamma must be at most 1"),
        (GraphitConfig, {"readout": "cls"}, "readout must be one of"),
        (GrpeConfig, {"max_distance": 0}, "max_distance must be at least 1"),
        (GroverConfig, {"spread": 3}, "spread must be below hops 3"),
        (GophormerConfig, {"views": 0}, "views must be at least 1"),
        (SanConfig, {"spectrum_dim": 64}, "spectrum_dim must be below dim 64"),
        (SanConfig, {"spectrum_heads": 3}, "spectrum_heads must divide spectrum_dim 8"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, settings, said):
    with pytest.raises(InputError, match=said):
        config(**settings)


VARIANTS = [
    (graphit, GraphitConfig(kernel="random-walk", steps=1, gamma=1.0)),
    (graphit, GraphitConfig(laplacian=3)),
    (graphit, GraphitConfig(readout="virtual-node")),
    (grpe, GrpeConfig(readout="cls")),
    (grover, GroverConfig(spread=0)),
    (gophormer, GophormerConfig(views=1)),
    (san, SanConfig(gamma=0.0, readout="cls")),
]


@pytest.mark.parametrize(("build", "config"), VARIANTS)
def test_other_settings_train(build, config):
    model = build(config, Features(edges=EDGES), 2).train()
    out = model(random_batch([5, 1, 4, 2], 0.4, seed=0, edge_labels=True, edge_values=True))
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
