from dataclasses import replace

import pytest
import torch
from strategies import random_batch

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.weisfeiler_lehman import wl_colours
from mnagt.nn.wl_features import COLOURS, SLOTS, WLFeatures


@pytest.fixture
def batch():
    return random_batch([5, 1, 7], 0.4, seed=0, node_labels=True)


def test_every_graph_is_the_sum_over_its_subtrees(batch):
    model, names = (
        WLFeatures(3, iterations=2, vocabulary_size=11, dropout=0.5).eval(),
        wl_colours(batch, 2) % SLOTS % 11,
    )
    out = torch.zeros(3, 3)
    for v, (one, two) in enumerate(names.tolist()):
        out[batch.graph_of_node[v]] += model.table.weight[one] + model.table.weight[11 + two]
    torch.testing.assert_close(read_out(model, batch), out)


def read_out(model: WLFeatures, batch: GraphBatch) -> torch.Tensor:
    return model(*model.prepare(torch.zeros(batch.num_nodes, 3), batch))


def names_of(*graphs: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Names of a single round, and the graph of each."""
    graph = torch.tensor([g for g, names in enumerate(graphs) for _ in names])
    return torch.tensor([[name] for names in graphs for name in names]), graph


def rows(model: WLFeatures, *names: int) -> list[int]:
    return [int(model.row[name]) for name in names]


def test_only_names_of_several_training_graphs_count():
    model = WLFeatures(3, iterations=1, vocabulary_size=8, dropout=0.0)
    model.fit_vocabulary(*names_of([5, 5, 5], [6, 7], [7, 6], [9, 7]))
    assert rows(model, 7, 6) == [0, 1]  # in three graphs, in two
    assert all(row < 0 for row in rows(model, 5, 9, 1))  # however often one graph has them


def test_names_that_share_a_slot_are_not_taken_for_one():
    model = WLFeatures(3, iterations=1, vocabulary_size=8, dropout=0.0)
    model.fit_vocabulary(*names_of([5, 6], [5 + SLOTS, 6]))
    assert [row < 0 for row in rows(model, 5, 6)] == [True, False]


def test_where_training_graphs_have_no_nodes_nothing_counts():
    model = WLFeatures(3, iterations=1, vocabulary_size=8, dropout=0.0)
    model.fit_vocabulary(torch.zeros(0, 1, dtype=torch.int32), torch.zeros(0, dtype=torch.long))
    assert bool((model.row < 0).all())


def test_the_commonest_names_get_the_rows():
    model = WLFeatures(3, iterations=1, vocabulary_size=2, dropout=0.0, min_graphs=1)
    model.fit_vocabulary(*names_of([5, 6, 7], [6, 7], [6]))
    assert rows(model, 6, 7) == [0, 1]
    assert rows(model, 5)[0] < 0


def test_names_that_do_not_count_add_nothing(batch):
    model = WLFeatures(3, iterations=2, vocabulary_size=11, dropout=0.0)
    model.fit_vocabulary(wl_colours(batch, 2)[:5], torch.zeros(5, dtype=torch.long))  # one graph: nothing is common
    assert not read_out(model, batch).any()
    model.min_graphs = 1
    model.fit_vocabulary(wl_colours(batch, 2)[:5], torch.zeros(5, dtype=torch.long))
    known = read_out(model, batch)[0]
    torch.testing.assert_close(
        known, sum(model.table.weight[r] for r in model.row[_slots(batch)[:5]].flatten().tolist())
    )


def _slots(batch) -> torch.Tensor:
    return wl_colours(batch, 2).long() % SLOTS + SLOTS * torch.arange(2)


def test_in_training_subtrees_are_left_out_and_the_mean_is_kept(batch):
    model = WLFeatures(3, iterations=2, vocabulary_size=11, dropout=0.6)
    batch = replace(batch, encodings={COLOURS: wl_colours(batch, 2)})
    torch.manual_seed(0)
    drawn = torch.stack([read_out(model.train(), batch) for _ in range(3000)])
    torch.testing.assert_close(drawn.mean(dim=0), read_out(model.eval(), batch), atol=0.05, rtol=0)
    assert drawn[:, 1].unique(dim=0).shape[0] == 4  # a single node: each of its two names is there or not
