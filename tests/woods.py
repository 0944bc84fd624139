"""A forest of random trees, over the WL colours of a few graphs."""

import numpy as np
import torch

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.weisfeiler_lehman import fragment_colours
from mnagt.inference.random_forest import ITERATIONS, RandomForest
from mnagt.training.fit_trees import Tree, set_trees


def grow_at_random(forest: RandomForest, batch: GraphBatch, seed: int = 0) -> None:
    """Every leaf of a random tree has another value."""
    generator = torch.Generator().manual_seed(seed)
    colours, graph = fragment_colours(batch, ITERATIONS), batch.graph_of_node
    copies = torch.cat([graph + k * batch.num_graphs for k in range(5)])  # all colours are common
    forest.fit_vocabulary(colours.repeat(5, 1), copies)
    present = (forest.presence_features(batch)[:, : forest.columns] > 0).any(dim=0).nonzero()[:, 0]
    assert len(present) > 3
    trees = []
    for _ in range(forest.outputs * forest.trees):
        feature, left, right = [-2], [-1], [-1]
        for _ in range(forest.max_leaves - 1):  # a random leaf is split
            leaves = [node for node, child in enumerate(left) if child < 0]
            node = leaves[int(torch.randint(len(leaves), (1,), generator=generator))]
            feature[node] = int(present[torch.randint(len(present), (1,), generator=generator)])
            left[node], right[node] = len(feature), len(feature) + 1
            for part, end in ((feature, -2), (left, -1), (right, -1)):
                part += [end, end]
        value = torch.rand(len(feature), generator=generator).numpy()
        trees.append(Tree(np.array(feature), np.array([left, right]).T, np.zeros(len(feature)), value, len(feature)))
    set_trees(forest, trees)
    forest.odds.uniform_(0.5, 2, generator=generator)
