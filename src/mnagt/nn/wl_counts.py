"""A linear model over WL subtree counts, as a table of weights that nodes look their subtrees up in."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import get_encoding
from mnagt.graphs.features import Features
from mnagt.graphs.weisfeiler_lehman import STRUCTURAL_COLOURS
from mnagt.nn.shapes import GraphVectors, NodeVectors
from mnagt.nn.wl_features import NodeSum

COLOURS = "subtree-colours"
BITS = 31
"""Of a WL colour."""

Normalisation = Literal["presence", "log", "raw", "l2", "log-l2"]
"""What a count n becomes: 1, log(1 + n), or n; with l2, all that a graph has is divided by its Euclidean norm."""


class WLCounts(NodeSum):
    r"""Outputs :math:`b + \sum_c \phi_c(G)\, w_c`, where :math:`\phi_c(G)` is the normalised count of WL colour c.

    A colour that n nodes of a graph have counts as :math:`f(n)`, so each of these nodes adds
    :math:`f(n)/n \cdot w_c`: the sum over colours is one over nodes and iterations. Colours that are not in the
    vocabulary count for nothing.

    ``initial`` is the number of colours before the first iteration (``subtree_colours``).

    >>> WLCounts(outputs=2, iterations=3, initial=1, normalisation="log").encodings
    {'subtree-colours': 3}
    """

    sized: ClassVar[tuple[str, ...]] = ("key", "weight")
    key: Int[Tensor, "colours"]
    """The vocabulary, sorted: column and WL colour as one number (``colour_keys``)."""
    weight: Float[Tensor, "colours outputs"]
    bias: Float[Tensor, "outputs"]
    normalisation: Normalisation

    def __init__(self, outputs: int, iterations: int, initial: int, normalisation: Normalisation) -> None:
        super().__init__(outputs)
        self.iterations, self.colours, self.normalisation = iterations, initial + iterations, normalisation
        self.encodings = {COLOURS: iterations}
        self.register_buffer("key", torch.zeros(0, dtype=torch.long))
        self.weight = nn.Parameter(torch.zeros(0, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        return super().forward(x, graph) + self.bias

    def node_features(self, graph: GraphBatch) -> NodeVectors:
        """What each node adds to the outputs of its graph."""
        colours, width = get_encoding(graph, COLOURS, self.iterations)[:, : self.colours], self.colours
        row = find_sorted(self.key, colour_keys(colours).flatten())
        if not len(self.key):
            return self.weight.sum() + torch.zeros(graph.num_nodes, self.dim, device=row.device)
        is_known = row >= 0
        graph_of_row = graph.graph_of_node.long()[:, None].expand(-1, width).flatten()
        count = count_equal(graph_of_row * (len(self.key) + 1) + row + 1).to(self.weight.dtype)
        counted = normalise_counts(count, self.normalisation)
        share = is_known * counted / count
        weight = self.weight[row.clamp(min=0)]
        features = (weight * share[:, None]).view(-1, width, self.dim).sum(dim=1)
        if not self.normalisation.endswith("l2"):
            return features
        squares = (share * counted).view(-1, width).sum(dim=1, keepdim=True)
        norm = (graph.nodes_of @ squares).clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
        return features / norm.index_select(0, graph.graph_of_node.long())


def initial_colours(features: Features) -> int:
    """How many colours a node has before the first iteration."""
    return 1 if features.nodes.labels else STRUCTURAL_COLOURS


def colour_keys(colours: Int[Tensor, "nodes columns"]) -> Int[Tensor, "nodes columns"]:
    """One number for each column and colour; those of earlier columns are smaller."""
    return colours.long() + (torch.arange(colours.shape[1], device=colours.device) << BITS)


def find_sorted(values: Int[Tensor, "rows"], wanted: Int[Tensor, "some"]) -> Int[Tensor, "some"]:
    """The row of each wanted number among ``values``, which are sorted; -1 where it is not there.

    A binary search in operations that ONNX has.

    >>> find_sorted(torch.tensor([2, 3, 5, 7, 11]), torch.tensor([7, 4, 2]))
    tensor([ 3, -1,  0])
    """
    row, last = torch.zeros_like(wanted), len(values) - 1
    if last < 0:
        return row - 1
    for bit in reversed(range(last.bit_length())):
        further = (row + 2**bit).clamp(max=last)
        row = torch.where(values[further] <= wanted, further, row)
    return torch.where(values[row] == wanted, row, -1)


def count_equal(values: Int[Tensor, "some"]) -> Int[Tensor, "some"]:
    """For each number how often it occurs.

    >>> count_equal(torch.tensor([5, 3, 5, 5]))
    tensor([3, 1, 3, 3])
    """
    order = values.argsort()
    ordered = values[order]
    is_new = torch.cat([torch.zeros_like(ordered[:1]), (ordered[1:] != ordered[:-1]).long()])
    group = is_new.cumsum(0)
    count = torch.zeros_like(values).scatter_add(0, group, torch.ones_like(values))
    return torch.zeros_like(values).scatter(0, order, count[group])


def normalise_counts(count: Float[Tensor, "some"], normalisation: Normalisation) -> Float[Tensor, "some"]:
    """The counts as the linear model sees them, before they are divided by the norm of a graph."""
    match normalisation:
        case "presence":
            return torch.ones_like(count)
        case "log" | "log-l2":
            return count.log1p()
        case _:
            return count
