"""A forest predicts as its trees do, one test after the other, and joins a network as a member of an ensemble."""

import pytest
import torch
from strategies import alone, order_within, random_batch, renamed
from woods import grow_at_random

from mnagt.graphs.features import Columns, Features
from mnagt.graphs.weisfeiler_lehman import fragment_colours
from mnagt.inference.random_forest import (
    ITERATIONS,
    NUM_COLOURS,
    SLOTS,
    VOCABULARY_SIZE,
    ForestEnsemble,
    RandomForest,
)
from mnagt.models.registry import build_model
from mnagt.tasks import MultiLabel, Regression, SingleLabel, Task

TASKS = [SingleLabel(("a", "b")), MultiLabel(("q", "r")), Regression(("t", "u"), mean=(0.0, 5.0), std=(1.0, 2.0))]


@pytest.fixture
def batch():
    return random_batch([5, 1, 7, 2, 9], 0.4, seed=0, node_labels=True, edge_labels=True)


@pytest.fixture
def forest(batch) -> RandomForest:
    forest = RandomForest(2, trees=3, max_leaves=9)
    grow_at_random(forest, batch)
    return forest


def walk(forest: RandomForest, tree: int, has: set[int]) -> float:
    """The slow way: from the root, one test after the other."""
    node = int(forest.root[tree])
    while True:
        absent, present = forest.child[node].tolist()
        if absent == node:
            return float(forest.value[node])
        node = present if int(forest.feature[node]) in has else absent


def test_a_prediction_is_the_mean_over_the_leaves_that_tests_lead_to(forest, batch):
    features = forest.presence_features(batch)
    for graph, row in enumerate(forest(batch)):
        has = set(features[graph].nonzero()[:, 0].tolist())
        for output, probability in enumerate(row):
            mean = sum(walk(forest, output * 3 + tree, has) for tree in range(3)) / 3
            odds = mean / (1 - mean) / float(forest.odds[output])
            assert float(probability) == pytest.approx(odds / (1 + odds), rel=1e-5)


def test_as_many_steps_as_the_deepest_tree_has_give_the_same(forest, batch):
    expected, before = forest(batch), forest.steps
    forest.limit_steps()
    assert 0 < forest.steps < before
    torch.testing.assert_close(forest(batch), expected, rtol=0, atol=0)
    forest.steps -= 1
    assert (forest(batch) != expected).any()


def test_a_feature_is_one_if_any_node_has_its_colour(batch):
    forest, colours = RandomForest(1, trees=1, max_leaves=2), fragment_colours(batch, ITERATIONS)
    forest.fit_vocabulary(colours.repeat(5, 1), torch.cat([batch.graph_of_node + 5 * k for k in range(5)]))
    known = forest.column[colours.long() % SLOTS + SLOTS * torch.arange(NUM_COLOURS)].tolist()
    assert max(max(row) for row in known) < NUM_COLOURS * VOCABULARY_SIZE
    for graph in range(batch.num_graphs):
        own = {column for v in (batch.graph_of_node == graph).nonzero()[:, 0] for column in known[v]}
        assert own == set(forest.presence_features(batch)[graph].nonzero()[:, 0].tolist())


def test_colours_of_few_training_graphs_are_no_features(batch):
    forest, colours = RandomForest(1, trees=1, max_leaves=2), fragment_colours(batch, ITERATIONS)
    forest.fit_vocabulary(colours.repeat(4, 1), torch.cat([batch.graph_of_node + 5 * k for k in range(4)]))
    having = forest.presence_features(batch)[:, : forest.columns].sum(dim=0)
    assert int(having.max()) >= 2
    assert not bool((having == 1).any())  # which four training graphs have, and five must


def test_neither_the_order_of_nodes_nor_other_graphs_matter(forest, batch):
    probability = forest(batch)
    torch.testing.assert_close(forest(renamed(batch, order_within(batch, 3))), probability)
    for graph in range(batch.num_graphs):
        torch.testing.assert_close(forest(alone(batch, graph))[0], probability[graph])


def ensemble(task: Task, forest: RandomForest) -> ForestEnsemble:
    torch.manual_seed(0)
    features = Features(Columns((13, 13)), Columns((13,) * 5))
    network = build_model("mnagt", {"dim": 8, "depth": 1, "head_dim": 4}, features, task.num_outputs).eval()
    return ForestEnsemble(network, forest, task, 0.25)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_the_ensemble_averages_the_probabilities_of_network_and_forest(task, forest, batch):
    model = ensemble(task, forest)
    mean = 0.75 * task.to_probability(model.network(batch)) + 0.25 * forest(batch)
    mean = mean / (mean.sum(1, True) if task is TASKS[0] else 1)
    torch.testing.assert_close(task.to_probability(model(batch)), mean)


def test_an_output_for_a_certain_answer_is_finite(forest, batch):
    model = ensemble(TASKS[1], forest)
    torch.nn.init.zeros_(forest.value)
    torch.nn.init.constant_(list(model.network.head.parameters())[-1], -1e4)
    assert bool(model(batch).isfinite().all())


def test_there_are_as_many_colours_as_features_have_tables(batch):
    assert fragment_colours(batch, ITERATIONS).shape == (24, NUM_COLOURS)


def test_settings_without_trees_have_no_forest():
    assert RandomForest.from_settings({"dim": 8}, 2) is None
    assert RandomForest.from_settings({"forest_trees": 0, "forest_max_leaves": 8}, 2) is None
