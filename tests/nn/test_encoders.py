"""Encoders read columns."""

from dataclasses import replace

import pytest
import torch
from strategies import random_batch

from mnagt.errors import InputError
from mnagt.graphs.core_numbers import core_numbers
from mnagt.graphs.ego_statistics import count_ego_networks
from mnagt.graphs.features import Columns
from mnagt.nn.encoders import MAX_KINDS, Categorical, Continuous, EdgeEncoder, NodeEncoder


def test_categories_of_different_columns_never_meet():
    encoder = Categorical((2, 3), dim=7)
    rows = {
        tuple(encoder.table(torch.tensor([c]) + encoder.offsets[i]).flatten().tolist())
        for i in (0, 1)
        for c in (-1, 0, 1)
    }
    assert len(rows) == 6


def test_columns_add_up():
    encoder = Categorical((2, 3), dim=7)
    both = encoder(torch.tensor([[1, 2]]))
    torch.testing.assert_close(both, encoder.table.weight[2] + encoder.table.weight[3 + 3][None])


def test_continuous_columns_forget_their_units():
    torch.manual_seed(0)
    metres, encoder = torch.randn(50, 3), Continuous(3, dim=5)
    torch.testing.assert_close(encoder(metres), encoder(1000 * metres + 7), atol=1e-3, rtol=1e-3)


def test_structural_counts_tell_nodes_apart_by_degree_core_number_and_triangles():
    graph = random_batch([7, 1, 6], 0.5, seed=3)
    x = NodeEncoder(Columns(), dim=3, structural_counts=True)(graph)
    core, triangles = core_numbers(graph), count_ego_networks(graph, 1)[:, 0, 1]
    known = [(int(d), int(c), int(t)) for d, c, t in zip(graph.in_degree, core, triangles, strict=True)]
    assert len(set(known)) > 4
    for v, of_v in enumerate(known):
        for u, of_u in enumerate(known):
            assert torch.equal(x[v], x[u]) == (of_v == of_u)


def test_structural_counts_are_refused_where_nodes_have_columns():
    with pytest.raises(InputError, match="leave structural_counts out"):
        NodeEncoder(Columns(labels=(3,)), dim=3, structural_counts=True)


def test_nodes_that_carry_nothing_are_told_by_degree():
    graph = random_batch([5, 1], 0.5, seed=1)
    x = NodeEncoder(Columns(), dim=3)(graph)
    for v in range(6):
        for u in range(6):
            assert torch.equal(x[v], x[u]) == bool(graph.in_degree[v] == graph.in_degree[u])


def test_edges_of_categories_are_of_a_few_kinds():
    graph = random_batch([5, 4], 0.6, seed=1)
    labels = torch.randint(-1, 2, (graph.num_edges, 3), dtype=torch.int8)
    graph = replace(graph, edge_labels=labels)
    encoder = EdgeEncoder(Columns(labels=(2, 3, 2)), dim=5)
    torch.testing.assert_close(encoder.table()[encoder.kind(graph).long()], encoder(graph))
    assert len(encoder.table()) == 3 * 4 * 3


def test_too_many_kinds_and_columns_of_numbers_are_not_counted():
    assert EdgeEncoder(Columns(labels=(MAX_KINDS,)), dim=5).kinds is None
    assert EdgeEncoder(Columns(labels=(2,), values=1), dim=5).kinds is None
