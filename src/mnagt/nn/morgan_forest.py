"""A random forest over Morgan fingerprints, as tensors."""

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.molecules import morgan_identifiers
from mnagt.nn.decision_trees import find_leaves, presence_features, take_rows
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import SklearnModel
from mnagt.nn.readouts import Readout
from mnagt.nn.shapes import GraphVectors

IDENTIFIERS = "morgan-identifiers"
MAX_DEPTH = 1024
"""Of a tree. (Those of ogbg-molhiv have about a hundred levels.)"""
LINKS = ("identity", "logit", "log")
"""From the mean over trees to an output: that of a number, of a label, of a class."""


class MorganBits(Readout):
    """The Morgan fingerprint of each molecule: 1 where it has a bit. The last column is for identifiers of no bit."""

    def __init__(self, radius: int, bits: int) -> None:
        super().__init__(bits + 1)
        self.radius, self.bits = radius, bits

    @property
    def encodings(self) -> dict[str, int]:
        return {IDENTIFIERS: self.radius}

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        return self.presence(graph).float()

    def presence(self, graph: GraphBatch) -> UInt8[Tensor, "graphs bits_and_one"]:
        """The bits as bytes."""
        identifiers = graph.encodings.get(IDENTIFIERS)
        identifiers = morgan_identifiers(graph, self.radius) if identifiers is None else identifiers
        bit = torch.where(identifiers < 0, self.bits, identifiers % self.bits)
        return presence_features(bit, graph.graph_of_node.long(), graph.num_graphs, self.dim)


class Forests(nn.Module):
    """For each output the mean over ``trees`` trees, from bits to a probability or a number, and that to the output.

    >>> Forests(outputs=2, trees=10)(torch.zeros(3, 2049)).shape
    torch.Size([3, 2])
    """

    root: Int[Tensor, "outputs_by_trees"]
    feature: Int[Tensor, "tree_nodes"]
    """The bit that each node of all trees tests."""
    child: Int[Tensor, "tree_nodes 2"]
    """The next node where the bit is 0, and where it is 1; a leaf leads to itself."""
    value: Float[Tensor, "tree_nodes"]
    """Of each leaf."""
    depth: Int[Tensor, ""]
    """Of the deepest tree."""
    link: Int[Tensor, ""]
    """From means to outputs: an index of ``LINKS``."""

    def __init__(self, outputs: int, trees: int) -> None:
        super().__init__()
        self.outputs, self.trees = outputs, trees
        self.register_buffer("root", torch.zeros(outputs * trees, dtype=torch.int32))
        self.register_buffer("feature", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("child", torch.zeros(0, 2, dtype=torch.int32))
        self.register_buffer("depth", torch.zeros((), dtype=torch.int32))
        self.register_buffer("link", torch.zeros((), dtype=torch.int32))
        self.value = nn.Parameter(torch.zeros(0))

    def forward(self, bits: Float[Tensor, "graphs bits_and_one"]) -> Float[Tensor, "graphs outputs"]:
        if not len(self.value):
            return bits.new_zeros(len(bits), self.outputs) + self.value.sum()
        depth = min(int(self.depth), MAX_DEPTH)
        leaves = find_leaves(bits.to(torch.uint8), self.feature, self.child, self.root, depth)
        mean = take_rows(self.value, leaves).unflatten(0, (self.outputs, self.trees)).mean(dim=1).T
        match LINKS[int(self.link)]:
            case "logit":
                return mean.logit(eps=torch.finfo(mean.dtype).eps)
            case "log":
                return mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
            case _:
                return mean


class MorganForest(SklearnModel):
    """Bits of the Morgan fingerprint, and forests over them.

    >>> MorganForest(Features(), 2, radius=2, bits=2048, trees=10).encodings
    {'morgan-identifiers': 2}
    """

    sized = ("head.feature", "head.child", "head.value")

    def __init__(self, features: Features, outputs: int, radius: int, bits: int, trees: int) -> None:
        super().__init__(NoEncoder(), [], MorganBits(radius, bits), Forests(outputs, trees), features)
