"""A random forest over the presence of WL colours, as tensors: a member of an ensemble with a network."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import get_encoding
from mnagt.nn.decision_trees import Trees, measure_depth, presence_features
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.wl_features import most_common_colours
from mnagt.tasks import Task

COLOURS, ITERATIONS = "fragment-colours", 3
NUM_COLOURS = 2 * ITERATIONS + 1
"""Of each node (``fragment_colours``)."""
VOCABULARY_SIZE, MIN_GRAPHS = 512, 5
"""Colours of each kind that are features, at most, and training graphs that must have one."""
SLOTS = 2**16
"""Colours are looked up modulo this: one in 128 unknown ones is taken for one of 512 known."""
MAX_DEPTH = 64
"""Of a tree. (Without a limit trees of ogbg-molhiv have up to 117 levels, and predict no better.)"""


class RandomForest(Trees):
    """Probabilities, or numbers, of graphs: for each output the mean over ``trees`` trees.

    A node of a tree tests a presence feature: whether the graph has a certain WL colour. ``training/fit_trees.py``
    grows the trees with scikit-learn.

    >>> forest = RandomForest(outputs=2, trees=10, max_leaves=8)
    >>> forest.root.shape  # no tree is grown yet
    torch.Size([20])
    """

    encodings: ClassVar[dict[str, int]] = {COLOURS: ITERATIONS}
    """Name and size of the encoding that the forest reads and that can be computed once for a data set."""
    column: Int[Tensor, "colours_by_slots"]
    """The feature of each slot; the last, which no tree tests, where no colour of the slot is known."""
    odds: Float[Tensor, "outputs"]
    """Odds of a positive among the graphs that trees were grown on, over those among all training graphs."""

    def __init__(self, outputs: int, trees: int, max_leaves: int) -> None:
        super().__init__(outputs, trees)
        self.value.requires_grad_(False)
        self.max_leaves, self.columns, self.steps = max_leaves, NUM_COLOURS * VOCABULARY_SIZE, MAX_DEPTH
        self.register_buffer("column", torch.full((NUM_COLOURS * SLOTS,), self.columns, dtype=torch.int32))
        self.register_buffer("odds", torch.ones(outputs))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], outputs: int) -> "RandomForest | None":
        """The forest, not yet grown, that a model's settings ask for."""
        trees = settings.get("forest_trees", 0)
        return cls(outputs, trees, settings["forest_max_leaves"]) if trees else None

    def fit_vocabulary(self, colours: Int[Tensor, "nodes colours"], graph: Int[Tensor, "nodes"]) -> None:
        """Choose the colours that are features, from those of the training part's nodes and the graph of each node."""
        self.column.fill_(self.columns)
        for r, column in enumerate(self.column.view(NUM_COLOURS, SLOTS)):
            vocabulary = most_common_colours(colours[:, r], graph, VOCABULARY_SIZE, MIN_GRAPHS)
            column[vocabulary % SLOTS] = torch.arange(len(vocabulary), dtype=torch.int32) + r * VOCABULARY_SIZE

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        """The probability, or number, of each output."""
        return self.predict(self.presence_features(graph))

    def presence_features(self, graph: GraphBatch) -> UInt8[Tensor, "graphs features"]:
        """1 where a graph has the WL colour of a feature."""
        colours = get_encoding(graph, COLOURS, ITERATIONS)
        slot = colours.long() % SLOTS + SLOTS * torch.arange(NUM_COLOURS, device=colours.device)
        return presence_features(self.column[slot], graph.graph_of_node, graph.num_graphs, self.columns + 1)

    def limit_steps(self) -> None:
        """Take as many steps as the deepest tree has, and no more, which makes an exported file smaller."""
        self.steps = measure_depth(self.child, self.root, MAX_DEPTH) if len(self.child) else 0

    def predict(self, features: UInt8[Tensor, "graphs features"]) -> Float[Tensor, "graphs outputs"]:
        """The mean over the trees of each output, corrected for how rare a positive is (``odds``)."""
        mean = self.leaf_values(features, self.steps).mean(dim=1).T
        return mean / (mean + self.odds * (1 - mean))


class ForestEnsemble(nn.Module):
    """A network and a random forest as one model: their probabilities are averaged with weights 1 - w and w.

    ``network`` maps a batch of graphs to outputs for ``task``.
    """

    def __init__(self, network: GraphModel, forest: RandomForest, task: Task, weight: float) -> None:
        super().__init__()
        self.network, self.forest, self.task, self.weight = network, forest, task, weight
        self.training = network.training

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        return self.combine(self.network(graph), graph)

    def combine(self, output: Float[Tensor, "graphs outputs"], graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        """The outputs of the ensemble from those of the network."""
        network, forest = self.task.to_probability(output), self.forest(graph).to(output.dtype)
        return self.task.from_probability((1 - self.weight) * network + self.weight * forest)
