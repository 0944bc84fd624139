"""A forest of trees drawn at random, over the pieces of a few graphs."""

import torch

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.subtrees import fragments
from mnagt.models.forest import ROUNDS, Forest
from mnagt.models.graph_model import GraphModel
from mnagt.tasks import Task


def drawn(forest: Forest, batch: GraphBatch, task: Task, seed: int = 0) -> None:
    """Every leaf of a random tree says something else."""
    chance = torch.Generator().manual_seed(seed)
    names, graph = fragments(batch, ROUNDS), batch.graph_of_node
    forest.meet(names.repeat(5, 1), torch.cat([graph + k * batch.num_graphs for k in range(5)]))  # all are common
    there = (forest.pieces(batch)[:, : forest.columns] > 0).any(dim=0).nonzero()[:, 0]
    assert len(there) > 3
    for tree in range(forest.outputs * forest.trees):
        asked, absent, present = [-2], [-1], [-1]
        for _ in range(forest.leaves - 1):  # a leaf chosen at random becomes a question
            leaves = [node for node, child in enumerate(absent) if child < 0]
            node = leaves[int(torch.randint(len(leaves), (1,), generator=chance))]
            asked[node] = int(there[torch.randint(len(there), (1,), generator=chance)])
            absent[node], present[node] = len(asked), len(asked) + 1
            for part, end in ((asked, -2), (absent, -1), (present, -1)):
                part += [end, end]
        value = torch.rand(len(asked), generator=chance)
        forest.plant(tree, torch.tensor(asked), torch.tensor(absent), torch.tensor(present), value)
    forest.odds.uniform_(0.5, 2, generator=chance)
    forest.task = task


def forest_of(model: GraphModel) -> Forest:
    """That the model has."""
    assert model.forest is not None
    return model.forest
