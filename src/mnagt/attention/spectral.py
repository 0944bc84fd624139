r"""Neighbourhoods that attention heads learn: a polynomial of the adjacency matrix in the score of every pair.

MNA-GT compares nodes by k-hop neighbourhoods for a few fixed k. Here each head h has a neighbourhood of its own,

.. math:: B_h = \sum_p c_{hp} A^p, \qquad A = D^{-1/2} \mathrm{Adj}\, D^{-1/2},

added to its scores, with learned coefficients c. With the eigenpairs :math:`A = U\,\mathrm{diag}(t)\,U^\top` that is a
product of two thin matrices, :math:`B_h = (U\,\mathrm{diag}(\sum_p c_{hp} t^p))\,U^\top`, so it costs extra columns of
query and key, and no tensor over pairs of nodes. Every attention backend takes it as it is. Each eigenvector enters
twice: its sign, and the basis of a repeated eigenvalue, do not matter.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import adjacency_spectrum

SPECTRUM = "adjacency-spectrum"
"""The encoding with the eigenpairs of each node's graph."""
GAIN = 4.0
"""The coefficient of the one power that a head starts with."""

Heads = Float[Tensor, "nodes kernels heads head_dim"]
Extended = Float[Tensor, "nodes kernels heads extended_dim"]


class Spectrum(NamedTuple):
    """The eigenpairs of the graphs of a batch."""

    powers: Float[Tensor, "nodes eigenpairs powers"]
    """0th, 1st, ... power of the eigenvalues of the node's graph."""
    vectors: Float[Tensor, "nodes eigenpairs"]
    """The node's entries in the eigenvectors."""


class SpectralNeighbourhoods(nn.Module):
    r"""Extra columns of queries, keys and values that add :math:`B_h` to the scores, and bring back walk counts.

    .. math:: s_{ij} = \frac{q_i k_j}{\sqrt d} + (B_h)_{ij}, \qquad
              w_{ip} = \sum_j \mathrm{softmax}_j(s_{ij})\, (A^p)_{ij}

    Head h starts with :math:`B_h = 4 A^{h \bmod powers}`, the neighbourhood of h hops.

    Args:
        kernels: kernels of the attention.
        heads: heads of each kernel.
        eigenpairs: eigenpairs of A that are used, those of largest magnitude. Graphs with at most so many nodes are
            exact; for larger ones it is the best approximation of that rank.
        powers: number of powers, from 0 on.

    >>> neighbourhoods = SpectralNeighbourhoods(kernels=2, heads=3, eigenpairs=16, powers=6)
    >>> neighbourhoods.coefficients.shape
    torch.Size([2, 3, 6])
    """

    def __init__(self, kernels: int, heads: int, eigenpairs: int, powers: int) -> None:
        super().__init__()
        self.eigenpairs, self.powers = eigenpairs, powers
        start = torch.arange(kernels * heads).view(kernels, heads, 1) % powers == torch.arange(powers)
        self.coefficients = nn.Parameter(GAIN * start.float())

    @property
    def encodings(self) -> dict[str, int]:
        """Name and size of the encoding that can be computed once for a data set."""
        return {SPECTRUM: self.eigenpairs}

    def spectrum(self, graph: GraphBatch, dtype: torch.dtype) -> Spectrum:
        """The eigenpairs that the batch brings, else newly computed ones."""
        encoding = graph.encodings.get(SPECTRUM)
        encoding = adjacency_spectrum(graph, self.eigenpairs) if encoding is None else encoding
        values, vectors = encoding.to(dtype).chunk(2, dim=1)
        return Spectrum(values[:, :, None] ** torch.arange(self.powers, device=values.device), vectors)

    def extend_scores(self, query: Heads, key: Heads, spectrum: Spectrum) -> tuple[Extended, Extended]:
        r"""Queries and keys whose product, over the root of their new width, is :math:`q k / \sqrt d + B_h`."""
        width, total = query.shape[3], query.shape[3] + self.eigenpairs
        filters = torch.einsum("nmp,khp->nkhm", spectrum.powers, self.coefficients.to(query.dtype))
        near = filters * spectrum.vectors[:, None, None] * total**0.5
        return torch.cat([query * (total / width) ** 0.5, near], dim=3), self.extend_values(key, spectrum)

    def extend_values(self, value: Heads, spectrum: Spectrum) -> Extended:
        """Values, or keys, with the entries in the eigenvectors as further columns."""
        return torch.cat([value, spectrum.vectors[:, None, None].expand(*value.shape[:3], -1)], dim=3)

    def count_walks(self, z: Extended, spectrum: Spectrum) -> Heads:
        r"""The output of attention with :math:`w_{ip}` of each power in place of the eigenvectors' columns."""
        width = z.shape[3] - self.eigenpairs
        weighted = spectrum.vectors[:, :, None] * spectrum.powers
        walks = torch.einsum("nkhm,nmp->nkhp", z[..., width:], weighted)
        return torch.cat([z[..., :width], walks], dim=3)
