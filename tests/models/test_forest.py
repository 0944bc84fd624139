"""A forest answers as its trees do, one question after the other."""

import pytest
import torch
from strategies import alone, order_within, random_batch, renamed
from woods import drawn, forest_of

from mnagt.graphs.features import Columns, Features
from mnagt.graphs.subtrees import fragments
from mnagt.models import build_model
from mnagt.models.forest import NAMES, PIECES, ROUNDS, SLOTS, Forest
from mnagt.models.graph_model import GraphModel
from mnagt.tasks import MultiLabel, Regression, SingleLabel, Task

TASKS = [SingleLabel(("a", "b")), MultiLabel(("q", "r")), Regression(("t", "u"), mean=(0.0, 5.0), std=(1.0, 2.0))]


@pytest.fixture
def batch():
    return random_batch([5, 1, 7, 2, 9], 0.4, seed=0, node_labels=True, edge_labels=True)


@pytest.fixture
def forest(batch) -> Forest:
    forest = Forest(2, trees=3, leaves=9, share=0.25)
    drawn(forest, batch, TASKS[1])
    return forest


def walked(forest: Forest, tree: int, has: set[int]) -> float:
    """The slow way: from the root, one question after the other."""
    node = tree * forest.nodes_of_tree
    while True:
        absent, present = forest.following[node].tolist()
        if absent == node:
            return float(forest.value[node])
        node = present if int(forest.asked[node]) in has else absent


def test_every_answer_is_the_mean_over_the_leaves_that_questions_lead_to(forest, batch):
    pieces = forest.pieces(batch)
    for graph, row in enumerate(forest.belief(pieces)):
        has = set(pieces[graph].nonzero()[:, 0].tolist())
        for output, belief in enumerate(row):
            mean = sum(walked(forest, output * 3 + tree, has) for tree in range(3)) / 3
            odds = mean / (1 - mean) / float(forest.odds[output])
            assert float(belief) == pytest.approx(odds / (1 + odds), rel=1e-5)


def test_a_piece_is_there_if_any_node_has_its_name(batch):
    forest, names = Forest(1, trees=1, leaves=2, share=0.5), fragments(batch, ROUNDS)
    drawn(forest, batch, TASKS[1])
    known = [[int(forest.column[r * SLOTS + int(name) % SLOTS]) for r, name in enumerate(row)] for row in names]
    assert all(column // PIECES == r for row in known for r, column in enumerate(row))
    for graph in range(batch.num_graphs):
        own = {column for v in (batch.graph_of_node == graph).nonzero()[:, 0] for column in known[v]}
        assert own == set(forest.pieces(batch)[graph].nonzero()[:, 0].tolist())


def test_names_of_few_training_graphs_cannot_be_asked_for(batch):
    forest, names = Forest(1, trees=1, leaves=2, share=0.5), fragments(batch, ROUNDS)
    forest.meet(names.repeat(4, 1), torch.cat([batch.graph_of_node + 5 * k for k in range(4)]))
    having = forest.pieces(batch)[:, : forest.columns].sum(dim=0)
    assert int(having.max()) >= 2
    assert not bool((having == 1).any())  # which four training graphs have, and five must


def test_neither_names_nor_company_matter(forest, batch):
    belief = forest.belief(forest.pieces(batch))
    other = renamed(batch, order_within(batch, 3))
    torch.testing.assert_close(forest.belief(forest.pieces(other)), belief)
    for graph in range(batch.num_graphs):
        torch.testing.assert_close(forest.belief(forest.pieces(alone(batch, graph)))[0], belief[graph])


def with_forest(task: Task, batch) -> GraphModel:
    torch.manual_seed(0)
    features = Features(Columns((13, 13)), Columns((13,) * 5))
    settings = {"dim": 8, "depth": 1, "head_dim": 4, "trees": 3, "leaves": 9, "forest_share": 0.25, "dropout": 0.0}
    return build_model("mnagt", settings | {"subtree_dropout": 0.0}, features, task.outputs)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_the_answer_is_between_that_of_the_network_and_that_of_the_trees(task, batch):
    model = with_forest(task, batch).eval()
    network = model(batch)  # not grown, it says nothing
    drawn(forest_of(model), batch, task)
    believed = 0.75 * task.belief(network) + 0.25 * forest_of(model).belief(forest_of(model).pieces(batch))
    torch.testing.assert_close(task.belief(model(batch)), believed / (believed.sum(1, True) if task is TASKS[0] else 1))
    assert torch.equal(model.train()(batch), model.head(model.embed(batch)))  # nor does it in training


def test_an_answer_that_is_sure_stays_a_number(batch):
    model = with_forest(TASKS[1], batch).eval()
    drawn(forest_of(model), batch, TASKS[1])
    forest_of(model).value.zero_()
    last = list(model.head.parameters())[-1]
    torch.nn.init.constant_(last, -1e4)
    assert bool(model(batch).isfinite().all())


def test_names_are_as_many_as_they_are_said_to_be(batch):
    assert fragments(batch, ROUNDS).shape == (24, NAMES)
