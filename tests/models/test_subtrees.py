import pytest
import torch
from strategies import random_batch

from mnagt.graphs.subtrees import subtrees
from mnagt.models.subtrees import Subtrees


@pytest.fixture
def batch():
    return random_batch([5, 1, 7], 0.4, seed=0, node_labels=True)


def test_every_graph_is_the_sum_over_its_subtrees(batch):
    model, names = Subtrees(3, rounds=2, rows=11, dropout=0.5).eval(), subtrees(batch, 2) % 11
    out = torch.zeros(3, 3)
    for v, (one, two) in enumerate(names.tolist()):
        out[batch.graph_of_node[v]] += model.table.weight[one] + model.table.weight[11 + two]
    torch.testing.assert_close(model(batch), out)


def test_in_training_subtrees_are_left_out_and_the_mean_is_kept(batch):
    model = Subtrees(3, rounds=2, rows=11, dropout=0.6)
    torch.manual_seed(0)
    drawn = torch.stack([model.train()(batch) for _ in range(3000)])
    torch.testing.assert_close(drawn.mean(dim=0), model.eval()(batch), atol=0.05, rtol=0)
    assert drawn[:, 1].unique(dim=0).shape[0] == 4  # a single node: each of its two names is there or not
