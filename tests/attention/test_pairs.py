"""What is said of explicit pairs answers to the same thing said one graph at a time."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, random_batch

from mnagt.attention.pairs import (
    cached_per_batch,
    edge_pairs,
    from_adjacency,
    in_each_graph,
    pair_of_edge,
    softmax,
    softmax_over_edges,
)
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.buckets import Buckets

HEADS, DIM, CODES = 2, 3, 5


def padded(graph: GraphBatch, step: int) -> GraphBatch:
    """The batch with buckets as a GPU has them: widths are multiples of ``step``."""
    graph.__dict__["buckets"] = Buckets.plan(graph.sizes, step=step)
    return graph


def of_graph(rows: torch.Tensor, graph: GraphBatch, g: int, *, is_pair: bool) -> torch.Tensor:
    """The rows of graph g, with an axis for each node."""
    if not is_pair:
        return rows[graph.node_ptr[g] : graph.node_ptr[g + 1]]
    n = int(graph.sizes[g])
    return rows[graph.pair_ptr[g] : graph.pair_ptr[g + 1]].unflatten(0, (n, n))


@pytest.mark.parametrize(
    "equation", ["gihd,gjhd->gijh", "gijc,gihc->gijh", "gijc,gjhc->gijh", "gijh,gjhd->gihd", "gijh,gijc->gihc"]
)
@given(batches(), st.sampled_from([1, 4, 64]))
def test_an_einsum_in_each_graph_is_one_in_one_graph_at_a_time(equation, graph, step):
    padded(graph, step)
    terms, result = equation.split("->")
    widths = {"h": HEADS, "d": DIM, "c": CODES}

    def rows(letters: str) -> torch.Tensor:
        is_pair = letters.startswith("gij")
        number = int(graph.pair_ptr[-1]) if is_pair else graph.num_nodes
        inner = [widths[c] for c in letters[3 if is_pair else 2 :]]
        return torch.randn(number, *inner, dtype=torch.float64, requires_grad=True)

    operands = [rows(term) for term in terms.split(",")]
    out = in_each_graph(equation, *operands, graph=graph)
    alone = []
    for g in range(graph.num_graphs):
        pairs = zip(terms.split(","), operands, strict=True)
        each = [of_graph(x, graph, g, is_pair=term.startswith("gij")) for term, x in pairs]
        here = torch.einsum(equation.replace("g", ""), *each)
        alone.append(here.flatten(0, 1) if result.startswith("gij") else here)
    expected = torch.cat(alone)
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    grads = (torch.autograd.grad((x * weight).sum(), operands) for x in (out, expected))
    torch.testing.assert_close(*grads)


@given(batches(), st.sampled_from([1, 4, 64]))
def test_each_node_shares_its_attention_among_its_graph(graph, step):
    padded(graph, step)
    score = torch.randn(int(graph.pair_ptr[-1]), HEADS, dtype=torch.float64)
    weight = softmax(score, graph)
    for g in range(graph.num_graphs):
        here = of_graph(score, graph, g, is_pair=True).softmax(dim=1)
        torch.testing.assert_close(of_graph(weight, graph, g, is_pair=True), here)


@given(batches(is_directed=None))
def test_each_node_shares_its_attention_among_the_edges_into_it(graph):
    score = 50 * torch.randn(graph.num_edges, HEADS, dtype=torch.float64)
    weight = softmax_over_edges(score, graph)
    for v in range(graph.num_nodes):
        edges = slice(int(graph.in_ptr[v]), int(graph.in_ptr[v + 1]))
        torch.testing.assert_close(weight[edges], score[edges].softmax(dim=0))


@given(batches(is_directed=None))
def test_matrices_made_of_the_adjacency_lie_pair_by_pair(graph):
    out = from_adjacency(graph, 2, lambda a: [a, 2 * a.mT])
    for g in range(graph.num_graphs):
        first, n = int(graph.node_ptr[g]), int(graph.sizes[g])
        adjacency = torch.zeros(n, n)
        for source, destination in (graph.edge_index.T - first).tolist():
            if 0 <= destination < n:
                adjacency[destination, source] += 1
        expected = torch.stack([adjacency, 2 * adjacency.T], dim=2)
        torch.testing.assert_close(of_graph(out, graph, g, is_pair=True), expected)


def test_an_edge_knows_its_pair():
    graph = random_batch([5, 1, 3], 0.5, seed=0, is_directed=True)
    torch.testing.assert_close(pair_of_edge(graph).index, edge_pairs(graph))
    assert pair_of_edge(graph).columns == 35


def test_work_is_done_once_a_batch_and_forgotten_with_it():
    calls = []

    @cached_per_batch
    def work(graph: GraphBatch, number: int) -> torch.Tensor:
        calls.append(number)
        return torch.zeros(number)

    graph, other = random_batch([3], 0.5, seed=0), random_batch([3], 0.5, seed=0)
    assert work(graph, 2) is work(graph, 2)
    assert work(graph, 3) is not work(other, 3)
    assert calls == [2, 3, 3]
    gone = weakref.ref(work(graph, 2))
    del graph
    gc.collect()
    assert gone() is None


def test_a_batch_without_nodes_gives_nothing():
    graph = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [0, 0])
    none = torch.zeros(0, HEADS, DIM)
    assert in_each_graph("gihd,gjhd->gijh", none, none, graph=graph).shape == (0, HEADS)
    assert softmax(torch.zeros(0, HEADS), graph).shape == (0, HEADS)
