"""Multi-head attention through several kernels at once."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.attend import Heads, attend, attention_of_graph
from mnagt.attention.kernels import Hops, Kernel
from mnagt.attention.linear import linear_attend, linear_attention_of_graph
from mnagt.errors import InputError
from mnagt.linear import batched_linears, linear

Projections = Literal["separate", "shared"]
Shares = Literal["softmax", "cosine", "linear"]


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
        """Kernels that are given the same tensor share one product."""
        return mapped([self], inputs)[0]

    def each(self, x: Float[Tensor, "nodes kernels width_in"]) -> Float[Tensor, "nodes kernels width_out"]:
        """The map of each kernel on its own rows."""
        return batched_linears(x.transpose(0, 1), [self.weight])[0].transpose(0, 1)


def mapped(
    maps: Sequence[KernelLinear], inputs: Sequence[Float[Tensor, "nodes width_in"]]
) -> list[Float[Tensor, "nodes kernels width_out"]]:
    """What each of the maps makes of the kernels' inputs."""
    if all(x is inputs[0] for x in inputs):
        weights = [
            one.weight if len(one.weight) == one.kernels else one.weight.expand(one.kernels, -1, -1) for one in maps
        ]
        return [linear(inputs[0], weight).unflatten(1, (len(inputs), -1)) for weight in weights]
    return [out.transpose(0, 1) for out in batched_linears(inputs, [one.weight for one in maps])]


class MultiKernelAttention(nn.Module):
    r"""What every node receives through each kernel, eqs. 4 and 8.

    .. math:: Z^k = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_m) W_O^k, \qquad
              \mathrm{head}_j = \mathrm{Attention}(H_Q^k W_Q^{kj}, H_K^k W_K^{kj}, H_V^k W_V^{kj})

    The kernel axis is folded into the head axis: one attention call for all. ``head_dim`` is free, since the paper's
    heads do not divide its widths. With ``shares`` "linear" nodes share their attention as ``attention/linear.py``
    says, and not by eq. 2: there is then neither bias nor dropout. With "cosine" eq. 2 scores a pair by the angle of
    query and key alone, times a number that each head learns: no growth of weights can make attention ever harder.
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
        shares: Shares = "softmax",
    ) -> None:
        super().__init__()
        if shares == "linear" and (bias is not None or dropout):
            raise InputError(
                "linear attention has no score of a pair to add a bias to or to drop; leave out bias and dropout of "
                "attention, or take softmax attention"
            )
        self.shares: Shares = shares
        self.kernels = nn.ModuleList(kernels)
        self.heads, self.head_dim, self.dropout, self.backend = heads, head_dim, dropout, backend
        inner = heads * head_dim
        self.to_query, self.to_key, self.to_value = (
            KernelLinear(len(kernels), dim, inner, projections) for _ in range(3)
        )
        self.to_out = KernelLinear(len(kernels), inner, dim, projections)
        self.bias = bias
        self.sharpness = None
        if shares == "cosine":
            self.sharpness = nn.Parameter(torch.full((len(kernels) * heads,), head_dim**0.5))

    def forward(self, hops: Hops) -> Float[Tensor, "nodes kernels dim"]:
        query, key, values = self._compared(hops)
        value = self.to_value(values).unflatten(2, (self.heads, self.head_dim))
        if self.shares == "linear":
            z = linear_attend(query, key, value, hops.graph)
        else:
            bias = None if self.bias is None else self.bias(hops.graph)
            dropout = self.dropout if self.training else 0.0
            z = attend(query, key, value, hops.graph, bias=bias, dropout=dropout, backend=self.backend)
        return self.to_out.each(z.flatten(2))

    def weights(self, hops: Hops) -> list[Float[Tensor, "kernels heads nodes nodes"]]:
        """How each node of a graph shares its attention among the nodes (last axis), graph by graph."""
        query, key, _ = self._compared(hops)
        query, key, graph = query.flatten(1, 2), key.flatten(1, 2), hops.graph
        if self.shares == "linear":
            found = [linear_attention_of_graph(query, key, graph, g) for g in range(graph.num_graphs)]
        else:
            bias = None if self.bias is None else self.bias(graph)
            found = [attention_of_graph(query, key, graph, g, bias) for g in range(graph.num_graphs)]
        return [each.unflatten(0, (-1, self.heads)) for each in found]

    def _compared(self, hops: Hops) -> tuple[Heads, Heads, tuple[Float[Tensor, "nodes dim"], ...]]:
        """Queries and keys of all heads, and the values before their map."""
        queries, keys, values = zip(*(kernel(hops) for kernel in self.kernels), strict=True)
        if all(query is key for query, key in zip(queries, keys, strict=True)):
            query, key = mapped([self.to_query, self.to_key], queries)
        else:
            query, key = self.to_query(queries), self.to_key(keys)
        query, key = (each.unflatten(2, (self.heads, self.head_dim)) for each in (query, key))
        if self.sharpness is not None:
            query = _unit(query, self.sharpness.view(-1, self.heads, 1) * self.head_dim**0.5)  # attention divides by it
            key = _unit(key)
        return query, key, values


def _unit(x: Heads, length: Tensor | float = 1.0) -> Heads:
    """Vectors of this length in the same direction; those near zero stay near it."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * (wide.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt() * length).to(x.dtype)
