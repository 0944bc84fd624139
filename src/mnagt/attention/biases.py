"""Attention biases: terms added to the attention scores of pairs of nodes; minus infinity masks a pair.

A bias is a module from a batch to one row a pair, in the order of ``GraphBatch.pair_ptr``, and one column a head (or
one for all heads).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.attention.pairs import edge_pairs, from_adjacency, pair_nodes, self_pairs
from mnagt.graphs.batch import GraphBatch, cached_per_batch
from mnagt.graphs.dense import normalised_laplacian
from mnagt.graphs.encodings import shortest_paths
from mnagt.graphs.sparse import look_up
from mnagt.linear import Linear

Matrices = Float[Tensor, "graphs size size"]

SMALLEST = 1e-13
"""Entries of a graph kernel below this are rounding errors: the pair is masked."""


class ShortestPathBias(nn.Module):
    """Graphormer: a learned number for each head and distance of a pair.

    One more is for pairs that are farther apart than ``max_distance`` or not connected, and one for pairs with the last
    node of a graph, which is its virtual node.

    Args:
        heads: heads of attention, over all kernels.
        max_distance: the largest distance with a number of its own.

    >>> graph = GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])
    >>> ShortestPathBias(heads=4, max_distance=5)(graph).shape
    torch.Size([9, 4])
    """

    def __init__(self, heads: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.distances = nn.Embedding(max_distance + 3, heads)
        nn.init.normal_(self.distances.weight, std=0.02)

    def codes(self, graph: GraphBatch) -> Int[Tensor, "pairs"]:
        """The row of the table for each pair: its distance, ``max_distance`` + 1 if farther, + 2 if virtual."""
        is_virtual = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        is_virtual[graph.node_ptr[1:] - 1] = True
        attends, attended = pair_nodes(graph)
        has_virtual = is_virtual[attends] | is_virtual[attended]
        return shortest_paths(graph, self.max_distance).masked_fill(has_virtual, self.max_distance + 2)

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs heads"]:
        return look_up(self.distances.weight, self.codes(graph))


class DiffusionBias(nn.Module):
    r"""GraphiT: :math:`\log \exp(-\beta L)`, which multiplies attention weights by the diffusion kernel.

    Args:
        beta: time of diffusion; L is the normalised Laplacian.

    >>> DiffusionBias(beta=1.0)(GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])).shape
    torch.Size([9, 1])
    """

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs 1"]:
        return log_of_kernel(graph, diffusion, self.beta)


class RandomWalkBias(nn.Module):
    r"""GraphiT: :math:`\log (I - \gamma L)^p`, which multiplies attention weights by the p-step random-walk kernel.

    Args:
        steps: p.
        gamma: share of a step that leaves the node; L is the normalised Laplacian.

    >>> RandomWalkBias(steps=3, gamma=0.25)(GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])).shape
    torch.Size([9, 1])
    """

    def __init__(self, steps: int, gamma: float) -> None:
        super().__init__()
        self.steps, self.gamma = steps, gamma

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs 1"]:
        return log_of_kernel(graph, random_walk, self.steps, self.gamma)


class ProximityBias(nn.Module):
    r"""Gophormer: :math:`(I, \hat A, \dots, \hat A^{M-1})_{ij}\, b` with b learned for each head.

    Args:
        heads: heads of attention, over all kernels.
        views: M, the number of powers.

    >>> ProximityBias(heads=4, views=3)(GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])).shape
    torch.Size([9, 4])
    """

    def __init__(self, heads: int, views: int) -> None:
        super().__init__()
        self.views = views
        self.weigh = Linear(views, heads, bias=False)

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs heads"]:
        return self.weigh(adjacency_powers(graph, self.views).to(self.weigh.weight.dtype))


class NonEdgeMask(nn.Module):
    """SAN: masks pairs that an edge connects; a node may always attend to itself.

    >>> NonEdgeMask()(GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [2])).flatten().tolist()
    [0.0, -inf, -inf, 0.0]
    """

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs 1"]:
        return non_edge_mask(graph)


@cached_per_batch
def non_edge_mask(graph: GraphBatch) -> Float[Tensor, "pairs 1"]:
    """Minus infinity for pairs that an edge connects, but for a node and itself; else 0."""
    bias = torch.zeros(int(graph.pair_ptr[-1]), 1, device=graph.device)
    bias[edge_pairs(graph)] = -torch.inf
    bias[self_pairs(graph)] = 0.0
    return bias


@cached_per_batch
def log_of_kernel(graph: GraphBatch, kernel: Callable[..., Matrices], *settings: float) -> Float[Tensor, "pairs 1"]:
    """The logarithm of ``kernel(laplacian, *settings)`` of each pair, minus infinity where the kernel is zero."""

    def log(adjacency: Matrices) -> list[Matrices]:
        values = kernel(normalised_laplacian(adjacency), *settings)
        return [torch.where(values > SMALLEST, values.clamp(min=SMALLEST).log(), -torch.inf)]

    return from_adjacency(graph, 1, log)


def diffusion(laplacian: Matrices, beta: float) -> Matrices:
    r""":math:`\exp(-\beta L)`."""
    return torch.linalg.matrix_exp(-beta * laplacian)


def random_walk(laplacian: Matrices, steps: int, gamma: float) -> Matrices:
    r""":math:`(I - \gamma L)^p`, p the number of steps."""
    return torch.linalg.matrix_power(_identity(laplacian) - gamma * laplacian, steps)


@cached_per_batch
def adjacency_powers(graph: GraphBatch, views: int) -> Float[Tensor, "pairs views"]:
    r""":math:`(I, \hat A, \dots, \hat A^{M-1})_{ij}` of each pair, with :math:`\hat A` as in ``propagate``."""

    def powers(adjacency: Matrices) -> list[Matrices]:
        with_loops = adjacency + _identity(adjacency)
        scale = with_loops.sum(dim=2).rsqrt()
        step = scale[:, :, None] * with_loops * scale[:, None, :]
        powers = [_identity(adjacency).expand_as(adjacency)]
        while len(powers) < views:
            powers.append(powers[-1] @ step)
        return powers

    return from_adjacency(graph, views, powers)


def _identity(adjacency: Matrices) -> Float[Tensor, "size size"]:
    return torch.eye(adjacency.shape[1], dtype=adjacency.dtype, device=adjacency.device)


BIASES: dict[str, type[nn.Module]] = {
    "shortest-path": ShortestPathBias,
    "diffusion": DiffusionBias,
    "random-walk": RandomWalkBias,
    "proximity": ProximityBias,
    "non-edge": NonEdgeMask,
}
"""Attention biases by name."""
