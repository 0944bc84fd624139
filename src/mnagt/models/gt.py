"""GT: attention along edges.

Dwivedi, Bresson: A Generalization of Transformer Networks to Graphs, 2020. As in their code: Laplacian eigenvectors
added to the nodes, their signs flipped at random in training; attention along edges alone, no node to itself; edge
columns multiply the scores channel by channel and are updated in every layer; BatchNorm after each branch.

GT has a stack of its own, also without edge columns: scores are clamped to [-5, 5] and 1e-6 is added to the sum of the
weights, so that no mask of ``BIASES`` gives the same numbers; cost grows with edges, not with pairs of nodes. Differs
from the original in the last layer, which leaves edges as they are; in scores without an edge term where edges have no
columns (theirs may be a constant 1 through a linear map); and in the head, of two layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.dropout import Dropout
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.sparse import take
from mnagt.linear import Linear
from mnagt.models.builders import make_model
from mnagt.models.config import NormName, ReadoutConfig, ReadoutName, Repeats, SplitHeadsConfig
from mnagt.nn.convolutions import along_edges, ends
from mnagt.nn.encoders import EdgeEncoder, NodeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import feed_forward
from mnagt.nn.norms import NORMS
from mnagt.nn.norms import Rows as RowKind
from mnagt.nn.shapes import EdgeVectors, NodeVectors
from mnagt.settings import NonNegativeInt, PositiveInt

SCORE = 5.0
"""Scores are cut to this magnitude."""
EPS = 1e-6
"""Added to the sum of a node's weights."""

Rows = Float[Tensor, "rows dim"]
NodesAndEdges = tuple[NodeVectors, EdgeVectors | None]


@dataclass(frozen=True)
class GtConfig(ReadoutConfig, SplitHeadsConfig):
    depth: Repeats = 5
    heads: PositiveInt = 8
    norm: NormName = "batch"
    """Normalisation after attention and feed-forward: batch, layer or none."""
    readout: ReadoutName = "mean"
    laplacian: NonNegativeInt = 8
    """Laplacian eigenvectors added to the nodes, this many; 0 for none."""


class EdgeAttention(nn.Module):
    r"""Attention along edges; a node without any gets zeros.

    .. math:: z_i = \sum_{j \to i} \alpha_{ij} v_j, \qquad \alpha_{ij} = \mathrm{softmax}_j \sum_c s_{ijc}, \qquad
              s_{ij} = \frac{q_i \odot k_j}{\sqrt{d}} \odot e_{ij}

    The sum over a head's channels c is cut to [-5, 5]. Given edges, :math:`s` is returned too, else there may be none.
    """

    def __init__(self, dim: int, heads: int, *, reads_edges: bool) -> None:
        super().__init__()
        self.to_query, self.to_key, self.to_value = (Linear(dim, dim, bias=False) for _ in range(3))
        self.to_edge = Linear(dim, dim, bias=False) if reads_edges else None
        self.heads = heads

    def forward(self, x: NodeVectors, edges: EdgeVectors | None, graph: GraphBatch) -> NodesAndEdges:
        if edges is None and along_edges(x, graph):
            from mnagt.ops.edge_attention import AttendAlongEdges, Score

            maps = (self.to_query, self.to_key, self.to_value)
            q, k, v = (project(x).unflatten(1, (self.heads, -1)) for project in maps)
            score, scale = Score("cut", SCORE, EPS), q.shape[2] ** -0.5
            return AttendAlongEdges.apply(q, k, v, ends(graph), score, scale, False).flatten(1), None  # type: ignore
        query = take(graph.edges_into.transposed, self.to_query(x))
        key, value = (take(graph.edge_sources, project(x)) for project in (self.to_key, self.to_value))
        score = query * key / (x.shape[1] // self.heads) ** 0.5
        if edges is not None and self.to_edge is not None:
            score = score * self.to_edge(edges)
        of_head = score.unflatten(1, (self.heads, -1)).sum(dim=2)
        weight = of_head.clamp(-SCORE, SCORE).exp()
        weighted = (weight[:, :, None] * value.unflatten(1, (self.heads, -1))).flatten(1)
        total = (graph.edges_into @ weight).repeat_interleave(x.shape[1] // self.heads, dim=1)
        return graph.edges_into @ weighted / (total + EPS), score


class Branches(nn.Module):
    """What follows attention: dropout, a linear map, the residual, a norm, and the feed-forward network likewise."""

    def __init__(self, dim: int, norm: str, dropout: float, rows: RowKind) -> None:
        super().__init__()
        self.project, self.ffn = Linear(dim, dim), feed_forward(dim, 2 * dim, dropout, nn.ReLU)
        self.norm_attention, self.norm_ffn = (NORMS[norm](dim, rows=rows) for _ in range(2))
        self.dropout = Dropout(dropout)

    def forward(self, x: Rows, z: Rows, graph: GraphBatch) -> Rows:
        x = self.norm_attention(x + self.project(self.dropout(z)), graph)
        return self.norm_ffn(x + self.ffn(x), graph)


class GtLayer(nn.Module):
    """Attention along edges, then the branches of the nodes, and those of the edges if they are updated."""

    def __init__(self, config: GtConfig, *, reads_edges: bool, updates_edges: bool) -> None:
        super().__init__()
        self.attention = EdgeAttention(config.dim, config.heads, reads_edges=reads_edges)
        self.of_nodes = Branches(config.dim, config.norm, config.dropout, "nodes")
        self.of_edges = Branches(config.dim, config.norm, config.dropout, "edges") if updates_edges else None

    def forward(self, x: NodeVectors, edges: EdgeVectors | None, graph: GraphBatch) -> NodesAndEdges:
        z, score = self.attention(x, edges, graph)
        x = self.of_nodes(x, z, graph)
        if edges is not None and score is not None and self.of_edges is not None:
            edges = self.of_edges(edges, score, graph)
        return x, edges


class GtStack(nn.Module):
    """All layers, with the edges that they hand on."""

    def __init__(self, dim: int, columns: Columns, layers: Sequence[GtLayer]) -> None:
        super().__init__()
        self.edges = EdgeEncoder(columns, dim) if columns else None
        self.layers = nn.ModuleList(layers)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        edges = None if self.edges is None else self.edges(graph)
        for layer in self.layers:
            x, edges = layer(x, edges, graph)
        return x


def gt(config: GtConfig, features: Features, outputs: int) -> GraphModel:
    """Attention along edges, edge features in the score, Laplacian encodings."""
    reads_edges = bool(features.edges)

    layers = [
        GtLayer(config, reads_edges=reads_edges, updates_edges=reads_edges and n + 1 < config.depth)
        for n in range(config.depth)
    ]
    encoder = NodeEncoder(features.nodes, config.dim, laplacian=config.laplacian)
    stack = GtStack(config.dim, features.edges, layers)
    return make_model(config, features, outputs, [stack], encoder=encoder, head_dropout=config.dropout)
