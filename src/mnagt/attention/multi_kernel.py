"""Multi-head attention through several kernels at once."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.attend import Heads, attend, attention_of_graph
from mnagt.attention.kernels import Hops, Kernel
from mnagt.attention.linear_attention import linear_attend, linear_attention_of_graph
from mnagt.attention.spectral import SpectralNeighbourhoods
from mnagt.errors import InputError, join_names
from mnagt.graphs.batch import GraphBatch
from mnagt.linear import Linear
from mnagt.ops.functional import batched_linears, linear

Projections = Literal["separate", "shared"]
AttentionVariant = Literal["softmax", "cosine", "linear"]

GATE_START = 0.5
"""The bias that gates start with: they let 62 % through."""


class KernelLinear(nn.Module):
    """A linear map for each kernel, or one for all of them (``shared``)."""

    def __init__(self, kernels: int, width_in: int, width_out: int, projections: Projections) -> None:
        super().__init__()
        self.kernels = kernels
        copies = kernels if projections == "separate" else 1
        self.weight = nn.Parameter(torch.empty(copies, width_out, width_in))
        bound = width_in**-0.5  # as nn.Linear
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, inputs: Sequence[Float[Tensor, "nodes width_in"]]) -> Float[Tensor, "nodes kernels width_out"]:
        return project_all([self], inputs)[0]

    def each(self, x: Float[Tensor, "nodes kernels width_in"]) -> Float[Tensor, "nodes kernels width_out"]:
        """Each kernel's map of its own rows."""
        return batched_linears(x.transpose(0, 1), [self.weight])[0].transpose(0, 1)


def project_all(
    maps: Sequence[KernelLinear], inputs: Sequence[Float[Tensor, "nodes width_in"]]
) -> list[Float[Tensor, "nodes kernels width_out"]]:
    """The outputs of each map. Kernels that are given the same tensor share one product."""
    if all(x is inputs[0] for x in inputs):
        weights = [
            one.weight if len(one.weight) == one.kernels else one.weight.expand(one.kernels, -1, -1) for one in maps
        ]
        return [linear(inputs[0], weight).unflatten(1, (len(inputs), -1)) for weight in weights]
    return [out.transpose(0, 1) for out in batched_linears(inputs, [one.weight for one in maps])]


class MultiKernelAttention(nn.Module):
    r"""Attention through each kernel, eqs. 4 and 8: from (nodes, dim) to (nodes, kernels, dim).

    .. math:: Z^k = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_m) W_O^k, \qquad
              \mathrm{head}_j = \mathrm{Attention}(H_Q^k W_Q^{kj}, H_K^k W_K^{kj}, H_V^k W_V^{kj})

    The kernel axis is folded into the head axis: one attention call for all.

    Args:
        dim: width of node vectors.
        kernels: the kernels; each has ``heads`` heads.
        heads: heads of each kernel.
        head_dim: width of a head; heads need not divide ``dim``.
        projections: maps of query, key, value and output "separate" for each kernel, or "shared" by all.
        bias: attention bias, a module from a batch to one row a pair (see ``biases.py``).
        dropout: share of attention weights dropped in training.
        backend: a name of ``attend.BACKENDS``.
        variant: "softmax" is eq. 2. "cosine" scores a pair by the cosine of query and key, times a ``logit_scale`` that
            each head learns, so that attention cannot saturate as weights grow. "linear" replaces exp by elu + 1
            (``linear_attention.py``); it has neither bias nor dropout.
        eigenpairs: if above zero, each head learns a neighbourhood of its own from so many eigenpairs of the adjacency
            (``spectral.py``).
        degree: highest degree of the polynomials that such a neighbourhood is made of.
        is_gated: whether each node multiplies its output by :math:`\mathrm{sigmoid}(x W + b)`, column by column.

    >>> from mnagt.attention.kernels import Hop
    >>> attention = MultiKernelAttention(8, [Hop(0), Hop(1)], heads=2, head_dim=4)
    >>> graph = GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])
    >>> attention(Hops(torch.ones(3, 8), graph)).shape  # nodes, kernels, dim
    torch.Size([3, 2, 8])
    """

    def __init__(
        self,
        dim: int,
        kernels: Sequence[Kernel],
        *,
        heads: int,
        head_dim: int,
        projections: Projections = "separate",
        bias: nn.Module | None = None,
        dropout: float = 0.0,
        backend: str = "auto",
        variant: AttentionVariant = "softmax",
        eigenpairs: int = 0,
        degree: int = 5,
        is_gated: bool = False,
    ) -> None:
        super().__init__()
        for choice, choices in ((variant, get_args(AttentionVariant)), (projections, get_args(Projections))):
            if choice not in choices:
                raise InputError(f"no {choice!r} attention; there are: {join_names(choices)}")
        if variant == "linear" and (bias is not None or dropout or eigenpairs):
            raise InputError(
                "linear attention has no score of a pair to add a bias or a neighbourhood to, or to drop; leave out "
                "bias, eigenpairs and dropout of attention, or take softmax attention"
            )
        self.variant: AttentionVariant = variant
        self.kernels = nn.ModuleList(kernels)
        self.heads, self.head_dim, self.dropout, self.backend = heads, head_dim, dropout, backend
        inner = heads * head_dim
        self.to_query, self.to_key, self.to_value = (
            KernelLinear(len(kernels), dim, inner, projections) for _ in range(3)
        )
        self.spectral = SpectralNeighbourhoods(len(kernels), heads, eigenpairs, degree) if eigenpairs else None
        self.encodings = {} if self.spectral is None else self.spectral.encodings
        """Name and size of the encoding that heads read, if any."""
        brought = inner if self.spectral is None else inner + heads * (degree + 1)
        self.to_out = KernelLinear(len(kernels), brought, dim, projections)
        self.bias = bias
        self.gate = Linear(dim, dim) if is_gated else None
        if self.gate is not None:
            nn.init.constant_(self.gate.bias, GATE_START)
        self.logit_scale = None
        if variant == "cosine":
            self.logit_scale = nn.Parameter(torch.full((len(kernels) * heads,), head_dim**0.5))

    def forward(self, hops: Hops) -> Float[Tensor, "nodes kernels dim"]:
        query, key, values = self._project(hops)
        value = self.to_value(values).unflatten(2, (self.heads, self.head_dim))
        if self.variant == "linear":
            z = linear_attend(query, key, value, hops.graph)
        elif self.spectral is None:
            z = self._attend(query, key, value, hops.graph)
        else:
            spectrum = self.spectral.spectrum(hops.graph, query.dtype)
            query, key = self.spectral.extend_scores(query, key, spectrum)
            z = self._attend(query, key, self.spectral.extend_values(value, spectrum), hops.graph)
            z = self.spectral.sum_polynomials(z, spectrum)
        z = self.to_out.each(z.flatten(2))
        return z if self.gate is None else z * self.gate(hops[0]).sigmoid()[:, None]

    def _attend(self, query: Heads, key: Heads, value: Heads, graph: GraphBatch) -> Heads:
        bias = None if self.bias is None else self.bias(graph)
        dropout = self.dropout if self.training else 0.0
        return attend(query, key, value, graph, bias=bias, dropout=dropout, backend=self.backend)

    def weights(self, hops: Hops) -> list[Float[Tensor, "kernels heads nodes nodes"]]:
        """The attention weights of each graph: rows attend, columns are attended to."""
        (query, key, _), graph = self._project(hops), hops.graph
        if self.spectral is not None:
            query, key = self.spectral.extend_scores(query, key, self.spectral.spectrum(graph, query.dtype))
        query, key = query.flatten(1, 2), key.flatten(1, 2)
        if self.variant == "linear":
            weights = [linear_attention_of_graph(query, key, graph, g) for g in range(graph.num_graphs)]
        else:
            bias = None if self.bias is None else self.bias(graph)
            weights = [attention_of_graph(query, key, graph, g, bias) for g in range(graph.num_graphs)]
        return [each.unflatten(0, (-1, self.heads)) for each in weights]

    def _project(self, hops: Hops) -> tuple[Heads, Heads, tuple[Float[Tensor, "nodes dim"], ...]]:
        """Queries and keys of all heads, and the values before their map."""
        queries, keys, values = zip(*(kernel(hops) for kernel in self.kernels), strict=True)
        if all(query is key for query, key in zip(queries, keys, strict=True)):
            query, key = project_all([self.to_query, self.to_key], queries)
        else:
            query, key = self.to_query(queries), self.to_key(keys)
        query, key = (each.unflatten(2, (self.heads, self.head_dim)) for each in (query, key))
        if self.logit_scale is not None:
            scale = self.logit_scale.view(-1, self.heads, 1) * self.head_dim**0.5  # attention divides by this root
            query, key = _normalise(query, scale), _normalise(key)
        return query, key, values


def _normalise(x: Heads, length: Tensor | float = 1.0) -> Heads:
    """Vectors scaled to this length; those near zero stay near it."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * (wide.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt() * length).to(x.dtype)
