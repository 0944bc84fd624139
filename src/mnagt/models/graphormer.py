"""Graphormer: attention over all nodes, with their degrees, distances and the edges between them.

Ying, Cai, Luo, Zheng, Ke, He, Shen, Liu: Do Transformers Really Perform Badly for Graph Representation?, 2021.
Centrality encoding; a learned number for each head and distance; the mean of edge columns along the shortest path, each
position on the path with its own weights; a virtual node (our CLS node) with a number of its own for its distance.

Graphormer has a stack of its own: all layers share one bias, computed once a batch, and attention is that of
``torch.nn.MultiheadAttention``. Differs from the original in the mean over all shortest paths of a pair (theirs depends
on the order of nodes); edges count on paths of up to ``max_distance`` (theirs: the first few edges of any path);
positions are counted from the attended node; the head has two layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.biases import ShortestPathBias
from mnagt.attention.shortest_paths import path_means, path_steps
from mnagt.dropout import Dropout
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.sparse import look_up
from mnagt.models.builders import make_model
from mnagt.models.config import AttentionDropoutConfig, Repeats, SplitHeadsConfig
from mnagt.nn.encoders import EdgeEncoder, NodeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import SelfAttention, feed_forward
from mnagt.nn.norms import LayerNorm
from mnagt.nn.readouts import ClsNode
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import Fraction, PositiveInt


@dataclass(frozen=True)
class GraphormerConfig(SplitHeadsConfig, AttentionDropoutConfig):
    dim: PositiveInt = 80
    depth: Repeats = 5
    heads: PositiveInt = 8
    ffn: PositiveInt = 1
    """Width of the feed-forward network, in widths of a node."""
    max_distance: PositiveInt = 20
    """Pairs farther apart count as out of reach."""
    max_degree: PositiveInt = 64
    """Nodes of a higher degree count as of this one."""
    dropout: Fraction = 0.1


class CentralityEncoder(NodeEncoder):
    """Nodes with a learned vector for the edges into them and one for the edges out of them."""

    def __init__(self, columns: Columns, dim: int, max_degree: int) -> None:
        super().__init__(columns, dim)
        self.max_degree = max_degree
        self.edges_in, self.edges_out = nn.Embedding(max_degree + 1, dim), nn.Embedding(max_degree + 1, dim)
        for table in (self.edges_in, self.edges_out):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, graph: GraphBatch) -> NodeVectors:
        degrees = (graph.in_degree, graph.neighbours.transposed.ptr.diff())
        tables = (self.edges_in.weight, self.edges_out.weight)
        return super().forward(graph) + sum(
            look_up(table, degree.clamp(max=self.max_degree)) for table, degree in zip(tables, degrees, strict=True)
        )


class PathBias(ShortestPathBias):
    """The bias of a pair's distance, and where edges have columns the mean of their terms along its shortest paths."""

    def __init__(self, heads: int, max_distance: int, edges: Columns) -> None:
        super().__init__(heads, max_distance)
        self.edges = EdgeEncoder(edges, heads) if edges else None
        self.places = nn.Parameter(torch.randn(max_distance, heads, heads) * 0.02) if edges else None

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs heads"]:
        codes = self.codes(graph)
        bias = look_up(self.distances.weight, codes)
        if self.edges is None or self.places is None:
            return bias
        edge, places = self.edges(graph), self.places
        distances = codes.clamp(max=self.max_distance + 1)  # no path leads through the virtual node
        steps = path_steps(graph, distances, self.max_distance)
        return bias + path_means(lambda n: edge @ places[n], steps, len(bias))


class GraphormerLayer(nn.Module):
    """Attention and a small network, each normalised before and with its residual; the bias is handed in."""

    def __init__(self, dim: int, attention: SelfAttention, ffn: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.ffn = attention, ffn
        self.norm_attention, self.norm_ffn = LayerNorm(dim), LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: NodeVectors, graph: GraphBatch, bias: Float[Tensor, "pairs heads"]) -> NodeVectors:
        x = x + self.dropout(self.attention(self.norm_attention(x), graph, bias))
        return x + self.dropout(self.ffn(self.norm_ffn(x)))


class GraphormerStack(nn.Module):
    """All layers, which share one bias, and a last norm."""

    def __init__(self, dim: int, bias: PathBias, layers: Sequence[GraphormerLayer], dropout: float = 0.0) -> None:
        super().__init__()
        self.bias, self.layers, self.norm = bias, nn.ModuleList(layers), LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        bias, x = self.bias(graph), self.dropout(x)
        for layer in self.layers:
            x = layer(x, graph, bias)
        return self.norm(x)


def graphormer(config: GraphormerConfig, features: Features, outputs: int) -> GraphModel:
    """Degrees, shortest paths and the edges along them in the attention scores."""

    def layer() -> GraphormerLayer:
        attention = SelfAttention(config.dim, config.heads, config.attention_dropout)
        ffn = feed_forward(config.dim, config.ffn * config.dim)
        return GraphormerLayer(config.dim, attention, ffn, config.dropout)

    bias = PathBias(config.heads, config.max_distance, features.edges)
    encoder = CentralityEncoder(features.nodes, config.dim, config.max_degree)
    stack = GraphormerStack(config.dim, bias, [layer() for _ in range(config.depth)], config.dropout)
    readout = ClsNode(config.dim)
    return make_model(config, features, outputs, [stack], encoder=encoder, readout=readout, head_dropout=config.dropout)
