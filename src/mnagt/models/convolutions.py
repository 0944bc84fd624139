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
from mnagt.models.encoders import EdgeEncoder
from mnagt.models.norms import BatchNorm
from mnagt.registry import lookup


def mlp(dim: int, hidden: int) -> nn.Sequential:
    """Two linear maps with BatchNorm and ReLU between, as in GIN."""
    return nn.Sequential(nn.Linear(dim, hidden), BatchNorm(hidden), nn.ReLU(), nn.Linear(hidden, dim))


class GCN(nn.Module):
    r""":math:`\hat A X W` (Kipf & Welling, 2017)."""

    def __init__(self, dim: int, edges: Columns | None = None) -> None:
        super().__init__()
        self.project = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return propagate(self.project(x), graph)


class GIN(nn.Module):
    r""":math:`\mathrm{MLP}(x_v + \sum_{u \to v} x_u)` (Xu et al., 2019), with its epsilon at 0."""

    def __init__(self, dim: int, edges: Columns | None = None) -> None:
        super().__init__()
        self.mlp = mlp(dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return self.mlp(x + graph.neighbours @ x)


class GINE(nn.Module):
    r""":math:`\mathrm{MLP}(x_v + \sum_{e: u \to v} \mathrm{ReLU}(x_u + e))` (Hu et al., 2020): GIN that reads edges."""

    def __init__(self, dim: int, edges: Columns) -> None:
        super().__init__()
        self.edges = EdgeEncoder(edges, dim)
        self.mlp = mlp(dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        message = (take(graph.edge_sources, x) + self.edges(graph)).relu()
        return self.mlp(x + graph.edges_into @ message)


class Block(nn.Module):
    """A convolution, BatchNorm and ReLU, with dropout: one layer of a GNN."""

    def __init__(self, conv: nn.Module, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = conv
        self.after = nn.Sequential(BatchNorm(dim), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return self.after(self.conv(x, graph))


CONVOLUTIONS: dict[str, Callable[[int, Columns], nn.Module]] = {"gcn": GCN, "gin": GIN, "gine": GINE}


def convolution(name: str, dim: int, edges: Columns) -> nn.Module:
    """The convolution called ``name``; 'auto' is GINE where edges carry columns, else GIN."""
    if name == "auto":
        name = "gine" if edges else "gin"
    return lookup(CONVOLUTIONS, name, "convolution")(dim, edges)
