"""Attention kernels: the inputs of each node as query, key and value (paper, eq. 4)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.graphs.adjacency import Norm, propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.modules import as_graph_module
from mnagt.registry import register_class

Nodes = Float[Tensor, "nodes dim"]


class Triplet(NamedTuple):
    """One kernel's view of all nodes.

    >>> import torch
    >>> x = torch.ones(5, 8)
    >>> Triplet(query=x, key=x, value=x).value.shape
    torch.Size([5, 8])
    """

    query: Nodes
    """What each node compares others with."""
    key: Nodes
    """What each node is compared by."""
    value: Nodes
    """What each node gives to those that attend to it."""


class Hops:
    r"""Node vectors propagated over k hops, or through k layers of a GNN: each is computed once for all kernels.

    ``hops[k]`` is :math:`\hat A^k X`. ``hops.gnn_output(k)`` is the output of the k-th of the ``gnn``'s layers, X for
    k = 0.

    Args:
        x: [nodes, dim].
        graph: the batch.
        gnn: modules from (x, graph) to x.
        norm: normalisation of the adjacency, 'sym' or 'row'.

    >>> import torch
    >>> graph = GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [2])
    >>> Hops(torch.tensor([[1.0], [3.0]]), graph)[1]
    tensor([[2.0000],
            [2.0000]])
    """

    def __init__(self, x: Nodes, graph: GraphBatch, gnn: Sequence[nn.Module] = (), norm: Norm = "sym") -> None:
        self.graph, self._gnn = graph, gnn
        self._norm: Norm = norm
        self._powers, self._learned = [x], [x]

    def __getitem__(self, k: int) -> Nodes:
        while len(self._powers) <= k:
            self._powers.append(propagate(self._powers[-1], self.graph, self._norm))
        return self._powers[k]

    def gnn_output(self, k: int) -> Nodes:
        while len(self._learned) <= k:
            self._learned.append(self._gnn[len(self._learned) - 1](self._learned[-1], self.graph))
        return self._learned[k]


class Kernel(nn.Module):
    """From the neighbourhoods of the nodes to their inputs as query, key and value.

    A kernel of one's own defines ``forward``:

    >>> class Difference(Kernel):
    ...     def forward(self, hops):
    ...         h = hops[0] - hops[1]
    ...         return Triplet(h, h, hops[0])
    >>> Difference().describe()
    'Difference()'
    """

    def forward(self, hops: Hops) -> Triplet:
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def describe(self) -> str:
        """Name and arguments."""
        return f"{type(self).__name__}({', '.join(sorted({type(part).__name__ for part in self.children()}))})"


class Hop(Kernel):
    r"""Compare nodes by their k-hop neighbourhoods: :math:`(\hat A^k X, \hat A^k X, X)`, eq. 7.

    With ``value`` the values are :math:`\hat A^{value} X`: ``Hop(k, value=k)`` attends as GraphTrans (section 4.3).

    >>> Hop(2).describe(), Hop(3, value=3).describe()
    ('Hop(2)', 'Hop(3, value=3)')
    """

    def __init__(self, k: int, *, value: int = 0) -> None:
        super().__init__()
        if k < 0 or value < 0:
            raise InputError(f"hops count from 0, got {min(k, value)}")
        self.k, self.value = k, value

    def forward(self, hops: Hops) -> Triplet:
        return Triplet(hops[self.k], hops[self.k], hops[self.value])

    def describe(self) -> str:
        return f"{type(self).__name__}({self.k}{f', value={self.value}' if self.value else ''})"


class GnnHop(Hop):
    """Compare nodes by the output of the first k layers of the layer's GNN (the paper allows it under eq. 7).

    >>> GnnHop(1).describe()
    'GnnHop(1)'
    """

    def forward(self, hops: Hops) -> Triplet:
        h = hops.gnn_output(self.k)
        return Triplet(h, h, hops.gnn_output(self.value))


class Structural(Kernel):
    r"""SAT: compare nodes by the subgraphs around them, :math:`(\mathrm{GNN}(X), \mathrm{GNN}(X), X)`.

    ``gnn`` is a module from (x, graph) to x, or a convolution of PyTorch Geometric.

    >>> from mnagt.nn.convolutions import GIN
    >>> Structural(GIN(8)).describe()
    'Structural(GIN)'
    """

    def __init__(self, gnn: nn.Module) -> None:
        super().__init__()
        self.gnn = as_graph_module(gnn)

    def forward(self, hops: Hops) -> Triplet:
        h = self.gnn(hops[0], hops.graph)
        return Triplet(h, h, hops[0])


class SeparateGnns(Kernel):
    r"""GROVER: :math:`(\mathrm{GNN}_Q(X), \mathrm{GNN}_K(X), \mathrm{GNN}_V(X))`.

    ``query``, ``key`` and ``value`` are modules from (x, graph) to x, or convolutions of PyTorch Geometric.

    >>> from mnagt.nn.convolutions import GIN
    >>> SeparateGnns(GIN(8), GIN(8), GIN(8)).describe()
    'SeparateGnns(GIN)'
    """

    def __init__(self, query: nn.Module, key: nn.Module, value: nn.Module) -> None:
        super().__init__()
        self.query, self.key, self.value = map(as_graph_module, (query, key, value))

    def forward(self, hops: Hops) -> Triplet:
        return Triplet(*(gnn(hops[0], hops.graph) for gnn in (self.query, self.key, self.value)))


KERNELS: dict[str, type[Kernel]] = {
    "hop": Hop,
    "gnn-hop": GnnHop,
    "structural": Structural,
    "separate-gnns": SeparateGnns,
}
"""Attention kernels by name."""


def register_kernel(name: str) -> Callable[[type[Kernel]], type[Kernel]]:
    """Decorate a kernel of one's own: ``KERNELS`` has it from then on, as ``name``.

    >>> from mnagt import register_kernel
    >>> @register_kernel("difference")
    ... class Difference(Kernel):
    ...     def forward(self, hops):
    ...         return Triplet(hops[0] - hops[1], hops[0] - hops[1], hops[0])
    >>> KERNELS.pop("difference").__name__
    'Difference'
    """
    return register_class(KERNELS, name, "kernel")
