from dataclasses import replace
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import alone, batches, generator, order_within, random_batch, renamed

from mnagt.errors import InputError
from mnagt.graphs import dense
from mnagt.graphs import ego_statistics as module_of_balls
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.convert import from_networkx, to_networkx
from mnagt.graphs.ego_statistics import count_ego_networks, ego_statistics
from mnagt.graphs.encodings import (
    ENCODINGS,
    canonical_basis,
    canonical_signs,
    flip_signs,
    laplacian,
    random_walk,
    shortest_paths,
)

SAME: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
OF_MOLECULES = ("morgan-identifiers", "rdkit-descriptors")
OF_ANY_GRAPH = {name: encode for name, encode in ENCODINGS.items() if name not in OF_MOLECULES}
"""Encodings that need no columns of molecules."""


def adjacency(graph: GraphBatch) -> np.ndarray:
    """Edges from j to i at (i, j), for a batch of one graph."""
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    for j, i in graph.edge_index.T.tolist():
        a[i, j] += 1
    return a


def normalised_laplacian(graph: GraphBatch) -> np.ndarray:
    a = adjacency(graph)
    a = np.maximum(a, a.T)
    d = a.sum(axis=1)
    scale = np.diag(np.where(d > 0, 1 / np.sqrt(np.maximum(d, 1)), 0))
    return np.diag((d > 0).astype(float)) - scale @ a @ scale


def cycle(nodes: int) -> GraphBatch:
    return from_networkx(networkx.cycle_graph(nodes))


@pytest.mark.parametrize("sparse_from", [1, 99])
@given(batch=batches(is_directed=None), steps=st.integers(1, 7))
def test_walks_return_as_the_powers_of_the_step_say(sparse_from, batch, steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "SPARSE_FROM", sparse_from)
        walks = random_walk(batch, steps)
    for g, encoding in enumerate(walks.split(batch.sizes.tolist())):
        a = adjacency(alone(batch, g))
        step = a / np.maximum(a.sum(axis=1, keepdims=True), 1)
        slow = [np.diag(np.linalg.matrix_power(step, k)) for k in range(1, steps + 1)]
        np.testing.assert_allclose(encoding.numpy(), np.stack(slow, axis=1), atol=1e-6)


def test_a_walk_on_an_odd_cycle_returns_after_an_odd_round():
    encoding = random_walk(cycle(5), 5)
    expected = torch.tensor([0, 1 / 2, 0, 6 / 16, 2 / 32])
    torch.testing.assert_close(encoding, expected.expand(5, 5))


@given(batches(is_directed=None), st.integers(1, 3))
def test_balls_are_counted_as_they_are_drawn(batch, radius):
    for g, encoding in enumerate(ego_statistics(batch, radius).split(batch.sizes.tolist())):
        a = adjacency(alone(batch, g))
        graph = networkx.from_numpy_array(np.maximum(a, a.T) > 0)
        graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
        columns = []
        for r in range(1, radius + 1):
            around = {v: frozenset(networkx.ego_graph(graph, v, r)) for v in graph}
            sizes = [len(ball) for ball in around.values()]
            density = [networkx.density(graph.subgraph(ball)) for ball in around.values()]
            twins = [sum(ball == other for other in around.values()) for ball in around.values()]
            columns += [np.log(sizes), density, np.log(twins)]
        np.testing.assert_allclose(encoding.numpy(), np.stack(columns, axis=1), atol=1e-6)


@given(batches(is_directed=None))
def test_balls_of_large_graphs_are_those_of_small_ones(batch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_of_balls, "LARGE", 3)
        patch.setattr(module_of_balls, "PAIRS_AT_ONCE", 7)
        edge_by_edge = count_ego_networks(replace(batch), 1)
    assert torch.equal(edge_by_edge, count_ego_networks(batch, 1))


def test_balls_of_a_graph_of_any_size():
    place = torch.arange(50_000)
    ends = torch.cat([torch.stack([place, place.roll(far)]) for far in (1, 2, -1, -2)], dim=1)
    ring = ego_statistics(GraphBatch.from_edges(ends, [50_000, 1]), 1)
    five = torch.tensor([[np.log(5), 7 / 10, 0.0]], dtype=torch.float32)  # a node, two on each side, and their edges
    torch.testing.assert_close(ring, torch.cat([five.expand(50_000, -1), torch.zeros(1, 3)]))


@given(batches(is_directed=None), st.integers(1, 9))
def test_laplacian_columns_are_the_first_eigenvectors_past_zero(batch, k):
    for g, encoding in enumerate(laplacian(batch, k).split(batch.sizes.tolist())):
        matrix, vectors = normalised_laplacian(alone(batch, g)), encoding.double().numpy()
        values = np.linalg.eigvalsh(matrix)
        values = values[values > 1e-9][:k]
        there = vectors[:, : len(values)]
        np.testing.assert_allclose(matrix @ there, there * values, atol=1e-5)
        np.testing.assert_allclose(there.T @ there, np.eye(len(values)), atol=1e-5)
        assert not vectors[:, len(values) :].any()


@given(batches())
def test_components_are_as_many_as_eigenvectors_left_out(batch):
    encoding = laplacian(batch, 7)
    for g, graph in enumerate(to_networkx(batch)):
        own = encoding[batch.graph_of_node == g]
        assert int(own.any(dim=0).sum()) == len(graph) - networkx.number_connected_components(graph)


@pytest.mark.parametrize("is_directed", [False, True])
def test_isolated_nodes_and_single_nodes_encode_as_zeros(is_directed):
    batch = random_batch([1, 5, 7, 11] * 20, 0.15, seed=0, is_directed=is_directed)
    is_isolated = (batch.in_degree == 0) & (torch.bincount(batch.source, minlength=batch.num_nodes) == 0)
    for encode in (random_walk, laplacian, ego_statistics):
        assert not encode(batch, 3)[is_isolated].any()


@given(batches(is_directed=True))
def test_the_laplacian_takes_directed_edges_both_ways(batch):
    both = torch.cat([batch.edge_index, batch.edge_index.flip(0)], dim=1).unique(dim=1)
    torch.testing.assert_close(laplacian(batch, 3), laplacian(GraphBatch.from_edges(both, batch.sizes), 3))


def test_of_largest_entries_that_tie_the_first_is_positive():
    r, path = 2**0.5, from_networkx(networkx.path_graph(4))
    expected = torch.tensor([[r, 1.0, -1.0, -r], [r, -1.0, -1.0, r], [-1.0, r, -r, 1.0]]) / 6**0.5
    torch.testing.assert_close(laplacian(path, 3), expected.T)


@given(batches(max_nodes=11))
def test_largest_entries_of_laplacian_columns_are_positive_or_tie(batch):
    for own in laplacian(batch, 3).split(batch.sizes.tolist()):
        assert bool((own.amax(dim=0) >= own.abs().amax(dim=0) * (1 - 1e-5)).all())


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5])
def test_products_by_what_is_not_zero_are_those_of_the_matrix(density):
    matrix = torch.randn(5, 61, 61, generator=generator(0)) * (torch.rand(5, 61, 61, generator=generator(1)) < density)
    x = torch.randn(5, 61, 7, generator=generator(2))
    torch.testing.assert_close(dense.left_product(matrix)(x), matrix @ x, **SAME)


def turn_all_at_once(eigenvalues: torch.Tensor, vectors: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Every space of one graph turned by one matrix over all of its vectors, spaces kept apart on the diagonal."""
    space = torch.cat([torch.zeros(1), (eigenvalues.diff() > 1e-8).cumsum(0)]).double()
    weighted = vectors.T @ (weight[:, None] * vectors) * (space[:, None] == space)
    return vectors @ torch.linalg.eigh(torch.diag(space) + weighted / 4)[1]


TWO_PATHS = networkx.empty_graph(6)
"""Ends are 0 and 3, and 1 and 2: of equal sums, so that weights linear in the nodes' numbers cannot tell them apart."""
TWO_PATHS.add_edges_from([(0, 4), (4, 3), (1, 5), (5, 2)])


@pytest.mark.parametrize(
    "graph",
    [
        TWO_PATHS,
        networkx.star_graph(7),
        networkx.cycle_graph(11),
        networkx.complete_graph(5),
        networkx.balanced_tree(2, 3),
        networkx.path_graph(13),
    ],
    ids=str,
)
def test_the_basis_of_an_eigenspace_is_that_of_all_turned_at_once_whatever_eigh_gave(graph):
    matrix = torch.from_numpy(normalised_laplacian(from_networkx(graph)))
    values, vectors = torch.linalg.eigh(matrix)
    node = torch.arange(len(values)).double()
    expected = turn_all_at_once(values, vectors, (node * (5**0.5 - 1) / 2).frac() + 1e-6 * node.cos())
    same = (values[:, None] - values).abs() < 1e-8
    turn = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator(0)).double() * same)[0]
    is_used = torch.ones(1, len(values), dtype=torch.bool)
    found = canonical_basis(values[None], (vectors @ turn)[None], is_used)[0]
    torch.testing.assert_close(found * canonical_signs(found[None])[0], expected * canonical_signs(expected[None])[0])


def test_eigenspaces_that_nobody_uses_are_left_as_they_are():
    values, vectors = torch.linalg.eigh(torch.from_numpy(normalised_laplacian(from_networkx(networkx.star_graph(7)))))
    first = torch.arange(len(values)) == 0
    assert torch.equal(canonical_basis(values[None], vectors[None], first[None])[0], vectors)
    one_of_space = torch.arange(len(values)) == 3
    turned = canonical_basis(values[None], vectors[None], one_of_space[None])[0]
    assert not torch.allclose(turned[:, 1], vectors[:, 1])
    torch.testing.assert_close(turned[:, 1:-1] @ turned[:, 1:-1].T, vectors[:, 1:-1] @ vectors[:, 1:-1].T)


@pytest.mark.parametrize("seed", range(5))
def test_laplacian_signs_do_not_depend_on_names_where_nothing_ties(seed):
    batch = random_batch([13, 11], 0.3, seed=seed)
    encoding, order = laplacian(batch, 3), order_within(batch, seed)
    torch.testing.assert_close(laplacian(renamed(batch, order), 3), encoding[order], **SAME)


@given(batches(is_directed=None), st.integers(0, 99))
def test_renaming_nodes_renames_walks_and_eigenspaces(batch, seed):
    order = order_within(batch, seed)
    for encode in (random_walk, ego_statistics):
        torch.testing.assert_close(encode(renamed(batch, order), 5), encode(batch, 5)[order], **SAME)
    whole = batch.sizes.max().item()  # the full spectrum past zero: its projector has no free rotation left
    one, other = laplacian(batch, whole)[order], laplacian(renamed(batch, order), whole)
    torch.testing.assert_close(one @ one.T * same_graph(batch), other @ other.T * same_graph(batch), **SAME)


def same_graph(batch: GraphBatch) -> torch.Tensor:
    return (batch.graph_of_node[:, None] == batch.graph_of_node).float()


@pytest.mark.parametrize("encode", OF_ANY_GRAPH.values(), ids=OF_ANY_GRAPH)
@given(batch=batches(is_directed=None))
def test_a_graph_alone_encodes_as_in_a_batch(encode, batch):
    each = [encode(alone(batch, g), 3) for g in range(batch.num_graphs)]
    torch.testing.assert_close(torch.cat(each), encode(batch, 3), **SAME)


def test_repeated_eigenvalues_do_not_let_the_company_show():
    stars, wheels = [networkx.star_graph(n) for n in (4, 6, 6)], [networkx.windmill_graph(n, 3) for n in (3, 4, 4)]
    graphs = [*stars, *wheels, *(networkx.complete_graph(n) for n in (5, 7, 7)), *map(networkx.cycle_graph, (6, 9, 9))]
    graphs += [networkx.gnp_random_graph(n, 0.15, seed=seed) for n in (5, 7, 11) for seed in range(20)]
    each = [laplacian(from_networkx(graph), 5) for graph in graphs]
    torch.testing.assert_close(laplacian(from_networkx(graphs), 5), torch.cat(each), **SAME)


@given(batches(), st.integers(0, 99))
def test_flipping_turns_whole_columns_of_a_graph(batch, seed):
    encoding = laplacian(batch, 3)
    flipped = flip_signs(encoding, batch, generator(seed))
    for own, turned in zip(encoding.split(batch.sizes.tolist()), flipped.split(batch.sizes.tolist()), strict=True):
        for column, other in zip(own.T, turned.T, strict=True):
            assert column.equal(other) or column.equal(-other)


def test_flips_are_fair_and_follow_the_generator():
    batch = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [2] * 500)
    ones = torch.ones(1000, 3)
    flipped = flip_signs(ones, batch, generator(0))
    assert (flipped[::2] < 0).float().mean(dim=0).sub(0.5).abs().max() < 0.1
    assert not flipped[:, 0].equal(flipped[:, 1])
    assert flipped.equal(flip_signs(ones, batch, generator(0)))
    assert not flipped.equal(flip_signs(ones, batch, generator(1)))


@given(batches(is_directed=None, max_nodes=9), st.integers(1, 5))
def test_paths_are_as_long_as_networkx_finds_them(batch, limit):
    paths = shortest_paths(batch, limit)
    assert len(paths) == batch.pair_ptr[-1]
    for g in range(batch.num_graphs):
        graph = networkx.DiGraph(alone(batch, g).edge_index.T.tolist())
        graph.add_nodes_from(range(int(batch.sizes[g])))
        found = dict(networkx.all_pairs_shortest_path_length(graph))
        nodes = range(len(graph))
        slow = [min(found[j].get(i, limit + 1), limit + 1) for i in nodes for j in nodes]
        assert paths[batch.pair_ptr[g] : batch.pair_ptr[g + 1]].tolist() == slow


def test_the_limit_parts_far_from_near():
    distance = shortest_paths(from_networkx(networkx.path_graph(7)), 3).view(7, 7)
    assert distance[0].tolist() == [0, 1, 2, 3, 4, 4, 4]


def test_a_directed_path_is_read_from_its_end():
    distance = shortest_paths(GraphBatch.from_edges(torch.tensor([[0, 1], [1, 2]]), [3]), 5).view(3, 3)
    assert distance.tolist() == [[0, 6, 6], [1, 0, 6], [2, 1, 0]]


@pytest.mark.parametrize("encode", [*OF_ANY_GRAPH.values(), shortest_paths])
def test_small_pieces_give_the_same_as_large_ones(encode, monkeypatch):
    batch = random_batch([7, 5, 7, 1, 7, 5], 0.3, seed=0)
    whole = encode(batch, 3)
    monkeypatch.setattr(dense, "PAIRS_AT_ONCE", 50)
    torch.testing.assert_close(encode(batch, 3), whole)


@pytest.mark.parametrize("encode", [random_walk, ego_statistics, laplacian, shortest_paths])
def test_a_graph_too_large_is_refused_with_its_cost(encode):
    batch = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [3, 20_000])
    with pytest.raises(InputError, match=r"graph 1 has 20000 nodes.*26\.8 GiB"):
        encode(batch, 3)


@pytest.mark.parametrize("encode", [*OF_ANY_GRAPH.values(), shortest_paths])
def test_batches_without_graphs_or_nodes_encode_as_nothing(encode):
    for sizes in ([], [0, 0]):
        assert len(encode(GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), sizes), 3)) == 0


@pytest.mark.parametrize(
    "encode", [*(each for name, each in OF_ANY_GRAPH.items() if name != "subtree-colours"), shortest_paths]
)
def test_counts_start_at_one(encode):
    with pytest.raises(InputError, match="counts from 1, got 0"):
        encode(cycle(3), 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("encode", [*OF_ANY_GRAPH.values(), shortest_paths])
def test_a_gpu_encodes_as_the_cpu_does(encode):
    batch = random_batch([13, 5, 11, 1], 0.3, seed=0)
    torch.testing.assert_close(encode(batch.to("cuda"), 2).cpu(), encode(batch, 2), **SAME)
