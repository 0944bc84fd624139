"""GRPE: relative encodings of pairs of nodes on queries, keys and values.

Park, Chang, Lee, Kim, Hwang: GRPE: Relative Positional Encoding for Graph Transformer, 2022. Differs from the original
in tables of each layer's own (an option there), in one entry for pairs too far apart and pairs without a path, in
reading all edge columns, and in a choice of readout (``cls`` is its task token).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.kernels import Hop, Hops
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.attention.pairs import edge_pairs, in_each_graph, pair_of_edge, self_pairs, softmax
from mnagt.graphs.batch import GraphBatch, cached_per_batch
from mnagt.graphs.encodings import shortest_paths
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.sparse import take
from mnagt.models.builders import make_layer, make_model
from mnagt.models.config import ReadoutName, TransformerLayerConfig
from mnagt.nn.encoders import EdgeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.settings import PositiveInt


@dataclass(frozen=True)
class GrpeConfig(TransformerLayerConfig):
    max_distance: PositiveInt = 5
    """Shortest paths are told apart up to this length; all longer ones count the same."""
    readout: ReadoutName = "mean"


@cached_per_batch
def relations(graph: GraphBatch, max_distance: int) -> Float[Tensor, "pairs codes"]:
    """What the nodes of each pair are to each other, ones and zeros.

    One column for each distance, one for 'farther', then one each for 'no edge', 'the same node' and 'an edge'.
    """
    distance = F.one_hot(shortest_paths(graph, max_distance).long(), max_distance + 2).float()
    is_edge, is_self = distance.new_zeros(2, len(distance))
    is_edge[edge_pairs(graph)] = 1
    is_self[self_pairs(graph)] = 1
    return torch.cat([distance, torch.stack([1 - is_edge.maximum(is_self), is_self, is_edge], dim=1)], dim=1)


class RelativeAttention(MultiKernelAttention):
    r"""Attention in which pairs (i, j) have vectors of their own.

    .. math:: a_{ij} = \mathrm{softmax}_j \frac{q_i \cdot k_j + q_i \cdot R^q_{ij} + k_j \cdot R^k_{ij}}{\sqrt d},
              \qquad z_i = \sum_j a_{ij} (v_j + R^v_{ij})

    :math:`R_{ij}` is the sum of the table entries for what i and j are to each other, and of a vector that says what
    the edges from j to i carry.
    """

    def __init__(self, config: GrpeConfig, edges: Columns) -> None:
        heads, head_dim, max_distance = config.heads, config.head_dim, config.max_distance
        super().__init__(config.dim, [Hop(0)], heads=heads, head_dim=head_dim)
        self.max_distance = max_distance
        self.query_table, self.key_table, self.value_table = (
            nn.Parameter(torch.randn(max_distance + 5, heads, head_dim) * head_dim**-0.5) for _ in range(3)
        )
        self.edges = EdgeEncoder(edges, 3 * heads * head_dim) if edges else None

    def forward(self, hops: Hops) -> Float[Tensor, "nodes kernels dim"]:
        x, graph, heads = [hops[0]], hops.graph, (self.heads, self.head_dim)
        q, k, v = (to(x)[:, 0].unflatten(1, heads) for to in (self.to_query, self.to_key, self.to_value))
        relation = relations(graph, self.max_distance).to(q.dtype)
        edges = None if self.edges is None else self.edges(graph).unflatten(1, (3, *heads)).unbind(dim=1)

        of_query, of_key = (
            torch.einsum("nhd,chd->nhc", t, table) for t, table in ((q, self.query_table), (k, self.key_table))
        )
        score = in_each_graph("gihd,gjhd->gijh", q, k, graph=graph)
        score = score + in_each_graph("gijc,gihc->gijh", relation, of_query, graph=graph)
        score = score + in_each_graph("gijc,gjhc->gijh", relation, of_key, graph=graph)
        if edges is not None:
            at_end, at_start = (take(graph.edges_into.transposed, q.flatten(1)), take(graph.edge_sources, k.flatten(1)))
            edge_score = at_end.view_as(edges[0]) * edges[0] + at_start.view_as(edges[1]) * edges[1]
            score = score + pair_of_edge(graph).transposed @ edge_score.sum(dim=2)
        weight = softmax(score * self.head_dim**-0.5, graph)

        z = in_each_graph("gijh,gjhd->gihd", weight, v, graph=graph)
        met = in_each_graph("gijh,gijc->gihc", weight, relation, graph=graph)
        z = (z + torch.einsum("nhc,chd->nhd", met, self.value_table)).flatten(1)
        if edges is not None:
            z = z + graph.edges_into @ (take(pair_of_edge(graph), weight)[:, :, None] * edges[2]).flatten(1)
        return self.to_out.each(z[:, None])


def grpe(config: GrpeConfig, features: Features, outputs: int) -> GraphModel:
    """Relative encodings of shortest paths and edges on queries, keys and values."""
    layers = (make_layer(config, RelativeAttention(config, features.edges)) for _ in range(config.depth))
    return make_model(config, features, outputs, layers, head_dropout=config.dropout)
