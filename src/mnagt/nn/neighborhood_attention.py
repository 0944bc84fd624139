"""Attention through several kernels, and attention within graphs alone, for models on PyTorch Geometric's tensors."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import NamedTuple

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from mnagt.attention import attend as backends
from mnagt.attention.attend import Heads
from mnagt.attention.kernels import KERNELS, GnnHop, Hop, Hops, Kernel
from mnagt.attention.mixers import MIXERS, Adaptive
from mnagt.attention.multi_kernel import AttentionVariant, MultiKernelAttention, Projections
from mnagt.errors import InputError
from mnagt.graphs.adjacency import Norm
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.edges import describe_tensor
from mnagt.graphs.modules import as_graph_module
from mnagt.nn.graph_inputs import (
    BatchVector,
    EdgeAttr,
    EdgeIndex,
    as_graph_batch,
    check_node_vectors,
    run_eagerly,
)
from mnagt.nn.shapes import NodeVectors
from mnagt.registry import lookup


@run_eagerly
def attend(
    query: Shaped[Tensor, "nodes *heads head_dim"],
    key: Shaped[Tensor, "keys *key_heads key_dim"],
    value: Shaped[Tensor, "values *value_heads value_dim"],
    batch: BatchVector | GraphBatch | None = None,
    *,
    bias: Float[Tensor, "pairs bias_heads"] | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Heads:
    r"""Attention of each node to the nodes of its graph, without padding: :math:`\mathrm{softmax}(QK^\top/\sqrt d)V`.

    Args:
        query: [nodes, heads, head_dim], or [nodes, head_dim] for one head.
        key: as ``query``.
        value: as ``query``.
        batch: the graph of each node, in ascending order; None for one graph; or a ``GraphBatch``.
        bias: added to the scores, one row a pair of nodes: those of graph 0, row by row, then of graph 1, ...
        dropout: share of attention weights dropped; pass zero outside training.
        backend: 'auto', or a name of ``mnagt.attention.attend.BACKENDS``.

    Returns:
        Each node's mixture of the values in its graph, in the shape of ``value``.

    >>> import torch
    >>> q = k = v = torch.ones(5, 4, 16)
    >>> attend(q, k, v, batch=torch.tensor([0, 0, 0, 1, 1])).shape
    torch.Size([5, 4, 16])
    """
    _check_heads(query, key, value)
    graph = batch if isinstance(batch, GraphBatch) else as_graph_batch(query.shape[0], None, batch)
    if bias is not None:
        _check_bias(bias, graph, query.shape[1:-1].numel())
    if query.dim() == 2:
        query, key, value = (each.unsqueeze(1) for each in (query, key, value))
        return backends.attend(query, key, value, graph, bias=bias, dropout=dropout, backend=backend).squeeze(1)
    return backends.attend(query, key, value, graph, bias=bias, dropout=dropout, backend=backend)


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ``InputError`` unless all three are [nodes, heads, head_dim] or [nodes, head_dim], of the same floats."""
    if not query.is_floating_point() or query.dim() not in (2, 3, 4):
        raise InputError(f"query must be [nodes, heads, head_dim] of floats, got {describe_tensor(query)}")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape != query.shape or tensor.dtype != query.dtype:
            raise InputError(
                f"{name} must be {describe_tensor(query)}, as query is, got {describe_tensor(tensor)}; "
                "repeat heads that are shared, and pad narrower ones with zeros"
            )


def _check_bias(bias: Tensor, graph: GraphBatch, heads: int) -> None:
    """Raise ``InputError`` unless there is a row for each pair of nodes, with one column or one for each head."""
    pairs = int((graph.sizes**2).sum())
    if bias.dim() != 2 or bias.shape[0] != pairs or bias.shape[1] not in (1, heads):
        shape = f"[{pairs}, {heads}] or [{pairs}, 1]"
        raise InputError(f"bias must be {shape}, a row for each pair of nodes, got {describe_tensor(bias)}")


class AttentionWeights(NamedTuple):
    """What :class:`MultiNeighborhoodAttention` weighs.

    >>> import torch
    >>> attention, edge_index = MultiNeighborhoodAttention(8, heads=2, hops=1), torch.tensor([[0, 1], [1, 0]])
    >>> _, weights = attention(torch.ones(3, 8), edge_index, return_weights=True)
    >>> weights.kernels.shape, weights.pairs[0].shape  # of one graph with three nodes
    (torch.Size([3, 2]), torch.Size([2, 2, 3, 3]))
    """

    kernels: Float[Tensor, "nodes kernels"] | None
    """The weight of each kernel at each node; None where the mixer has no weights."""
    pairs: list[Float[Tensor, "kernels heads size size"]]
    """The attention weights of each graph: rows attend, columns are attended to."""


class MultiNeighborhoodAttention(nn.Module):
    r"""Multi-neighbourhood attention, eqs. 4 to 10: attention through each kernel, merged by the mixer.

    .. math:: z_v = \sum_k \alpha_k z_v^k, \qquad
              Z^k = \mathrm{Attention}(\hat A^k X W_Q^k, \hat A^k X W_K^k, X W_V^k) W_O^k

    Args:
        channels: width of node vectors.
        heads: heads of each kernel.
        hops: the neighbourhoods that nodes are compared by: 0 to this one, or those in a sequence.
        kernels: the kernels, in place of ``hops``; also names in ``KERNELS`` of those that need no arguments.
        gnn: convolutions, one after the other; kernel k then compares nodes by the k-th one's output and not by
            :math:`\hat A^k X`. Those of PyTorch Geometric will do.
        mixer: 'adaptive', 'mean', 'sum' or 'concat', or a module from [nodes, kernels, channels] to [nodes, channels].
        head_dim: width of a head; ``channels // heads`` if not given.
        projections: maps of query, key, value and output "separate" for each kernel, or "shared" by all.
        bias: attention bias, a module from a ``GraphBatch`` to one row a pair, such as ``ShortestPathBias``.
        dropout: share of attention weights dropped in training.
        variant: attention "softmax", "cosine" or "linear".
        eigenpairs: if above zero, each head learns a neighbourhood of its own from so many eigenpairs of the adjacency.
        degree: how many hops far such a neighbourhood reaches.
        gate: whether each node gates the output of attention, column by column.
        adjacency: normalisation of the adjacency, 'sym' or 'row'.
        backend: 'auto', or a name of ``mnagt.attention.attend.BACKENDS``.

    >>> import torch
    >>> attention = MultiNeighborhoodAttention(16, heads=4, kernels=[Hop(0), Hop(2)])
    >>> x, edge_index = torch.randn(3, 16), torch.tensor([[0, 1], [1, 0]])
    >>> z, weights = attention(x, edge_index, return_weights=True)
    >>> z.shape, weights.kernels.shape, weights.pairs[0].shape
    (torch.Size([3, 16]), torch.Size([3, 2]), torch.Size([2, 4, 3, 3]))
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
        head_dim: int | None = None,
        projections: Projections = "separate",
        bias: nn.Module | None = None,
        dropout: float = 0.0,
        variant: AttentionVariant = "softmax",
        eigenpairs: int = 0,
        degree: int = 5,
        gate: bool = False,
        adjacency: Norm = "sym",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        chosen = make_kernels(hops, gnn) if kernels is None else check_kernels(kernels, gnn)
        self.attention = MultiKernelAttention(
            channels,
            chosen,
            heads=heads,
            head_dim=head_dim or split_heads(channels, heads),
            projections=projections,
            bias=bias,
            dropout=dropout,
            variant=variant,
            backend=backend,
            eigenpairs=eigenpairs,
            degree=degree,
            is_gated=gate,
        )
        self.mixer = make_mixer(mixer, channels, len(chosen))
        self.gnn = nn.ModuleList(map(as_graph_module, gnn))
        self.channels = channels
        self.adjacency: Norm = adjacency

    @run_eagerly
    def forward(
        self,
        x: NodeVectors,
        edge_index: EdgeIndex | GraphBatch,
        batch: BatchVector | None = None,
        edge_attr: EdgeAttr | None = None,
        *,
        return_weights: bool = False,
    ) -> NodeVectors | tuple[NodeVectors, AttentionWeights]:
        """From [nodes, channels] to the same. The weights take memory for every pair of nodes of a graph."""
        check_node_vectors(x, self.channels)
        hops = Hops(x, as_graph_batch(x.shape[0], edge_index, batch, edge_attr), list(self.gnn), self.adjacency)
        z = self.attention(hops)
        if not return_weights:
            return self.mixer(z)
        of_kernels = self.mixer.weights(z).squeeze(2) if isinstance(self.mixer, Adaptive) else None
        return self.mixer(z), AttentionWeights(of_kernels, self.attention.weights(hops))

    def extra_repr(self) -> str:
        return f"{self.channels}, heads={self.attention.heads}"


def make_kernels(hops: int | Iterable[int], gnn: Sequence[nn.Module] = ()) -> list[Kernel]:
    """A kernel for each of ``hops``, or for 0 to ``hops``; with a ``gnn``, of its layers' outputs.

    >>> [kernel.describe() for kernel in make_kernels([0, 2])]
    ['Hop(0)', 'Hop(2)']
    """
    each = list(range(hops + 1) if isinstance(hops, int) else hops) if isinstance(hops, int | Iterable) else []
    if not each or not all(isinstance(hop, Integral) and hop >= 0 for hop in each):
        raise InputError(f"hops must be a whole number from 0, or some of them, got {hops!r}")
    return check_kernels([GnnHop(k) if gnn else Hop(k) for k in each], gnn)


def check_kernels(kernels: Sequence[Kernel | str], gnn: Sequence[nn.Module]) -> list[Kernel]:
    """The kernels, also by name; an error where there are none or one looks through more layers than ``gnn`` has."""
    made = [_make_kernel(kernel) if isinstance(kernel, str) else kernel for kernel in kernels]
    depth = max((max(kernel.k, kernel.value) for kernel in made if isinstance(kernel, GnnHop)), default=0)
    if not made:
        raise InputError("attention needs a kernel, such as Hop(0)")
    if depth > len(gnn):
        raise InputError(f"a kernel sees the output of layer {depth} of a GNN, and gnn has {len(gnn)} layers")
    return made


def _make_kernel(name: str) -> Kernel:
    kernel = lookup(KERNELS, name, "kernel")
    try:
        return kernel()
    except TypeError:
        raise InputError(f"kernel {name!r} needs arguments; give {kernel.__name__}(...) in place of its name") from None


def make_mixer(mixer: str | nn.Module, channels: int, kernels: int) -> nn.Module:
    """The mixer of that name, or ``mixer`` itself."""
    return lookup(MIXERS, mixer, "mixer")(channels, kernels) if isinstance(mixer, str) else mixer


def split_heads(channels: int, heads: int) -> int:
    """The width of a head where heads share that of nodes."""
    if channels < 1 or heads < 1 or channels % heads:
        raise InputError(f"heads must divide channels, got {heads} heads for {channels}; or give head_dim")
    return channels // heads
