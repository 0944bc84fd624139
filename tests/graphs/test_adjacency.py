import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import alone, batches, generator, order_within, random_batch, renamed
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.adjacency import propagate
from mnagt.graphs.batch import GraphBatch

norms = st.sampled_from(["sym", "row"])


def normalised(graph: GraphBatch, norm: str) -> Tensor:
    """The matrix of the paper, written out."""
    a = torch.eye(graph.num_nodes, dtype=torch.double)
    for u, v in graph.edge_index.T.tolist():
        a[v, u] += 1
    d = torch.diag(a.sum(dim=1))
    return d.inverse() @ a if norm == "row" else d.inverse().sqrt() @ a @ d.inverse().sqrt()


def features(graph: GraphBatch) -> Tensor:
    return torch.randn(graph.num_nodes, 3, dtype=torch.double, generator=generator(0))


@given(batches(is_directed=None), norms)
def test_a_hop_is_a_product_with_the_normalised_adjacency(graph, norm):
    x = features(graph)
    torch.testing.assert_close(propagate(x, graph, norm), normalised(graph, norm) @ x)


@given(batches(is_directed=None), norms)
def test_gradients_run_along_the_transposed_adjacency(graph, norm):
    x = features(graph).requires_grad_()
    weight = torch.randn(graph.num_nodes, 3, dtype=torch.double, generator=generator(1))
    (grad,) = torch.autograd.grad((propagate(x, graph, norm) * weight).sum(), x)
    torch.testing.assert_close(grad, normalised(graph, norm).T @ weight)


@pytest.mark.parametrize("norm", ["sym", "row"])
@pytest.mark.parametrize("is_directed", [False, True])
def test_gradients_agree_with_finite_differences(norm, is_directed):
    graph = random_batch([5, 1, 3], 0.5, seed=0, is_directed=is_directed)
    assert torch.autograd.gradcheck(lambda x: propagate(x, graph, norm), features(graph).requires_grad_())


@given(batches(is_directed=None), norms, st.integers(0, 99))
def test_renaming_nodes_renames_the_result(graph, norm, seed):
    x, order = features(graph), order_within(graph, seed)
    torch.testing.assert_close(propagate(x[order], renamed(graph, order), norm), propagate(x, graph, norm)[order])


@given(batches(is_directed=None), norms)
def test_a_graph_moves_alone_as_in_a_batch(graph, norm):
    x = features(graph)
    parts = x.split(graph.sizes.tolist())
    each = [propagate(part, alone(graph, g), norm) for g, part in enumerate(parts)]
    torch.testing.assert_close(torch.cat(each), propagate(x, graph, norm))


@given(batches())
def test_row_normalisation_keeps_constants(graph):
    ones = torch.ones(graph.num_nodes, 1)
    torch.testing.assert_close(propagate(ones, graph, "row"), ones)


def test_an_unknown_norm_is_refused():
    as_users_have_it = inspect.unwrap(propagate)  # without the type checker of the tests, who would object first
    with pytest.raises(InputError, match="'sym' or 'row', got 'col'"):
        as_users_have_it(torch.zeros(2, 1), random_batch([2], 1.0, seed=0), "col")
