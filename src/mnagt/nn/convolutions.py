"""Message passing, one step at a time: modules from (X, graph) to X.

Deterministic on CPU and GPU, and free of PyTorch Geometric's import; the tests hold them against its layers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.dropout import Dropout
from mnagt.errors import InputError
from mnagt.graphs.adjacency import propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns
from mnagt.graphs.sparse import take
from mnagt.linear import Linear
from mnagt.nn.encoders import EdgeEncoder
from mnagt.nn.norms import BatchNorm
from mnagt.nn.shapes import NodeVectors
from mnagt.ops.functional import has_kernel, linear
from mnagt.registry import lookup

if TYPE_CHECKING:
    from mnagt.ops.edge_attention import Ends


class Mlp(nn.Module):
    """Two linear maps with BatchNorm and ReLU between, as in GIN. The norm would undo a bias before it."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = Linear(dim, hidden, bias=False), Linear(hidden, dim)
        self.norm = BatchNorm(hidden, relu=True)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return self.second(self.norm(self.first(x), graph))


def messages(x: NodeVectors, edges: EdgeEncoder, graph: GraphBatch, *, with_self: bool = False) -> NodeVectors:
    r""":math:`\sum_{e: u \to v} \mathrm{ReLU}(x_u + e)` for each node v, plus :math:`x_v` ``with_self``."""
    if edges.kinds is not None and graph.num_edges and has_kernel(x):
        from mnagt.ops.messages import Edges, SumMessages

        out = graph.edge_sources.transposed
        ends = (graph.source, graph.destination, graph.in_ptr, out.index, out.ptr)
        return SumMessages.apply(x, edges.table(), Edges(*ends, edges.kind(graph)), with_self)  # type: ignore
    y = graph.edges_into @ (take(graph.edge_sources, x) + edges(graph)).relu()
    return x + y if with_self else y


def along_edges(x: NodeVectors, graph: GraphBatch) -> bool:
    """Whether attention along edges takes the GPU kernel, which stores nothing for each edge."""
    if not has_kernel(x):
        return False
    from mnagt.ops.edge_attention import DENSE

    return graph.num_edges >= DENSE * graph.num_nodes


def ends(graph: GraphBatch) -> "Ends":
    """The edges as ``ops.edge_attention`` takes them."""
    from mnagt.ops.edge_attention import Ends

    out = graph.neighbours.transposed
    return Ends(graph.source, graph.in_ptr, out.index, out.ptr)


class GCN(nn.Module):
    r""":math:`\hat A X W` (Kipf & Welling, 2017).

    Args:
        dim: width of node vectors.
        edges: the columns that edges have; not read.

    >>> GCN(8)(torch.ones(3, 8), GraphBatch.from_edges(torch.tensor([[0], [1]]), [3])).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, edges: Columns | None = None) -> None:
        super().__init__()
        self.project = Linear(dim, dim)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return propagate(self.project(x), graph)


class GCNE(nn.Module):
    r"""GCN that reads edges, as OGB has it (Hu et al., 2020).

    .. math:: x'_v = \frac{\mathrm{ReLU}(h_v + s)}{d_v} +
              \sum_{e: u \to v} \frac{\mathrm{ReLU}(h_u + e)}{\sqrt{d_u d_v}}, \qquad h = XW

    The degrees :math:`d` count the node itself; :math:`s`, learned, is what the edge from it to itself would carry.

    Args:
        dim: width of node vectors.
        edges: the columns that edges have; each gets a vector.

    >>> graph = GraphBatch.from_edges(torch.tensor([[0], [1]]), [3], edge_labels=torch.tensor([[2]]))
    >>> GCNE(8, Columns(labels=(4,)))(torch.ones(3, 8), graph).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, edges: Columns) -> None:
        super().__init__()
        self.edges, self.project = EdgeEncoder(edges, dim), Linear(dim, dim)
        self.loop = nn.Parameter(torch.zeros(dim))

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        h, root = self.project(x), graph.inv_sqrt_degree
        message = (take(graph.edge_sources, h) + self.edges(graph)).relu()
        message = message * root[graph.source][:, None].to(message.dtype)
        loop = (h + self.loop).relu() * root.square()[:, None].to(h.dtype)
        return graph.edges_into.product(message, after=root) + loop


class SAGE(nn.Module):
    r""":math:`W_1 x_v + W_2\, \mathrm{mean}_{u \to v}\, x_u` (Hamilton et al., 2017), without bias: a norm follows.

    Where edges carry columns, :math:`\mathrm{ReLU}(x_u + e)` takes the place of :math:`x_u`.

    Args:
        dim: width of node vectors.
        edges: the columns that edges have; None for none.

    >>> SAGE(8)(torch.ones(3, 8), GraphBatch.from_edges(torch.tensor([[0], [1]]), [3])).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, edges: Columns | None = None) -> None:
        super().__init__()
        self.own, self.others = Linear(dim, dim, bias=False), Linear(dim, dim, bias=False)
        self.edges = EdgeEncoder(edges, dim) if edges else None

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        share = graph.in_degree.clamp(min=1).double().reciprocal()
        if self.edges is None:
            around = graph.neighbours.product(x, after=share)
        else:
            around = messages(x, self.edges, graph) * share[:, None].to(x.dtype)
        return self.own(x) + self.others(around)


class GAT(nn.Module):
    r"""Attention to neighbours and the node itself (Veličković et al., 2018), without bias: a norm follows.

    .. math:: h'_v = \sum_{u \to v} \alpha_{uv} h_u, \qquad h = XW, \qquad
              \alpha_{uv} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a \cdot h_u + b \cdot h_v + c \cdot e)

    in each head, heads side by side. The edge's term is there where edges carry columns; from a node to itself it is
    the mean over the edges into the node.

    Args:
        dim: width of node vectors.
        edges: the columns that edges have; None for none.
        heads: heads of attention; they divide ``dim``.
        slope: of LeakyReLU below zero.

    >>> GAT(8, heads=2)(torch.ones(3, 8), GraphBatch.from_edges(torch.tensor([[0], [1]]), [3])).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, edges: Columns | None = None, *, heads: int = 4, slope: float = 0.2) -> None:
        super().__init__()
        if dim % heads:
            raise InputError(f"heads must divide the width of nodes, got {heads} for {dim}")
        self.heads, self.slope = heads, slope
        self.project = Linear(dim, dim, bias=False)
        self.from_score = nn.Parameter(torch.empty(heads, dim // heads))  # a
        self.to_score = nn.Parameter(torch.empty(heads, dim // heads))  # b
        for score in (self.from_score, self.to_score):
            nn.init.xavier_uniform_(score)
        self.edges = EdgeEncoder(edges, dim) if edges else None
        self.edge_score = Linear(dim, heads, bias=False) if edges else None  # c

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        h = self.project(x)
        if self.edges is None and along_edges(h, graph):
            from mnagt.ops.edge_attention import AttendAlongEdges, Score

            as_source, as_destination = self._scores(h)
            one, value = torch.ones_like(as_source), h.unflatten(1, (self.heads, -1))
            q = torch.stack([as_destination, one], dim=2)  # q . k is the sum of both scores
            k = torch.stack([one, as_source], dim=2)
            z = AttendAlongEdges.apply(q, k, value, ends(graph), Score("leaky", self.slope), 1.0, True)
            return z.flatten(1)  # type: ignore
        on_edges, on_self = self.weights(h, graph)
        message = self._weigh(take(graph.edge_sources, h), on_edges)
        return graph.edges_into @ message + self._weigh(h, on_self)

    def weights(
        self, h: NodeVectors, graph: GraphBatch
    ) -> tuple[Float[Tensor, "edges heads"], Float[Tensor, "nodes heads"]]:
        """Attention weights of the edges, and of each node's loop."""
        as_source, as_destination = self._scores(h)
        ends = graph.edges_into.transposed
        on_edges, on_self = take(graph.edge_sources, as_source) + take(ends, as_destination), as_source + as_destination
        if self.edges is not None and self.edge_score is not None:
            of_edge = self.edge_score(self.edges(graph)).to(as_source.dtype)
            share = graph.in_degree.clamp(min=1).double().reciprocal()
            on_edges, on_self = on_edges + of_edge, on_self + graph.edges_into.product(of_edge, after=share)
        on_edges, on_self = F.leaky_relu(on_edges, self.slope), F.leaky_relu(on_self, self.slope)
        destination = graph.destination.long()[:, None].expand_as(on_edges)
        top = on_self.detach().scatter_reduce(0, destination, on_edges.detach(), "amax")
        on_edges, on_self = (on_edges - top[graph.destination]).exp(), (on_self - top).exp()
        total = graph.edges_into @ on_edges + on_self
        return on_edges / take(ends, total), on_self / total

    def _scores(self, h: NodeVectors) -> tuple[Float[Tensor, "nodes heads"], ...]:
        """What a node adds to the scores of edges out of it, and of those into it."""
        weight = torch.cat([torch.block_diag(*self.from_score), torch.block_diag(*self.to_score)])
        return linear(h, weight).to(weight.dtype).chunk(2, dim=1)

    def _weigh(self, rows: Float[Tensor, "rows dim"], share: Float[Tensor, "rows heads"]) -> Float[Tensor, "rows dim"]:
        return (rows.unflatten(1, (self.heads, -1)) * share[:, :, None].to(rows.dtype)).flatten(1)


class GIN(nn.Module):
    r""":math:`\mathrm{MLP}(x_v + \sum_{u \to v} x_u)` (Xu et al., 2019), with its epsilon at 0.

    Args:
        dim: width of node vectors.
        edges: the columns that edges have; not read.
        hidden: width within the MLP; ``dim`` if None.

    >>> GIN(8)(torch.ones(3, 8), GraphBatch.from_edges(torch.tensor([[0], [1]]), [3])).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, edges: Columns | None = None, *, hidden: int | None = None) -> None:
        super().__init__()
        self.mlp = Mlp(dim, hidden or dim)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return self.mlp(graph.neighbours.product(x, with_self=True), graph)


class GINE(nn.Module):
    r""":math:`\mathrm{MLP}(x_v + \sum_{e: u \to v} \mathrm{ReLU}(x_u + e))` (Hu et al., 2020): GIN that reads edges.

    Args:
        dim: width of node vectors.
        edges: the columns that edges have; each gets a vector.
        hidden: width within the MLP; ``dim`` if None.

    >>> graph = GraphBatch.from_edges(torch.tensor([[0], [1]]), [3], edge_labels=torch.tensor([[2]]))
    >>> GINE(8, Columns(labels=(4,)))(torch.ones(3, 8), graph).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, edges: Columns, *, hidden: int | None = None) -> None:
        super().__init__()
        self.edges = EdgeEncoder(edges, dim)
        self.mlp = Mlp(dim, hidden or dim)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return self.mlp(messages(x, self.edges, graph, with_self=True), graph)


class Block(nn.Module):
    """A convolution, BatchNorm and ReLU, with dropout: one layer of a GNN.

    Args:
        conv: module from (x, graph) to x.
        dim: width of node vectors.
        dropout: share of entries dropped in training.
        relu: whether ReLU follows the norm.

    >>> Block(GIN(8), dim=8)(torch.ones(3, 8), GraphBatch.from_edges(torch.tensor([[0], [1]]), [3])).shape
    torch.Size([3, 8])
    """

    def __init__(self, conv: nn.Module, dim: int, dropout: float = 0.0, *, relu: bool = True) -> None:
        super().__init__()
        self.conv = conv
        self.norm, self.dropout = BatchNorm(dim, relu=relu), Dropout(dropout)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return self.dropout(self.norm(self.conv(x, graph), graph))


CONVOLUTIONS: dict[str, Callable[[int, Columns], nn.Module]] = {"gcn": GCN, "gcne": GCNE, "gin": GIN, "gine": GINE}
"""Convolutions by name, each built from (dim, edges): what the setting ``conv`` may be."""


def resolve_convolution(name: str, edges: Columns) -> str:
    """``name``, but GINE where edges have columns, and else GIN, for 'auto'."""
    return name if name != "auto" else "gine" if edges else "gin"


def convolution(name: str, dim: int, edges: Columns) -> nn.Module:
    """The convolution called ``name`` (or 'auto'), of ``dim`` columns, for edges with these columns.

    >>> convolution("auto", 8, Columns())(torch.ones(3, 8), GraphBatch.from_edges(torch.tensor([[0], [1]]), [3])).shape
    torch.Size([3, 8])
    """
    return lookup(CONVOLUTIONS, resolve_convolution(name, edges), "convolution")(dim, edges)
