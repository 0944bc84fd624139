r"""Structural encodings of nodes: functions of the edges of a batch.

:math:`A_{ij}` counts the edges from j to i, as in ``GraphBatch.neighbours``, and :math:`D` is the diagonal of its row
sums. Graphs of equal size are worked on together as dense matrices, on the device where they lie.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.dense import DenseBlock, dense_blocks, left_product, normalised_adjacency, normalised_laplacian
from mnagt.graphs.ego_statistics import ego_statistics
from mnagt.graphs.molecules import morgan_identifiers, rdkit_descriptors
from mnagt.graphs.weisfeiler_lehman import fragment_colours, structural_colours, subtree_colours, wl_colours

EIGENVALUE_TOLERANCE = 1e-8
"""Eigenvalues that differ by less count as one."""


def random_walk(graph: GraphBatch, steps: int) -> Float[Tensor, "nodes steps"]:
    r"""Chance that a random walk is back where it began after 1, ..., ``steps`` steps.

    .. math:: p_v = \big((P)_{vv}, (P^2)_{vv}, \dots\big), \qquad P = D^{-1} A

    No self loops are added. A node without neighbours gives zeros. In a directed graph the walk runs against the edges.
    """
    _check_count("steps", steps)
    encoding = torch.zeros(graph.num_nodes, steps, device=graph.device)
    for block in dense_blocks(graph):
        # of D^-1/2 A D^-1/2, which is symmetric, the powers have the diagonals of those of P
        power = step = normalised_adjacency(block.adjacency) if graph.is_symmetric else _step(block.adjacency)
        back = [step.diagonal(dim1=1, dim2=2)]
        product = left_product(step)
        while len(back) < steps:  # from P^m come the diagonals of P^2m = P^m P^m and of P^(2m+1) = P^m P^(m+1)
            turned = power if graph.is_symmetric else power.mT
            back.append((power * turned).sum(dim=2))
            if len(back) < steps:
                power = product(power)
                back.append((power * turned).sum(dim=2))
        encoding[block.nodes] = torch.stack(back, dim=2)
    return encoding


def _step(adjacency: Float[Tensor, "graphs n n"]) -> Float[Tensor, "graphs n n"]:
    return adjacency / adjacency.sum(dim=2, keepdim=True).clamp(min=1)


def laplacian(graph: GraphBatch, k: int) -> Float[Tensor, "nodes k"]:
    r"""Unit eigenvectors of the ``k`` smallest non-zero eigenvalues of each graph's Laplacian, smallest first.

    .. math:: L = I - D^{-1/2} A D^{-1/2}

    Each connected component has one eigenvalue 0, whose eigenvector tells degrees only: all of them are left out. An
    isolated node gives zeros. A graph with fewer than ``k`` other eigenvalues is padded with zeros. Directed edges are
    first taken both ways, :math:`\max(A, A^\top)`.

    The entry of largest magnitude is positive; of several (to a millionth), the first. Where eigenvalues repeat, the
    order of the nodes decides which basis is given. So a graph has one encoding, alone or in any batch; renaming its
    nodes renames it, up to sign where a positive and a negative entry tie, and up to rotation where eigenvalues repeat.
    """
    _check_count("k", k)
    encoding = torch.zeros(graph.num_nodes, k, device=graph.device)
    for block, eigenvalues, vectors in _spectra(graph):
        zeros = (eigenvalues < 1e-10).sum(dim=1, keepdim=True)
        column = zeros + torch.arange(k, device=graph.device)
        rank = torch.arange(block.size, device=graph.device)
        vectors = canonical_basis(eigenvalues, vectors, (zeros <= rank) & (rank < zeros + k))
        has_edges = (block.adjacency.sum(dim=2) > 0) | (block.adjacency.sum(dim=1) > 0)
        is_there = (column < block.size)[:, None, :] & has_edges[:, :, None]
        chosen = vectors.gather(2, column.clamp(max=block.size - 1)[:, None, :].expand(-1, block.size, -1))
        chosen = chosen * is_there
        encoding[block.nodes] = (chosen * canonical_signs(chosen)).float()
    return encoding


def spectrum(graph: GraphBatch, m: int) -> Float[Tensor, "nodes both"]:
    r"""The ``m`` smallest eigenvalues of :math:`L = I - D^{-1/2} A D^{-1/2}`, then the nodes' entries in their vectors.

    Where a graph has fewer, -1 stands for the eigenvalue. Signs and repeated eigenvalues are settled as in
    ``laplacian``, and directed edges taken both ways.
    """
    _check_count("m", m)
    out = torch.zeros(graph.num_nodes, 2 * m, device=graph.device)
    for block, values, vectors in _spectra(graph):
        is_used = (torch.arange(block.size, device=graph.device) < m).expand_as(values)
        vectors = canonical_basis(values, vectors, is_used)[:, :, :m]
        missing = max(0, m - block.size)
        values = F.pad(values[:, :m].clamp(min=0), (0, missing), value=-1)[:, None].expand(-1, block.size, -1)
        out[block.nodes] = torch.cat([values, F.pad(vectors * canonical_signs(vectors), (0, missing))], dim=2).float()
    return out


def adjacency_spectrum(graph: GraphBatch, m: int) -> Float[Tensor, "nodes both"]:
    r"""Eigenvalues of :math:`D^{-1/2} A D^{-1/2}`, the ``m`` of largest magnitude, then entries in their eigenvectors.

    Where a graph has fewer, there are zeros. Of eigenvalues with the same magnitude all are given or none, so that what
    is computed from whole eigenspaces does not depend on the order of the nodes. Signs and repeated eigenvalues are
    settled as in ``laplacian``. Directed edges are taken both ways.
    """
    _check_count("m", m)
    out = torch.zeros(graph.num_nodes, 2 * m, device=graph.device)
    for block in dense_blocks(graph):
        values, vectors = torch.linalg.eigh(normalised_adjacency(block.adjacency.double()))
        magnitude = (values.abs() / EIGENVALUE_TOLERANCE).round()  # rounding must not decide between t and -t
        order = magnitude.argsort(dim=1, descending=True, stable=True)
        largest = values.gather(1, order)
        largest_left_out = F.pad(largest.abs(), (0, max(0, m + 1 - block.size)), value=-1.0)[:, m, None]
        count = min(m, block.size)
        largest, order = largest[:, :count], order[:, :count]
        is_kept = largest.abs() > largest_left_out + EIGENVALUE_TOLERANCE
        is_used = torch.zeros_like(values, dtype=torch.bool).scatter(1, order, is_kept)
        vectors = canonical_basis(values, vectors, is_used).gather(2, order[:, None].expand(-1, block.size, -1))
        pairs = [largest[:, None].expand(-1, block.size, -1), vectors * canonical_signs(vectors)]
        out[block.nodes] = torch.cat([F.pad(each * is_kept[:, None], (0, m - count)) for each in pairs], dim=2).float()
    return out


def _spectra(graph: GraphBatch) -> Iterator[tuple[DenseBlock, Float[Tensor, "graphs n"], Float[Tensor, "graphs n n"]]]:
    """Eigenvalues and eigenvectors of the Laplacians of all graphs, edges taken both ways."""
    for block in dense_blocks(graph):
        yield block, *torch.linalg.eigh(normalised_laplacian(block.adjacency.double()))


def flip_signs(
    encoding: Float[Tensor, "nodes k"], graph: GraphBatch, generator: torch.Generator | None = None
) -> Float[Tensor, "nodes k"]:
    """``encoding`` with each column of each graph turned over or not, by the toss of a coin."""
    shape = (graph.num_graphs, encoding.shape[1])
    device = graph.device if generator is None else generator.device
    coin = torch.randint(0, 2, shape, generator=generator, device=device)
    sign = (2 * coin - 1).to(encoding.device, encoding.dtype)
    return encoding * sign[graph.graph_of_node]


def shortest_paths(graph: GraphBatch, limit: int) -> Int[Tensor, "pairs"]:
    """Fewest edges from j to i for each pair (i, j) of ``GraphBatch.pair_ptr``; ``limit + 1`` where farther or no path.

    The codes 0, ..., ``limit + 1`` index a table directly (int32). In attention i is the node that attends to j.
    """
    _check_count("limit", limit)
    distances = torch.empty(int(graph.pair_ptr[-1]), dtype=torch.int32, device=graph.device)
    for block in dense_blocks(graph):
        product = left_product((block.adjacency > 0).float())
        reached = torch.eye(block.size, device=graph.device).expand_as(block.adjacency).contiguous()
        lengths = torch.full_like(reached, limit + 1, dtype=torch.int32).masked_fill(reached > 0, 0)
        for length in range(1, limit + 1):
            is_new = (product(reached) > 0) & (reached == 0)
            if not bool(is_new.any()):
                break
            lengths.masked_fill_(is_new, length)
            reached.masked_fill_(is_new, 1)
        pair = torch.arange(block.size**2, device=graph.device)
        distances[graph.pair_ptr[block.graphs].to(graph.device)[:, None] + pair] = lengths.flatten(start_dim=1)
    return distances


ENCODINGS: dict[str, Callable[[GraphBatch, int], Shaped[Tensor, "nodes _"]]] = {
    "random-walk": random_walk,
    "laplacian": laplacian,
    "spectrum": spectrum,
    "adjacency-spectrum": adjacency_spectrum,
    "wl-colours": wl_colours,
    "structural-colours": structural_colours,
    "subtree-colours": subtree_colours,
    "fragment-colours": fragment_colours,
    "ego-statistics": ego_statistics,
    "morgan-identifiers": morgan_identifiers,
    "rdkit-descriptors": rdkit_descriptors,
}
"""Node encodings by name; the second argument says how far they go."""


def add_encodings(graph: GraphBatch, sizes: Mapping[str, int]) -> GraphBatch:
    """The graphs with the encodings of these names (of ``ENCODINGS``) and sizes; those that they have are kept."""
    computed = {name: ENCODINGS[name](graph, size) for name, size in sizes.items() if name not in graph.encodings}
    return replace(graph, encodings={**graph.encodings, **computed}) if computed else graph


def get_encoding(graph: GraphBatch, name: str, size: int) -> Shaped[Tensor, "nodes _"]:
    """The encoding of this name (of ``ENCODINGS``) that the graphs have, else a newly computed one."""
    encoding = graph.encodings.get(name)
    return ENCODINGS[name](graph, size) if encoding is None else encoding


def canonical_basis(
    eigenvalues: Float[Tensor, "graphs size"],
    vectors: Float[Tensor, "graphs size size"],
    is_used: Bool[Tensor, "graphs size"],
) -> Float[Tensor, "graphs size size"]:
    """The basis of each repeated eigenvalue's space in which a fixed weighting of the nodes is diagonal.

    ``eigh`` gives any basis; which one depends on where in memory the matrix lies, and so on the rest of the batch.
    Spaces of which ``is_used`` names no vector are left as they are.
    """
    is_next_equal = F.pad(eigenvalues.diff(dim=1) <= EIGENVALUE_TOLERANCE, (1, 1)).int()
    graph, first = (is_next_equal.diff(dim=1) == 1).nonzero(as_tuple=True)
    last = (is_next_equal.diff(dim=1) == -1).nonzero(as_tuple=True)[1]
    used = F.pad(is_used.cumsum(dim=1), (1, 0))
    is_chosen = used[graph, last + 1] > used[graph, first]
    graph, first, dims = (each[is_chosen] for each in (graph, first, last + 1 - first))
    node = torch.arange(vectors.shape[1], device=vectors.device).double()
    weight = (node * (5**0.5 - 1) / 2).frac() + 1e-6 * node.cos()  # the first alone ties where sums of nodes are equal
    vectors = vectors.clone() if len(graph) else vectors
    for dim in dims.unique().tolist():
        row = graph[dims == dim, None]
        column = first[dims == dim, None] + torch.arange(dim, device=row.device)
        space = vectors.mT[row, column]
        _, turn = torch.linalg.eigh((weight * space) @ space.mT)
        vectors.mT[row, column] = turn.mT @ space
    return vectors


def canonical_signs(vectors: Float[Tensor, "graphs size k"]) -> Float[Tensor, "graphs 1 k"]:
    """What turns each vector so that its largest entry, or the first of several, is positive."""
    magnitude = vectors.abs()
    is_largest = magnitude >= (1 - 1e-6) * magnitude.amax(dim=1, keepdim=True)
    anchor = is_largest.int().argmax(dim=1, keepdim=True)
    return vectors.gather(1, anchor).sign()


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise InputError(f"{name} counts from 1, got {count}")
