"""WL subtree features: a learned vector for each WL colour in a graph, summed."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import get_encoding
from mnagt.graphs.sparse import look_up
from mnagt.nn.readouts import Readout
from mnagt.nn.shapes import GraphVectors, NodeVectors

COLOURS, FEATURES = "wl-colours", "wl-features"
"""Encodings of nodes: the WL colours, which can be computed once for a data set, and the vectors looked up for them."""
SLOTS = 2**18
"""Colours are looked up modulo this: one in thirty unknown ones is taken for one of 8,192 known."""


class NodeSum(Readout):
    """A sum over nodes of vectors that are read off the graph alone, not off what the layers make of it."""

    def node_features(self, graph: GraphBatch) -> NodeVectors:
        """The summand of each node."""
        raise NotImplementedError

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> tuple[NodeVectors, GraphBatch]:
        """Adds the features of the nodes to the graph's encodings, unless they are there."""
        if FEATURES in graph.encodings:
            return x, graph
        return x, replace(graph, encodings={**graph.encodings, FEATURES: self.node_features(graph)})

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        return graph.nodes_of @ graph.encodings[FEATURES]


class WLFeatures(NodeSum):
    r"""A readout :math:`\sum_v \sum_r T_r[c_r(v)]`, where :math:`c_r(v)` is node v's WL colour after r iterations.

    It reads the graph alone, not what the layers make of it. A linear map of it is a linear model over subtree counts,
    on molecules as strong as deep models and fast to train; layers see what counts do not.

    Each table :math:`T_r` has ``vocabulary_size`` rows. ``fit_vocabulary`` gives them to the colours that most training
    graphs have; colours that fewer than ``min_graphs`` have add nothing, for they would only be memorised. Before it is
    fitted, all colours are hashed to rows. In training a colour of a node is dropped with probability ``dropout``.

    >>> WLFeatures(8, iterations=3, vocabulary_size=100, dropout=0.5).encodings
    {'wl-colours': 3}
    """

    row: Int[Tensor, "iterations_by_slots"]
    """The row of each slot; ~row where its colours add nothing. (They are looked up all the same, each in a row of its
    own: sent to one row, they would keep a GPU waiting for it.)"""

    def __init__(self, dim: int, iterations: int, *, vocabulary_size: int, dropout: float, min_graphs: int = 2) -> None:
        super().__init__(dim)
        self.iterations, self.vocabulary_size = iterations, vocabulary_size
        self.dropout, self.min_graphs, self.encodings = dropout, min_graphs, {COLOURS: iterations}
        self.table = nn.Embedding(iterations * vocabulary_size, dim)
        nn.init.normal_(self.table.weight, std=0.1)
        self.register_buffer("row", torch.empty(iterations * SLOTS, dtype=torch.int32))
        if not self.row.is_meta:  # where arithmetic would import torch's compiler, which takes a second
            hashed = torch.arange(SLOTS) % vocabulary_size + vocabulary_size * torch.arange(iterations)[:, None]
            self.row.copy_(hashed.flatten())

    def fit_vocabulary(self, colours: Int[Tensor, "nodes iterations"], graph: Int[Tensor, "nodes"]) -> None:
        """Choose the colours that have rows, from those of the training part's nodes and the graph of each node."""
        for r, row in enumerate(self.row.view(self.iterations, SLOTS)):
            row.copy_(~(torch.arange(SLOTS) % self.vocabulary_size + r * self.vocabulary_size))
            vocabulary = most_common_colours(colours[:, r], graph, self.vocabulary_size, self.min_graphs)
            row[vocabulary % SLOTS] = torch.arange(len(vocabulary), dtype=torch.int32) + r * self.vocabulary_size

    def node_features(self, graph: GraphBatch) -> NodeVectors:
        r"""The summand of each node, :math:`\sum_r T_r[c_r(v)]`."""
        colours = get_encoding(graph, COLOURS, self.iterations)
        row = self.row[colours.long() % SLOTS + SLOTS * torch.arange(self.iterations, device=colours.device)].long()
        weight = (row >= 0).to(self.table.weight.dtype)
        if self.training and self.dropout:
            weight = weight * (torch.rand(row.shape, device=row.device) >= self.dropout) / (1 - self.dropout)
        vectors = look_up(self.table.weight, torch.where(row < 0, ~row, row).flatten()).unflatten(0, row.shape)
        return (vectors * weight[:, :, None].to(vectors.dtype)).sum(dim=1)


def most_common_colours(
    colours: Int[Tensor, "nodes"], graph: Int[Tensor, "nodes"], count: int, min_graphs: int
) -> Int[Tensor, "some"]:
    """The ``count`` colours that most graphs have, and none that fewer than ``min_graphs`` graphs have."""
    graphs = int(graph.max()) + 1 if len(graph) else 1
    colour = torch.unique(colours.long() * graphs + graph) // graphs  # once for each graph that has it
    colour, num_graphs = colour.unique_consecutive(return_counts=True)
    colour, num_graphs = colour[num_graphs >= min_graphs], num_graphs[num_graphs >= min_graphs]
    return colour[num_graphs.argsort(descending=True, stable=True)[:count]]
