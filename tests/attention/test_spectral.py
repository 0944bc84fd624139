"""Neighbourhoods that heads learn, against the dense equation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, generator, order_within, renamed

from mnagt.attention.kernels import Hop, Hops
from mnagt.attention.multi_kernel import GATE_START, MultiKernelAttention
from mnagt.attention.spectral import GAIN, SpectralNeighbourhoods
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import adjacency_spectrum

DIM, KERNELS, HEADS, HEAD_DIM, EIGENPAIRS, DEGREE = 5, 2, 3, 7, 11, 3


def attention(eigenpairs: int = EIGENPAIRS) -> MultiKernelAttention:
    torch.manual_seed(0)
    made = MultiKernelAttention(
        DIM,
        [Hop(k) for k in range(KERNELS)],
        heads=HEADS,
        head_dim=HEAD_DIM,
        eigenpairs=eigenpairs,
        degree=DEGREE,
        is_gated=True,
    ).double()
    assert made.spectral is not None
    torch.nn.init.normal_(made.spectral.coefficients)
    return made


def nodes(graph: GraphBatch) -> torch.Tensor:
    return torch.randn(graph.num_nodes, DIM, generator=generator(1), dtype=torch.float64)


def dense_adjacency(graph: GraphBatch, g: int) -> torch.Tensor:
    first, last = int(graph.node_ptr[g]), int(graph.node_ptr[g + 1])
    a = torch.zeros(last - first, last - first, dtype=torch.float64)
    for source, destination in graph.edge_index.T.tolist():
        if first <= destination < last:
            a[destination - first, source - first] = 1
    degree = a.sum(dim=1).clamp(min=1)
    return a / (degree[:, None] * degree).sqrt()


@given(batches(max_nodes=EIGENPAIRS))
def test_the_output_is_that_of_the_dense_equation(graph):
    ours, x = attention(), nodes(graph)
    assert ours.spectral is not None
    assert ours.gate is not None
    hops = Hops(x, graph)
    found = ours(hops)
    for g in range(graph.num_graphs):
        of_graph, a = slice(int(graph.node_ptr[g]), int(graph.node_ptr[g + 1])), dense_adjacency(graph, g)
        polynomials = [torch.eye(len(a), dtype=a.dtype), a]
        polynomials += [2 * a @ a - polynomials[0], 4 * a @ a @ a - 3 * a]
        polynomials = torch.stack(polynomials)
        for k in range(KERNELS):
            query, key = ((hops[k][of_graph] @ each.weight[k].T) for each in (ours.to_query, ours.to_key))
            value = x[of_graph] @ ours.to_value.weight[k].T
            brought = []
            for h, columns in enumerate(torch.arange(HEADS * HEAD_DIM).chunk(HEADS)):
                bias = torch.einsum("p,pij->ij", ours.spectral.coefficients[k, h], polynomials)
                weight = (query[:, columns] @ key[:, columns].T / HEAD_DIM**0.5 + bias).softmax(dim=1)
                brought += [weight @ value[:, columns], torch.einsum("ij,pij->ip", weight, polynomials)]
            z = torch.cat(brought, dim=1) @ ours.to_out.weight[k].T
            gate = torch.sigmoid(x[of_graph] @ ours.gate.weight.T + ours.gate.bias)
            torch.testing.assert_close(found[of_graph, k], z * gate, rtol=1e-5, atol=1e-5)


@given(batches(max_nodes=2 * EIGENPAIRS), st.integers(2, EIGENPAIRS))
def test_weights_are_those_that_attention_has(graph, eigenpairs):
    ours, x = attention(eigenpairs), nodes(graph)
    for weight in ours.weights(Hops(x, graph)):
        torch.testing.assert_close(weight.sum(dim=3), torch.ones_like(weight.sum(dim=3)))


@given(batches(max_nodes=3 * EIGENPAIRS), st.integers(2, EIGENPAIRS))
def test_the_order_of_nodes_does_not_matter_even_where_eigenvectors_are_left_out(graph, eigenpairs):
    order = order_within(graph, 3)
    before, after = (_kept_part(each, eigenpairs) for each in (graph, renamed(graph, order)))
    torch.testing.assert_close(after, before[order][:, order], rtol=1e-5, atol=1e-5)


def _kept_part(graph: GraphBatch, eigenpairs: int) -> torch.Tensor:
    """A + 2 I on the eigenspaces that are kept, for all graphs in one matrix."""
    values, vectors = adjacency_spectrum(graph, eigenpairs).chunk(2, dim=1)
    is_same_graph = graph.graph_of_node[:, None] == graph.graph_of_node
    return ((values + 2) * vectors) @ vectors.T * is_same_graph


def test_an_eigenspace_is_kept_whole_or_not_at_all():
    index = torch.arange(6)
    edges = torch.stack([torch.cat([index, (index + 1) % 6]), torch.cat([(index + 1) % 6, index])])
    ring = GraphBatch.from_edges(edges, [6])  # eigenvalues 1, -1, and twice each of 1/2 and -1/2
    values = adjacency_spectrum(ring, 4)[0, :4]
    assert sorted(values.tolist()) == pytest.approx([-1, 0, 0, 1])
    assert adjacency_spectrum(ring, 6)[0, :6].abs().sum() == pytest.approx(4)


def test_an_isolated_node_has_no_neighbourhood():
    alone = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2])
    assert not adjacency_spectrum(alone, 3)[:, :3].any()


def test_heads_start_with_one_power_each_and_gates_half_open():
    spectral = SpectralNeighbourhoods(kernels=1, heads=5, eigenpairs=3, degree=DEGREE)
    assert spectral.coefficients[0].argmax(dim=1).tolist() == [0, 1, 2, 3, 0]
    assert spectral.coefficients.sum() == 5 * GAIN
    gate = MultiKernelAttention(DIM, [Hop(0)], heads=2, head_dim=3, is_gated=True).gate
    assert gate is not None
    assert gate.bias.tolist() == [GATE_START] * DIM


def test_on_a_ring_a_polynomial_is_the_nodes_so_many_hops_away():
    index = torch.arange(9)
    edges = torch.stack([torch.cat([index, (index + 1) % 9]), torch.cat([(index + 1) % 9, index])])
    spectral = SpectralNeighbourhoods(kernels=1, heads=1, eigenpairs=9, degree=4)
    spectrum = spectral.spectrum(GraphBatch.from_edges(edges, [9]), torch.float64)
    found = torch.einsum("im,imp,jm->pij", spectrum.vectors, spectrum.polynomials, spectrum.vectors)
    distance = (index[:, None] - index).abs()
    distance = distance.minimum(9 - distance)
    for hops in range(1, 5):
        torch.testing.assert_close(found[hops], (distance == hops).double() / 2, rtol=1e-5, atol=1e-5)


def test_linear_attention_is_refused():
    with pytest.raises(InputError, match="eigenpairs"):
        MultiKernelAttention(DIM, [Hop(0)], heads=2, head_dim=3, variant="linear", eigenpairs=3)
