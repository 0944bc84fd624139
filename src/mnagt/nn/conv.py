"""A multi-neighbourhood layer for models on PyTorch Geometric's tensors."""

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.kernels import Kernel
from mnagt.attention.multi_kernel import AttentionVariant, MultiKernelAttention, Projections
from mnagt.graphs.adjacency import Norm
from mnagt.graphs.batch import GraphBatch
from mnagt.nn.activation_checkpointing import run_twice
from mnagt.nn.graph_inputs import (
    BatchVector,
    EdgeAttr,
    EdgeIndex,
    as_graph_batch,
    check_node_vectors,
    run_eagerly,
)
from mnagt.nn.layer import IdentityResidual, Layer, LayerScale, PropagatedResidual, feed_forward
from mnagt.nn.neighborhood_attention import check_kernels, make_kernels, make_mixer, split_heads
from mnagt.nn.norms import NORMS, pre_norms
from mnagt.nn.shapes import NodeVectors
from mnagt.registry import lookup

NormLike = str | Callable[[int], nn.Module] | nn.Module | tuple[nn.Module, nn.Module]


class MNAGTConv(Layer):
    r"""One layer of MNA-GT, eqs. 11 and 12: attention through kernels, residual, feed-forward.

    .. math:: Z' = \mathrm{residual}(X) + \mathrm{MNA}(\mathrm{norm}(X)), \qquad
              X' = Z' + \mathrm{FFN}(\mathrm{norm}(Z'))

    With the defaults it is the layer of ``mnagt-paper``. Graphs of any size lie side by side, without padding.

    Args:
        channels: width of node vectors.
        heads: heads of each kernel.
        hops: the neighbourhoods that nodes are compared by: 0 to this one, or those in a sequence.
        kernels: the kernels, in place of ``hops``; also names in ``KERNELS`` of those that need no arguments.
        gnn: convolutions, one after the other; kernel k then compares nodes by the k-th one's output and not by
            :math:`\hat A^k X`. Those of PyTorch Geometric will do.
        mixer: 'adaptive', 'mean', 'sum' or 'concat', or a module from [nodes, kernels, channels] to [nodes, channels].
        residual: 'propagated' (:math:`\hat A X`), 'identity' (X), or a module: a convolution of PyTorch Geometric, a
            module from (x, graph) to x, or one from x to x.
        norm: 'layer', 'batch' or 'none'; or a class or function from a width to a module, such as
            ``torch.nn.RMSNorm``; or a module, of which feed-forward gets a copy; or two, of attention and feed-forward.
        ffn: hidden width of the feed-forward network, in multiples of ``channels``; or a module from x to x.
        dropout: of the outputs of both branches and within the feed-forward network.
        attention_dropout: share of attention weights dropped in training (slower on a CPU).
        layer_scale: initial value of a learned factor of both branches; None for none.
        head_dim: width of a head; ``channels // heads`` if not given.
        projections: maps of query, key, value and output "separate" for each kernel, or "shared" by all.
        bias: attention bias, a module from a ``GraphBatch`` to one row a pair, such as ``ShortestPathBias``.
        variant: attention "softmax", "cosine" or "linear".
        eigenpairs: if above zero, each head learns a neighbourhood of its own from so many eigenpairs of the adjacency
            (``attention/spectral.py``). They are computed once for a batch, by a decomposition of each graph.
        degree: how many hops far such a neighbourhood reaches.
        gate: whether each node gates the output of attention, column by column.
        adjacency: normalisation of the adjacency, 'sym' or 'row'.
        backend: 'auto', or a name of ``mnagt.attention.attend.BACKENDS``.
        activation_checkpointing: whether the layer is computed again in the backward pass, which takes less memory.

    >>> import torch
    >>> conv = MNAGTConv(64, heads=4, hops=[0, 2], dropout=0.1)
    >>> edge_index, batch = torch.tensor([[0, 1, 3], [1, 0, 4]]), torch.tensor([0, 0, 0, 1, 1])
    >>> conv(torch.randn(5, 64), edge_index, batch).shape
    torch.Size([5, 64])
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int = 4,
        hops: int | Iterable[int] = 2,
        kernels: Sequence[Kernel | str] | None = None,
        gnn: Sequence[nn.Module] = (),
        mixer: str | nn.Module = "adaptive",
        residual: str | nn.Module = "propagated",
        norm: NormLike = "layer",
        ffn: int | nn.Module = 2,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        layer_scale: float | None = None,
        head_dim: int | None = None,
        projections: Projections = "separate",
        bias: nn.Module | None = None,
        variant: AttentionVariant = "softmax",
        eigenpairs: int = 0,
        degree: int = 5,
        gate: bool = False,
        adjacency: Norm = "sym",
        backend: str = "auto",
        activation_checkpointing: bool = False,
    ) -> None:
        chosen = make_kernels(hops, gnn) if kernels is None else check_kernels(kernels, gnn)
        attention = MultiKernelAttention(
            channels,
            chosen,
            heads=heads,
            head_dim=head_dim or split_heads(channels, heads),
            projections=projections,
            bias=bias,
            dropout=attention_dropout,
            backend=backend,
            variant=variant,
            eigenpairs=eigenpairs,
            degree=degree,
            is_gated=gate,
        )
        residuals = {"propagated": lambda: PropagatedResidual(adjacency), "identity": IdentityResidual}
        scales = None if layer_scale is None else (LayerScale(channels, layer_scale), LayerScale(channels, layer_scale))
        super().__init__(
            attention,
            mixer=make_mixer(mixer, channels, len(chosen)),
            residual=lookup(residuals, residual, "residual")() if isinstance(residual, str) else residual,
            ffn=feed_forward(channels, ffn * channels, dropout) if isinstance(ffn, int) else ffn,
            norms=_make_norms(norm, channels),
            gnn=gnn,
            scales=scales,
            adjacency=adjacency,
            dropout=dropout,
        )
        self.channels, self.activation_checkpointing = channels, activation_checkpointing

    @run_eagerly
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: NodeVectors,
        edge_index: EdgeIndex | GraphBatch,
        batch: BatchVector | None = None,
        edge_attr: EdgeAttr | None = None,
    ) -> NodeVectors:
        """The next node vectors.

        Args:
            x: [nodes, channels], of floats.
            edge_index: [2, edges], source and destination of each edge, in any order; or a ``GraphBatch`` in place of
                it and of ``batch``.
            batch: [nodes], the graph of each node, in ascending order; None for one graph.
            edge_attr: [edges, columns], read by the modules in ``gnn`` and ``residual`` that take it.
        """
        check_node_vectors(x, self.channels)
        graph = as_graph_batch(x.shape[0], edge_index, batch, edge_attr)
        if self.activation_checkpointing and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return run_twice(self, super().forward, x, graph)
        return super().forward(x, graph)

    def kernel_weights(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: NodeVectors,
        edge_index: EdgeIndex | GraphBatch,
        batch: BatchVector | None = None,
        edge_attr: EdgeAttr | None = None,
    ) -> Float[Tensor, "nodes kernels"] | None:
        """The weight of each kernel at each node; None where the mixer has no weights."""
        return super().kernel_weights(x, as_graph_batch(x.shape[0], edge_index, batch, edge_attr))

    def extra_repr(self) -> str:
        return f"{self.channels}, heads={self.attention.heads}"


def _make_norms(norm: NormLike, channels: int) -> tuple[nn.Module, nn.Module]:
    """The norms of attention and feed-forward."""
    if isinstance(norm, str):
        return pre_norms(lookup(NORMS, norm, "norm"), channels)
    if isinstance(norm, nn.Module):
        return norm, copy.deepcopy(norm)
    return norm if isinstance(norm, tuple) else (norm(channels), norm(channels))
