"""Attention kernels: what a node shows as query, as key and as value (paper, eq. 4)."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.adjacency import Norm, propagate
from mnagt.graphs.batch import GraphBatch


class Triplet(NamedTuple):
    """One kernel's view of all nodes."""

    query: Float[Tensor, "nodes dim"]
    key: Float[Tensor, "nodes dim"]
    value: Float[Tensor, "nodes dim"]


class Hops:
    r"""What is seen from each node, ever farther. Each step is taken once and shared by the kernels.

    ``hops[k]`` is :math:`\hat A^k X`. ``hops.learned(k)`` is the output of the k-th of the ``gnn``'s layers, X for
    k = 0.
    """

    def __init__(
        self, x: Float[Tensor, "nodes dim"], graph: GraphBatch, gnn: Sequence[nn.Module] = (), norm: Norm = "sym"
    ) -> None:
        self.graph, self._gnn = graph, gnn
        self._norm: Norm = norm
        self._powers, self._learned = [x], [x]

    def __getitem__(self, k: int) -> Float[Tensor, "nodes dim"]:
        while len(self._powers) <= k:
            self._powers.append(propagate(self._powers[-1], self.graph, self._norm))
        return self._powers[k]

    def learned(self, k: int) -> Float[Tensor, "nodes dim"]:
        while len(self._learned) <= k:
            self._learned.append(self._gnn[len(self._learned) - 1](self._learned[-1], self.graph))
        return self._learned[k]


class Kernel(nn.Module):
    """From what is seen around the nodes to a triplet."""

    def forward(self, hops: Hops) -> Triplet:
        raise NotImplementedError(f"{type(self).__name__} must say what it shows")


class Hop(Kernel):
    r"""Compare nodes by their k-hop neighbourhoods: :math:`(\hat A^k X, \hat A^k X, X)`, eq. 7."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, hops: Hops) -> Triplet:
        return Triplet(hops[self.k], hops[self.k], hops[0])


class GnnHop(Kernel):
    """Compare nodes by what k layers of the layer's GNN make of them (the paper allows it under eq. 7)."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, hops: Hops) -> Triplet:
        h = hops.learned(self.k)
        return Triplet(h, h, hops[0])


class Encoded(Kernel):
    r"""Positional encodings: :math:`(X + PE, X + PE, X + PE)`."""

    def __init__(self, encoding: nn.Module) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, hops: Hops) -> Triplet:
        h = hops[0] + self.encoding(hops.graph)
        return Triplet(h, h, h)


class Structural(Kernel):
    r"""SAT: compare nodes by the subgraphs around them, :math:`(\mathrm{GNN}(X), \mathrm{GNN}(X), X)`."""

    def __init__(self, gnn: nn.Module) -> None:
        super().__init__()
        self.gnn = gnn

    def forward(self, hops: Hops) -> Triplet:
        h = self.gnn(hops[0], hops.graph)
        return Triplet(h, h, hops[0])


class Convolved(Kernel):
    r"""GraphTrans: attend over what a GNN made of the nodes.

    .. math:: (\mathrm{GNN}(X), \mathrm{GNN}(X), \mathrm{GNN}(X))
    """

    def __init__(self, gnn: nn.Module) -> None:
        super().__init__()
        self.gnn = gnn

    def forward(self, hops: Hops) -> Triplet:
        h = self.gnn(hops[0], hops.graph)
        return Triplet(h, h, h)
