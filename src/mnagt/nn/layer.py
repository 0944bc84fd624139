"""A transformer layer on graphs: kernels, mixer, bias, residual."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.attend import PairBias, attend
from mnagt.attention.kernels import Hops
from mnagt.attention.mixers import Adaptive
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.dropout import Dropout
from mnagt.graphs.adjacency import Norm, propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.modules import as_graph_module
from mnagt.linear import Linear
from mnagt.nn.norms import as_graph_norm
from mnagt.nn.shapes import NodeVectors
from mnagt.ops.functional import scaled_add


class IdentityResidual(nn.Module):
    """The residual of the original Transformer: X.

    >>> IdentityResidual()(torch.ones(1, 2), GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1]))
    tensor([[1., 1.]])
    """

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return x


class PropagatedResidual(nn.Module):
    r"""The residual of eq. 11: :math:`\hat A X`.

    Args:
        norm: normalisation of the adjacency, 'sym' or 'row'.

    >>> graph = GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [2])
    >>> PropagatedResidual("row")(torch.tensor([[1.0], [3.0]]), graph).tolist()
    [[2.0], [2.0]]
    """

    def __init__(self, norm: Norm = "sym") -> None:
        super().__init__()
        self.norm: Norm = norm

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return propagate(x, graph, self.norm)


class SkipResidual(nn.Module):
    """X plus what a convolution makes of it."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return x + self.conv(x, graph)


class LayerScale(nn.Module):
    """Each column of a branch times a learned factor, small at first (Touvron et al., 2021).

    Args:
        dim: columns of x.
        start: the factor at first.

    >>> LayerScale(2, start=0.5)(torch.ones(1, 2)).tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), start))

    def forward(self, x: NodeVectors) -> NodeVectors:
        return self.factor * x


class Layer(nn.Module):
    r"""One layer, eqs. 11 and 12, made of the parts that it is given.

    .. math:: Z' = \mathrm{residual}(X) + \mathrm{scale}(\mathrm{mixer}(\mathrm{attention}(\mathrm{norm}(X)))), \qquad
              X' = Z' + \mathrm{scale}(\mathrm{FFN}(\mathrm{norm}(Z')))

    Args:
        attention: attention through all kernels, from (nodes, dim) to (nodes, kernels, dim).
        mixer: merges the kernels to (nodes, dim).
        residual: module from (x, graph) to x, such as :class:`IdentityResidual`; or a plain module, or a convolution of
            PyTorch Geometric (:class:`mnagt.graphs.modules.GraphModule` says how they are called).
        ffn: module from x to x.
        norms: before attention and feed-forward; any module from x to x will do.
        gnn: the layers that ``GnnHop`` kernels look through, likewise.
        scales: :class:`LayerScale` of the two branches, if any.
        adjacency: normalisation of the adjacency that ``Hop`` kernels propagate with.
        dropout: applied to the output of both branches.

    >>> from mnagt.attention.kernels import Hop
    >>> attention = MultiKernelAttention(8, [Hop(0), Hop(1)], heads=2, head_dim=4)
    >>> norms = (nn.LayerNorm(8), nn.LayerNorm(8))
    >>> layer = Layer(attention, Adaptive(8, 2), PropagatedResidual(), feed_forward(8, 16), norms)
    >>> layer(torch.ones(3, 8), GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        attention: MultiKernelAttention,
        mixer: nn.Module,
        residual: nn.Module,
        ffn: nn.Module,
        norms: tuple[nn.Module, nn.Module],
        *,
        gnn: Sequence[nn.Module] = (),
        scales: tuple[LayerScale, LayerScale] | None = None,
        adjacency: Norm = "sym",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention, self.mixer, self.residual, self.ffn = attention, mixer, as_graph_module(residual), ffn
        self.norm_attention, self.norm_ffn = map(as_graph_norm, norms)
        self.scale_attention, self.scale_ffn = scales or (None, None)
        self.gnn = nn.ModuleList(map(as_graph_module, gnn))
        self.adjacency: Norm = adjacency
        self.dropout = Dropout(dropout)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return self.combine(x, self.residual(x, graph), graph)

    def combine(self, x: NodeVectors, residual: NodeVectors, graph: GraphBatch) -> NodeVectors:
        """The layer, given what stands beside attention."""
        x = add_branch(self.attend(x, graph), self.mixer, self.dropout, self.scale_attention, residual)
        return add_branch(self.norm_ffn(x, graph), self.ffn, self.dropout, self.scale_ffn, x)

    def attend(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "nodes kernels dim"]:
        """The output of attention through each kernel, before the mixer."""
        return self.attention(self.hops(x, graph))

    def hops(self, x: NodeVectors, graph: GraphBatch) -> Hops:
        """The input of the kernels."""
        return Hops(self.norm_attention(x, graph), graph, list(self.gnn), self.adjacency)

    def kernel_weights(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "nodes kernels"] | None:
        """The weight of each kernel at each node; None where the mixer has no weights."""
        return self.mixer.weights(self.attend(x, graph)).squeeze(2) if isinstance(self.mixer, Adaptive) else None


def add_branch(
    z: Float[Tensor, "nodes ..."], merge: nn.Module, dropout: Dropout, scale: LayerScale | None, residual: NodeVectors
) -> NodeVectors:
    """``residual + scale(dropout(merge(z)))``, which for an adaptive mixer without dropout is one operation."""
    factor = None if scale is None else scale.factor
    if isinstance(merge, Adaptive) and not (dropout.training and dropout.p):
        return merge.mix(z, factor, residual)
    branch = dropout(merge(z))
    return branch + residual if factor is None else scaled_add(branch, factor, residual)


def feed_forward(dim: int, hidden: int, dropout: float = 0.0, activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    """Two linear maps with an activation and dropout between, from x to x.

    Args:
        dim: width of x.
        hidden: width between the maps.
        dropout: share of hidden entries dropped in training.
        activation: class of the module between the maps.

    >>> feed_forward(8, 16)[0]
    Linear(in_features=8, out_features=16, bias=True)
    """
    return nn.Sequential(Linear(dim, hidden), activation(), Dropout(dropout), Linear(hidden, dim))


class PostNormLayer(Layer):
    r"""A layer normalised after each branch, as in the original Transformer.

    .. math:: Z' = \mathrm{norm}(\mathrm{MNA}(X) + \mathrm{residual}(X)), \qquad
              X' = \mathrm{norm}(\mathrm{FFN}(Z') + Z')

    Arguments are those of ``Layer``.

    >>> from mnagt.attention.kernels import Hop
    >>> attention, norms = MultiKernelAttention(8, [Hop(0)], heads=2, head_dim=4), (nn.LayerNorm(8), nn.LayerNorm(8))
    >>> layer = PostNormLayer(attention, Adaptive(8, 1), IdentityResidual(), feed_forward(8, 16), norms)
    >>> layer(torch.ones(3, 8), GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])).shape
    torch.Size([3, 8])
    """

    def combine(self, x: NodeVectors, residual: NodeVectors, graph: GraphBatch) -> NodeVectors:
        x = add_branch(self.attend(x, graph), self.mixer, self.dropout, self.scale_attention, residual)
        x = self.norm_attention(x, graph)
        return self.norm_ffn(add_branch(x, self.ffn, self.dropout, self.scale_ffn, x), graph)

    def hops(self, x: NodeVectors, graph: GraphBatch) -> Hops:
        return Hops(x, graph, list(self.gnn), self.adjacency)


class ConvolutionLayer(nn.Module):
    r"""``Layer`` without attention: :math:`Z' = \mathrm{residual}(X), X' = Z' + \mathrm{FFN}(\mathrm{norm}(Z'))`."""

    def __init__(
        self, residual: nn.Module, ffn: nn.Module, norm: nn.Module, scale: LayerScale | None, dropout: float
    ) -> None:
        super().__init__()
        self.residual, self.ffn, self.norm_ffn, self.scale_ffn = residual, ffn, as_graph_norm(norm), scale
        self.dropout = Dropout(dropout)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return self.combine(x, self.residual(x, graph), graph)

    def combine(self, x: NodeVectors, residual: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return add_branch(self.norm_ffn(residual, graph), self.ffn, self.dropout, self.scale_ffn, residual)


class SelfAttention(nn.Module):
    """Multi-head attention within each graph, as ``torch.nn.MultiheadAttention``: maps with constant terms."""

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.to_inner, self.to_out = Linear(dim, 3 * dim), Linear(dim, dim)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: NodeVectors, graph: GraphBatch, bias: PairBias | None = None) -> NodeVectors:
        q, k, v = self.to_inner(x).unflatten(1, (3, self.heads, -1)).unbind(1)
        z = attend(q, k, v, graph, bias=bias, dropout=self.dropout if self.training else 0.0)
        return self.to_out(z.flatten(1))
