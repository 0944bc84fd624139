"""Readouts of whole molecules: fingerprints, descriptors of RDKit or of a table, and a linear map of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.dropout import Dropout
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import get_encoding
from mnagt.graphs.molecules import COMPUTED_DESCRIPTORS, TABLE_DESCRIPTORS, component_of_node
from mnagt.graphs.sparse import take
from mnagt.linear import Linear
from mnagt.nn.decision_trees import presence_features
from mnagt.nn.readouts import Readout
from mnagt.nn.shapes import GraphVectors, NodeVectors

IDENTIFIERS = "morgan-identifiers"
DESCRIPTORS, NUM_DESCRIPTORS = "rdkit-descriptors", 217
MAX_DEVIATIONS = 10.0
"""Standardised values are cut to this size: some descriptors of a few molecules are millions of times the others'."""
VECTORS = "descriptor-vectors"
"""The encoding of nodes that holds the vector of their molecule."""
MORGAN_RADIUS, MORGAN_BITS = 2, 2048


class MorganBits(Readout):
    """The Morgan fingerprint of each molecule: 1 where it has a bit. The last column is for identifiers of no bit.

    Fingerprints of several components stand side by side.
    """

    def __init__(self, radius: int, bits: int, components: int = 1) -> None:
        super().__init__(bits * components + 1)
        self.radius, self.bits, self.encodings = radius, bits, {IDENTIFIERS: radius}

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        identifiers = get_encoding(graph, IDENTIFIERS, self.radius)
        bit = identifiers % self.bits + self.bits * component_of_node(graph)[:, None]
        bit = torch.where(identifiers < 0, self.dim - 1, bit)
        return presence_features(bit, graph.graph_of_node.long(), graph.num_graphs, self.dim).float()


class Descriptors(Readout):
    """RDKit's descriptors of each molecule, NaN where one has no value; those of several components side by side."""

    def __init__(self, components: int = 1) -> None:
        super().__init__(NUM_DESCRIPTORS * components)
        self.components, self.encodings = components, {DESCRIPTORS: NUM_DESCRIPTORS}

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        descriptors = get_encoding(graph, DESCRIPTORS, NUM_DESCRIPTORS)
        if self.components == 1:
            return take_first_rows(descriptors, graph)
        owner = graph.graph_of_node.long() * self.components + component_of_node(graph)
        first = torch.full((graph.num_graphs * self.components,), len(descriptors), device=descriptors.device)
        first = first.scatter_reduce(0, owner, torch.arange(len(descriptors), device=descriptors.device), "amin")
        return F.pad(descriptors, (0, 0, 0, 1), value=math.nan)[first].view(graph.num_graphs, self.dim)


def take_first_rows(
    encoding: Float[Tensor, "nodes columns"], graph: GraphBatch, missing: float = math.nan
) -> Float[Tensor, "graphs columns"]:
    """The row of each graph's first node; ``missing`` for a graph without nodes."""
    if not len(encoding):
        return encoding.new_full((graph.num_graphs, encoding.shape[1]), missing)
    rows = encoding[graph.node_ptr[:-1].clamp(max=len(encoding) - 1).long()]
    return rows.where((graph.node_ptr.diff() > 0)[:, None], missing)


class TableColumns(Readout):
    """Columns of a table, with a row for each molecule; NaN where a value is missing."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.encodings = {TABLE_DESCRIPTORS: dim}

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        columns = graph.encodings.get(TABLE_DESCRIPTORS)
        if columns is None or columns.shape[1] != self.dim:
            raise InputError(
                f"the model reads {self.dim} columns of a table beside the graphs, and these graphs come without them; "
                "give a table of molecules that has them, or the table that has (--descriptors)"
            )
        return take_first_rows(columns, graph)


class MoleculeDescriptors(Readout):
    """A linear map of descriptors, standardised with mean and deviation of the training part.

    Columns of only 0 and 1 stay as they are. Missing values count as the mean, and columns that are constant in the
    training part as 0.

    Args:
        dim: columns of the result.
        names: 'rdkit2d' for RDKit's descriptors, 'morgan' for a Morgan fingerprint; others are columns of a table.
        dropout: share of the descriptors dropped in training.
        components: molecules of a graph; their descriptors stand side by side.

    >>> MoleculeDescriptors(8, ["rdkit2d", "temperature"]).encodings
    {'rdkit-descriptors': 217, 'table-descriptors': 1}
    """

    mean: Float[Tensor, "columns"]
    scale: Float[Tensor, "columns"]

    def __init__(self, dim: int, names: Sequence[str], dropout: float = 0.0, components: int = 1) -> None:
        super().__init__(dim)
        self.dropout = Dropout(dropout)
        computed = {
            "rdkit2d": lambda: Descriptors(components),
            "morgan": lambda: MorganBits(MORGAN_RADIUS, MORGAN_BITS, components),
        }
        parts: list[Readout] = [computed[name]() for name in COMPUTED_DESCRIPTORS if name in names]
        if columns := len(set(names) - set(COMPUTED_DESCRIPTORS)):
            parts.append(TableColumns(columns))
        self.parts: Sequence[Readout] = nn.ModuleList(parts)  # type: ignore[assignment]
        width = sum(part.dim for part in self.parts)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.map = Linear(width, dim)
        self.encodings = {name: size for part in parts for name, size in part.encodings.items()}

    def fit_scaling(self, batches: Iterable[GraphBatch]) -> None:
        """Compute mean and deviation of each column over the graphs of ``batches``: the training part."""
        values = torch.cat([self.values(batch).double() for batch in batches])
        is_known = values.isfinite()
        count = is_known.sum(dim=0).clamp(min=1)
        mean = values.nan_to_num().sum(dim=0) / count
        deviation = ((values - mean).where(is_known, 0).square().sum(dim=0) / count).sqrt()
        is_binary = ((values == 0) | (values == 1) | ~is_known).all(dim=0)
        scale = torch.where(deviation > 1e-6 * mean.abs(), 1 / deviation, 0.0)
        self.mean.copy_(mean.where(~is_binary, 0))
        self.scale.copy_(scale.where(~is_binary | (scale == 0), 1))

    def values(self, graph: GraphBatch) -> Float[Tensor, "graphs columns"]:
        """The descriptors as they are; NaN where one is missing."""
        nothing = torch.zeros(graph.num_nodes, 0, device=graph.device)
        return torch.cat([part(nothing, graph) for part in self.parts], dim=1)

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> tuple[NodeVectors, GraphBatch]:
        """Adds the vector of each molecule to the graph's encodings, before other readouts add nodes."""
        standard = (self.values(graph) - self.mean) * self.scale
        standard = standard.nan_to_num().clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS).to(x.dtype)
        vector = self.map(self.dropout(standard))
        return x, replace(graph, encodings={**graph.encodings, VECTORS: take(graph.graph_of, vector)})

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> GraphVectors:
        return take_first_rows(graph.encodings[VECTORS], graph, missing=0.0)
