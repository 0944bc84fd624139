"""Readouts that RDKit computes: bits of Morgan fingerprints, and descriptors."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.molecules import morgan_identifiers, rdkit_descriptors
from mnagt.nn.decision_trees import presence_features
from mnagt.nn.readouts import Readout
from mnagt.nn.shapes import GraphVectors

IDENTIFIERS = "morgan-identifiers"
DESCRIPTORS, NUM_DESCRIPTORS = "rdkit-descriptors", 217


class MorganBits(Readout):
    """The Morgan fingerprint of each molecule: 1 where it has a bit. The last column is for identifiers of no bit."""

    def __init__(self, radius: int, bits: int) -> None:
        super().__init__(bits + 1)
        self.radius, self.bits = radius, bits

    @property
    def encodings(self) -> dict[str, int]:
        return {IDENTIFIERS: self.radius}

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        identifiers = graph.encodings.get(IDENTIFIERS)
        identifiers = morgan_identifiers(graph, self.radius) if identifiers is None else identifiers
        bit = torch.where(identifiers < 0, self.bits, identifiers % self.bits)
        return presence_features(bit, graph.graph_of_node.long(), graph.num_graphs, self.dim).float()


class Descriptors(Readout):
    """RDKit's descriptors of each molecule, NaN where one has no value."""

    def __init__(self) -> None:
        super().__init__(NUM_DESCRIPTORS)

    @property
    def encodings(self) -> dict[str, int]:
        return {DESCRIPTORS: NUM_DESCRIPTORS}

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        found = graph.encodings.get(DESCRIPTORS)
        found = rdkit_descriptors(graph, NUM_DESCRIPTORS) if found is None else found
        return take_first_rows(found, graph)


def take_first_rows(
    encoding: Float[Tensor, "nodes columns"], graph: GraphBatch, missing: float = math.nan
) -> Float[Tensor, "graphs columns"]:
    """The row of each graph's first node; ``missing`` for a graph without nodes."""
    if not len(encoding):
        return encoding.new_full((graph.num_graphs, encoding.shape[1]), missing)
    rows = encoding[graph.node_ptr[:-1].clamp(max=len(encoding) - 1).long()]
    return rows.where((graph.node_ptr.diff() > 0)[:, None], missing)
