r"""SAN: encodings learned from the Laplacian spectrum; attention along edges apart from that to all other nodes.

Kreuzer, Beaini, Hamilton, Létourneau, Tossou: Rethinking Graph Transformers with Spectral Attention, 2021. Differs from
their code in two softmaxes, for edges and for all other pairs, added as :math:`1/(1+\gamma)` and
:math:`\gamma/(1+\gamma)` as the paper prints it; in a node being among its own virtual neighbours, so that each has
one; and in norms before each branch. Signs of eigenvectors are flipped at random in training; in evaluation they are
those of ``encodings.laplacian``, which depend on the order of nodes where eigenvalues or largest entries tie.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.attend import attend
from mnagt.attention.biases import NonEdgeMask
from mnagt.attention.kernels import Hop, Hops
from mnagt.attention.multi_kernel import KernelLinear, MultiKernelAttention
from mnagt.attention.pairs import softmax_over_edges
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import flip_signs
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.sparse import take
from mnagt.models.builders import make_layer, make_model
from mnagt.models.config import ReadoutName, Repeats, TransformerLayerConfig
from mnagt.nn.encoders import EdgeEncoder, NodeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.norms import BatchNorm
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import NonNegativeFloat, NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class SanConfig(TransformerLayerConfig):
    spectrum: NonNegativeInt = 10
    """Eigenvalues and eigenvectors that encodings are learned from, smallest first; 0 for no encodings."""
    spectrum_dim: PositiveInt = 8
    """Columns of a node's vector that are left to the encodings."""
    spectrum_depth: Repeats = 1
    """Layers of the transformer over the spectrum."""
    spectrum_heads: PositiveInt = 4
    """Its heads; they divide spectrum_dim."""
    gamma: NonNegativeFloat = 0.1
    """Weight of virtual edges; 0 leaves real ones only, 1 makes both count the same."""
    readout: ReadoutName = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spectrum and self.spectrum_dim >= self.dim:
            raise InputError(f"spectrum_dim must be below dim {self.dim}, got {self.spectrum_dim}")
        if self.spectrum_dim % self.spectrum_heads:
            raise InputError(f"spectrum_heads must divide spectrum_dim {self.spectrum_dim}, got {self.spectrum_heads}")


class SpectralEncoder(NodeEncoder):
    """Node vectors whose last columns a small transformer learns from the spectrum, an eigenvector being a token."""

    def __init__(self, columns: Columns, config: SanConfig) -> None:
        width = config.spectrum_dim
        super().__init__(columns, config.dim - width)
        self.encodings = {"spectrum": config.spectrum}
        self.pair = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(width, config.spectrum_heads, 2 * width, config.dropout, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, config.spectrum_depth, enable_nested_tensor=False)

    def forward(self, graph: GraphBatch) -> NodeVectors:
        x = super().forward(graph)
        values, vectors = self._encode(graph, "spectrum").to(x.dtype).chunk(2, dim=1)
        if self.training:
            vectors = flip_signs(vectors, graph)
        is_there = values >= 0
        token = self.transformer(self.pair(torch.stack([values, vectors], dim=2)), src_key_padding_mask=~is_there)
        return torch.cat([x, (token * is_there[:, :, None]).sum(dim=1)], dim=1)


class SameForAll(nn.Module):
    """One vector for all edges, where they carry no columns."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.edge = nn.Parameter(torch.ones(dim))

    def forward(self, graph: GraphBatch) -> Float[Tensor, "dim"]:
        return self.edge


class RealAndVirtualAttention(MultiKernelAttention):
    r"""Attention along edges, and a little along all other pairs.

    .. math:: z_i = \frac{1}{1 + \gamma} \sum_{j \to i} w_{ij} v_j
                  + \frac{\gamma}{1 + \gamma} \sum_{j \not\to i} \bar w_{ij} v_j, \qquad
              w_{ij} = \mathrm{softmax}_j \frac{\sum (q_i \circ k_j \circ e_{ij})}{\sqrt d}

    :math:`\bar w` has its own queries, keys and one vector in place of e.
    """

    def __init__(self, config: SanConfig, edges: Columns) -> None:
        heads, head_dim, inner = config.heads, config.head_dim, config.heads * config.head_dim
        super().__init__(config.dim, [Hop(0)], heads=heads, head_dim=head_dim, bias=NonEdgeMask())
        self.to_virtual_query, self.to_virtual_key = (KernelLinear(1, config.dim, inner, "separate") for _ in range(2))
        self.edges = EdgeEncoder(edges, inner) if edges else SameForAll(inner)
        self.virtual_edge = nn.Parameter(torch.ones(inner))
        self.gamma = config.gamma

    def forward(self, hops: Hops) -> Float[Tensor, "nodes kernels dim"]:
        assert self.bias is not None
        x, graph, heads = [hops[0]], hops.graph, (self.heads, self.head_dim)
        query, key, value = (to(x)[:, 0] for to in (self.to_query, self.to_key, self.to_value))
        alike = take(graph.edges_into.transposed, query) * take(graph.edge_sources, key) * self.edges(graph)
        weight = softmax_over_edges(alike.unflatten(1, heads).sum(dim=2) * self.head_dim**-0.5, graph)
        brought = weight[:, :, None] * take(graph.edge_sources, value).unflatten(1, heads)
        real = graph.edges_into @ brought.flatten(1)

        query, key = self.to_virtual_query(x)[:, 0] * self.virtual_edge, self.to_virtual_key(x)[:, 0]
        query, key, value = (t.to(value.dtype).unflatten(1, heads) for t in (query, key, value))
        virtual = attend(query, key, value, graph, bias=self.bias(graph), backend=self.backend).flatten(1)
        return self.to_out.each(((real + self.gamma * virtual) / (1 + self.gamma))[:, None])


def san(config: SanConfig, features: Features, outputs: int) -> GraphModel:
    """Encodings learned from the Laplacian spectrum; attention along edges apart from that to all other nodes."""
    attentions = (RealAndVirtualAttention(config, features.edges) for _ in range(config.depth))
    layers = (make_layer(config, attention, BatchNorm) for attention in attentions)
    encoder = SpectralEncoder(features.nodes, config) if config.spectrum else None
    return make_model(config, features, outputs, layers, encoder=encoder, head_dropout=config.dropout)
