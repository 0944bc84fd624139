"""Parts of graphs against the obvious way."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import assert_same, batches, generator, order_within, random_batch, renamed

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.subgraph import induce_subgraph, is_top, sort_by_score


def some_of(graph: GraphBatch, seed: int) -> torch.Tensor:
    return torch.rand(graph.num_nodes, generator=generator(seed)) < 0.6


def induced(graph: GraphBatch, is_kept: torch.Tensor) -> GraphBatch:
    """Built anew from the edges between kept nodes."""
    new_name = {old: new for new, old in enumerate(is_kept.nonzero().flatten().tolist())}
    edges = [i for i, (u, v) in enumerate(graph.edge_index.T.tolist()) if u in new_name and v in new_name]
    pairs = [[new_name[u] for u in ends] for ends in graph.edge_index[:, edges].tolist()]
    return GraphBatch.from_edges(
        torch.tensor(pairs, dtype=torch.long).view(2, -1),
        [int(part.sum()) for part in is_kept.split(graph.sizes.tolist())],
        edge_labels=None if graph.edge_labels is None else graph.edge_labels[edges],
        edge_values=None if graph.edge_values is None else graph.edge_values[edges],
    )


@given(batches(is_directed=False), st.integers(0, 99))
def test_a_subgraph_is_what_its_nodes_induce(graph, seed):
    is_kept = some_of(graph, seed)
    part, rows = induce_subgraph(graph, is_kept)
    assert_same(part, induced(graph, is_kept))
    assert rows.tolist() == is_kept.nonzero().flatten().tolist()


@given(batches(), st.integers(0, 99))
def test_uncut_it_begins_with_the_same_and_the_rest_is_loops(graph, seed):
    is_kept = some_of(graph, seed)
    cut, cut_rows = induce_subgraph(graph, is_kept)
    whole, rows = induce_subgraph(graph, is_kept, is_cut=False)
    nodes, edges, graphs = cut.num_nodes, cut.num_edges, graph.num_graphs
    assert (whole.num_nodes, whole.num_edges, whole.num_graphs) == (graph.num_nodes, graph.num_edges, graphs + 1)
    assert whole.padding is not None
    assert [int(n) for n in whole.padding[:3]] == [graphs, nodes, edges]
    torch.testing.assert_close(rows[:nodes], cut_rows)
    assert sorted(rows.tolist()) == list(range(graph.num_nodes))
    torch.testing.assert_close(whole.edge_index[:, :edges], cut.edge_index)
    assert torch.equal(whole.source[edges:].long(), whole.destination[edges:].long())
    assert (whole.source[edges:] >= nodes).all()
    torch.testing.assert_close(whole.node_ptr[:-1], cut.node_ptr)
    for name in ("edge_labels", "edge_values"):
        if getattr(graph, name) is not None:
            torch.testing.assert_close(getattr(whole, name)[:edges], getattr(cut, name))


@given(batches(), st.integers(0, 99))
def test_cut_twice_or_not_at_all_the_same_is_real(graph, seed):
    cut, whole = graph, graph
    for again in range(2):
        is_kept = some_of(cut, seed + again)
        spare = torch.zeros(whole.num_nodes - cut.num_nodes, dtype=torch.bool)
        whole, _ = induce_subgraph(whole, torch.cat([is_kept, spare]), is_cut=False)
        cut, _ = induce_subgraph(cut, is_kept)
    assert whole.padding is not None
    assert [int(n) for n in whole.padding[:3]] == [graph.num_graphs, cut.num_nodes, cut.num_edges]
    torch.testing.assert_close(whole.edge_index[:, : cut.num_edges], cut.edge_index)


@given(batches())
def test_nodes_stand_by_score_graph_by_graph(graph):
    score = torch.randn(graph.num_nodes, generator=generator(0))
    each = [part.sort(descending=True).values for part in score.split(graph.sizes.tolist())]
    torch.testing.assert_close(score[sort_by_score(score, graph)], torch.cat(each))


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.8, 1.0])
def test_the_top_is_the_share_asked_for_rounded_up(ratio):
    graph = random_batch([1, 2, 5, 10, 30], 0.0, seed=0)
    kept = is_top(torch.randn(48, generator=generator(0)), graph, ratio)
    wanted = {0.1: [1, 1, 1, 1, 3], 0.5: [1, 1, 3, 5, 15], 0.8: [1, 2, 4, 8, 24], 1.0: [1, 2, 5, 10, 30]}
    assert [int(part.sum()) for part in kept.split(graph.sizes.tolist())] == wanted[ratio]


def test_all_that_tie_for_the_last_place_stay():
    graph = random_batch([5, 3], 0.0, seed=0)
    kept = is_top(torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0 - 1e-8, 0.5, 0.5, 0.5]), graph, 0.4)
    assert kept.tolist() == [False, True, True, True, True, True, True, True]


@given(batches(), st.integers(0, 99))
def test_names_of_nodes_decide_nothing(graph, seed):
    score = torch.randint(3, (graph.num_nodes,), generator=generator(seed)).float()  # many ties
    order = order_within(graph, seed)
    torch.testing.assert_close(is_top(score[order], renamed(graph, order), 0.5), is_top(score, graph, 0.5)[order])
