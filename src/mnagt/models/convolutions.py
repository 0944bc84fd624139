"""Message passing, one step at a time: modules from (X, graph) to X.

Deterministic on CPU and GPU, and free of PyTorch Geometric's import; the tests hold them against its layers.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.adjacency import propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns
from mnagt.graphs.sparse import take
from mnagt.linear import Linear
from mnagt.models.encoders import EdgeEncoder
from mnagt.models.norms import BatchNorm
from mnagt.registry import lookup


class Mlp(nn.Module):
    """Two linear maps with BatchNorm and ReLU between, as in GIN. The norm would undo a bias before it."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = Linear(dim, hidden, bias=False), Linear(hidden, dim)
        self.norm = BatchNorm(hidden, relu=True)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return self.second(self.norm(self.first(x), graph.real_nodes))


class GCN(nn.Module):
    r""":math:`\hat A X W` (Kipf & Welling, 2017)."""

    def __init__(self, dim: int, edges: Columns | None = None) -> None:
        super().__init__()
        self.project = Linear(dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return propagate(self.project(x), graph)


class GIN(nn.Module):
    r""":math:`\mathrm{MLP}(x_v + \sum_{u \to v} x_u)` (Xu et al., 2019), with its epsilon at 0."""

    def __init__(self, dim: int, edges: Columns | None = None) -> None:
        super().__init__()
        self.mlp = Mlp(dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return self.mlp(graph.neighbours.product(x, with_self=True), graph)


class GINE(nn.Module):
    r""":math:`\mathrm{MLP}(x_v + \sum_{e: u \to v} \mathrm{ReLU}(x_u + e))` (Hu et al., 2020): GIN that reads edges."""

    def __init__(self, dim: int, edges: Columns) -> None:
        super().__init__()
        self.edges = EdgeEncoder(edges, dim)
        self.mlp = Mlp(dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        message = (take(graph.edge_sources, x) + self.edges(graph)).relu()
        return self.mlp(x + graph.edges_into @ message, graph)


class Block(nn.Module):
    """A convolution, BatchNorm and ReLU, with dropout: one layer of a GNN."""

    def __init__(self, conv: nn.Module, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = conv
        self.norm, self.dropout = BatchNorm(dim, relu=True), nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return self.dropout(self.norm(self.conv(x, graph), graph.real_nodes))


CONVOLUTIONS: dict[str, Callable[[int, Columns], nn.Module]] = {"gcn": GCN, "gin": GIN, "gine": GINE}


def convolution(name: str, dim: int, edges: Columns) -> nn.Module:
    """The convolution called ``name``; 'auto' is GINE where edges carry columns, else GIN."""
    if name == "auto":
        name = "gine" if edges else "gin"
    return lookup(CONVOLUTIONS, name, "convolution")(dim, edges)
