r"""Neighbourhoods that attention heads learn: a polynomial of the adjacency matrix in the score of every pair.

MNA-GT compares nodes by k-hop neighbourhoods for a few fixed k. Here each head h has a neighbourhood of its own,

.. math:: B_h = \sum_p c_{hp} T_p(A), \qquad A = D^{-1/2} \mathrm{Adj}\, D^{-1/2},

added to its scores, with learned coefficients c. The Chebyshev polynomials :math:`T_p` are bounded and reach p hops
far: on a ring :math:`T_p(A)` is 1/2 at the two nodes p hops away and 0 elsewhere. With the eigenpairs
:math:`A=U\mathrm{diag}(t)U^\top` the term is a product of two thin matrices, :math:`B_h=(U\mathrm{diag}(\sum_p
c_{hp}T_p(t)))\,U^\top`. So it costs extra columns of query and key, and no tensor over pairs of nodes, and every
attention backend takes it as it is. Each eigenvector enters twice: its sign, and the basis of a repeated eigenvalue, do
not matter.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch, cached_per_batch
from mnagt.graphs.encodings import adjacency_spectrum

SPECTRUM = "adjacency-spectrum"
"""The encoding with the eigenpairs of each node's graph."""
GAIN = 4.0
"""The coefficient of the one polynomial that a head starts with."""

Heads = Float[Tensor, "nodes kernels heads head_dim"]
Extended = Float[Tensor, "nodes kernels heads extended_dim"]


_compute_spectrum = cached_per_batch(adjacency_spectrum)


class Spectrum(NamedTuple):
    """The eigenpairs of the graphs of a batch."""

    polynomials: Float[Tensor, "nodes eigenpairs polynomials"]
    """T_0, T_1, ... of the eigenvalues of the node's graph."""
    vectors: Float[Tensor, "nodes eigenpairs"]
    """The node's entries in the eigenvectors."""


class SpectralNeighbourhoods(nn.Module):
    r"""Extra columns of queries, keys and values that add :math:`B_h` to the scores, and tell how far attention went.

    .. math:: s_{ij} = \frac{q_i k_j}{\sqrt d} + (B_h)_{ij}, \qquad
              w_{ip} = \sum_j \mathrm{softmax}_j(s_{ij})\, T_p(A)_{ij}

    Head h starts with :math:`B_h = 4\, T_h(A)`, the neighbourhood of h hops; after the last polynomial, heads start
    with the first again.

    Args:
        kernels: kernels of the attention.
        heads: heads of each kernel.
        eigenpairs: eigenpairs of A that are used, those of largest magnitude. Graphs with at most so many nodes are
            exact; for larger ones it is the best approximation of that rank.
        degree: highest degree of a polynomial: how many hops far a head can see.

    >>> neighbourhoods = SpectralNeighbourhoods(kernels=2, heads=3, eigenpairs=16, degree=5)
    >>> neighbourhoods.coefficients.shape
    torch.Size([2, 3, 6])
    """

    def __init__(self, kernels: int, heads: int, eigenpairs: int, degree: int) -> None:
        super().__init__()
        self.eigenpairs, self.polynomials = eigenpairs, degree + 1
        head = torch.arange(kernels * heads).view(kernels, heads, 1)
        start = head % self.polynomials == torch.arange(self.polynomials)
        self.coefficients = nn.Parameter(GAIN * start.float())
        self.encodings = {SPECTRUM: eigenpairs}
        """Name and size of the encoding that can be computed once for a data set."""

    def spectrum(self, graph: GraphBatch, dtype: torch.dtype) -> Spectrum:
        """The eigenpairs that the batch brings, else newly computed ones."""
        encoding = graph.encodings.get(SPECTRUM)
        if encoding is None and torch.compiler.is_compiling():
            raise InputError("eigenpairs cannot be computed in an exported program; export a layer with eigenpairs=0")
        encoding = _compute_spectrum(graph, self.eigenpairs) if encoding is None else encoding
        values, vectors = encoding.chunk(2, dim=1)
        degree = torch.arange(self.polynomials, device=values.device)
        polynomials = torch.cos(degree * torch.acos(values.clamp(-1, 1))[:, :, None])
        return Spectrum(polynomials.to(dtype), vectors.to(dtype))

    def extend_scores(self, query: Heads, key: Heads, spectrum: Spectrum) -> tuple[Extended, Extended]:
        r"""Queries and keys whose product, over the root of their new width, is :math:`q k / \sqrt d + B_h`."""
        width, total = query.shape[3], query.shape[3] + self.eigenpairs
        filters = torch.einsum("nmp,khp->nkhm", spectrum.polynomials, self.coefficients.to(query.dtype))
        near = filters * spectrum.vectors[:, None, None] * total**0.5
        return torch.cat([query * (total / width) ** 0.5, near], dim=3), self.extend_values(key, spectrum)

    def extend_values(self, value: Heads, spectrum: Spectrum) -> Extended:
        """Values, or keys, with the entries in the eigenvectors as further columns."""
        return torch.cat([value, spectrum.vectors[:, None, None].expand(*value.shape[:3], -1)], dim=3)

    def sum_polynomials(self, z: Extended, spectrum: Spectrum) -> Heads:
        r"""The output of attention with :math:`w_{ip}` in place of the columns for eigenvectors."""
        width = z.shape[3] - self.eigenpairs
        weighted = spectrum.vectors[:, :, None] * spectrum.polynomials
        reached = torch.einsum("nkhm,nmp->nkhp", z[..., width:], weighted)
        return torch.cat([z[..., :width], reached], dim=3)
