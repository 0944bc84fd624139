"""A transformer layer on graphs: kernels, mixer, bias, residual."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt import fused
from mnagt.attention.attend import PairBias, attend
from mnagt.attention.kernels import Hops
from mnagt.attention.mixers import Adaptive, Mixer
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.dropout import Dropout
from mnagt.errors import InputError
from mnagt.graphs.adjacency import Norm, propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.linear import Linear


class Skip(nn.Module):
    """The residual of the original Transformer: X."""

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return x


class Smooth(nn.Module):
    r"""The residual of eq. 11: :math:`\hat A X`."""

    def __init__(self, norm: Norm = "sym") -> None:
        super().__init__()
        self.norm: Norm = norm

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return propagate(x, graph, self.norm)


class Scale(nn.Module):
    """Each column times a learned number, small at first: a branch that begins as a whisper (LayerScale)."""

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), start))

    def forward(
        self, x: Float[Tensor, "nodes dim"], residual: Float[Tensor, "nodes dim"]
    ) -> Float[Tensor, "nodes dim"]:
        """What came of the branch, scaled, and added to the ``residual``."""
        if fused.is_usable(x.device) and x.dtype != torch.float64:
            from mnagt.fused.scale import scaled_add

            return scaled_add(x, self.factor, residual)
        return self.factor * x + residual


class Unscaled(nn.Module):
    """A branch as it is, added to the residual."""

    def forward(
        self, x: Float[Tensor, "nodes dim"], residual: Float[Tensor, "nodes dim"]
    ) -> Float[Tensor, "nodes dim"]:
        return x + residual


class Layer(nn.Module):
    r"""One layer, eqs. 11 and 12; parts arrive built.

    .. math:: Z' = \mathrm{MNA}(\mathrm{norm}(X)) + \mathrm{residual}(X), \qquad
              X' = \mathrm{FFN}(\mathrm{norm}(Z')) + Z'

    MNA is the attention through all kernels, merged by the mixer. ``gnn`` holds the layers that ``GnnHop`` kernels
    look through; ``scales`` act on the outputs of MNA and FFN.
    """

    def __init__(
        self,
        attention: MultiKernelAttention,
        mixer: Mixer,
        residual: nn.Module,
        ffn: nn.Module,
        norms: tuple[nn.Module, nn.Module],
        *,
        gnn: Sequence[nn.Module] = (),
        scales: tuple[nn.Module, nn.Module] | None = None,
        adjacency: Norm = "sym",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention, self.mixer, self.residual, self.ffn = attention, mixer, residual, ffn
        self.norm_attention, self.norm_ffn = norms
        self.scale_attention, self.scale_ffn = scales or (Unscaled(), Unscaled())
        self.gnn = nn.ModuleList(gnn)
        self.adjacency: Norm = adjacency
        self.dropout = Dropout(dropout)

    def seen(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes kernels dim"]:
        """What each kernel brings to each node, before they are merged."""
        return self.attention(self.hops(x, graph))

    def hops(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Hops:
        """What the kernels look at."""
        x = self.norm_attention(x, graph.real_nodes, rounded=True)
        return Hops(x, graph, list(self.gnn), self.adjacency)

    def kernel_weights(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes kernels"] | None:
        """How each node weighs its kernels; None where the mixer does not weigh."""
        return self.mixer.weights(self.seen(x, graph)).squeeze(2) if isinstance(self.mixer, Adaptive) else None

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        x = self._merged(self.seen(x, graph), self.residual(x, graph))
        return self.scale_ffn(self.dropout(self.ffn(self.norm_ffn(x, graph.real_nodes, rounded=True))), x)

    def _merged(
        self, z: Float[Tensor, "nodes kernels dim"], residual: Float[Tensor, "nodes dim"]
    ) -> Float[Tensor, "nodes dim"]:
        if self.training and self.dropout.p:
            return self.scale_attention(self.dropout(self.mixer(z)), residual)
        factor = self.scale_attention.factor if isinstance(self.scale_attention, Scale) else None
        return self.mixer(z, factor, residual)


def feed_forward(dim: int, hidden: int, dropout: float = 0.0) -> nn.Sequential:
    """Two linear maps with GELU between."""
    return nn.Sequential(Linear(dim, hidden), nn.GELU(), Dropout(dropout), Linear(hidden, dim))


def relu_feed_forward(dim: int, hidden: int, dropout: float = 0.0) -> nn.Sequential:
    """Two linear maps with ReLU between."""
    return nn.Sequential(Linear(dim, hidden), nn.ReLU(), Dropout(dropout), Linear(hidden, dim))


class PostNormLayer(Layer):
    r"""A layer normalised after each branch, as in the original Transformer.

    .. math:: Z' = \mathrm{norm}(\mathrm{MNA}(X) + \mathrm{residual}(X)), \qquad
              X' = \mathrm{norm}(\mathrm{FFN}(Z') + Z')
    """

    def hops(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Hops:
        return Hops(x, graph, list(self.gnn), self.adjacency)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        x = self.norm_attention(self._merged(self.seen(x, graph), self.residual(x, graph)), graph.real_nodes)
        return self.norm_ffn(self.scale_ffn(self.dropout(self.ffn(x)), x), graph.real_nodes)


class SelfAttention(nn.Module):
    """Multi-head attention within each graph, as ``torch.nn.MultiheadAttention``: maps with constant terms."""

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.to_inner, self.to_out = Linear(dim, 3 * dim), Linear(dim, dim)
        self.heads, self.dropout = heads, dropout

    def forward(
        self, x: Float[Tensor, "nodes dim"], graph: GraphBatch, bias: PairBias | None = None
    ) -> Float[Tensor, "nodes dim"]:
        q, k, v = self.to_inner(x).unflatten(1, (3, self.heads, -1)).unbind(1)
        z = attend(q, k, v, graph, bias=bias, dropout=self.dropout if self.training else 0.0)
        return self.to_out(z.flatten(1))


def heads_divide(dim: int, heads: int) -> None:
    """Refuse heads that do not share the width evenly."""
    if dim % heads:
        raise InputError(f"heads must divide dim, got {heads} heads for a width of {dim}")
