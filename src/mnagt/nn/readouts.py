"""From the nodes of a graph to one vector."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.sparse import take
from mnagt.graphs.subgraph import add_virtual_nodes
from mnagt.linear import Linear
from mnagt.nn.norms import BatchNorm
from mnagt.nn.shapes import GraphVectors, NodeVectors
from mnagt.registry import register_class

INPUT = "node-inputs"
"""Among a batch's encodings: the node vectors that the first layer is given."""

Prepared = tuple[Float[Tensor, "more_nodes dim"], GraphBatch]


class Readout(nn.Module):
    """From node vectors to a vector of ``dim`` columns for each graph.

    A readout of one's own defines ``forward``; ``prepare`` may add to the nodes and the graph before the layers.

    Args:
        dim: width of node vectors and of the vectors of graphs.

    >>> class Last(Readout):
    ...     def forward(self, x, graph):
    ...         return x[graph.node_ptr[1:] - 1]
    >>> Last(1)(torch.tensor([[1.0], [2.0], [3.0]]), GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2]))
    tensor([[1.],
            [3.]])
    """

    encodings: dict[str, int] = {}  # noqa: RUF012
    """Name and size of each encoding that the readout reads off the graph."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> tuple[Float[Tensor, "more_nodes dim"], GraphBatch]:
        return x, graph


class Sum(Readout):
    """The sum of a graph's node vectors.

    >>> Sum(2)(torch.ones(3, 2), GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2]))
    tensor([[1., 1.],
            [2., 2.]])
    """

    def forward(self, x: NodeVectors, graph: GraphBatch) -> GraphVectors:
        return graph.nodes_of @ x


class Mean(Readout):
    """The mean of a graph's node vectors; zero for a graph without nodes.

    >>> graph = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2])
    >>> Mean(1)(torch.tensor([[1.0], [2.0], [4.0]]), graph).tolist()
    [[1.0], [3.0]]
    """

    def forward(self, x: NodeVectors, graph: GraphBatch) -> GraphVectors:
        return graph.nodes_of @ x / graph.node_ptr.diff().clamp(min=1)[:, None].to(x.dtype)


class Max(Readout):
    """The largest entry of each column; zero for a graph without nodes.

    >>> graph = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2])
    >>> Max(1)(torch.tensor([[1.0], [2.0], [4.0]]), graph).tolist()
    [[1.0], [4.0]]
    """

    def forward(self, x: NodeVectors, graph: GraphBatch) -> GraphVectors:
        index = graph.graph_of_node[:, None].expand_as(x)
        return x.new_zeros(graph.num_graphs, x.shape[1]).scatter_reduce(0, index, x, "amax", include_self=False)


class SumMeanMax(Readout):
    """A linear map of sum, mean and largest entries side by side.

    >>> SumMeanMax(8)(torch.ones(3, 8), GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2])).shape
    torch.Size([2, 8])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.parts = nn.ModuleList([Sum(dim), Mean(dim), Max(dim)])
        self.merge = Linear(3 * dim, dim)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> GraphVectors:
        return self.merge(torch.cat([part(x, graph) for part in self.parts], dim=1))


def softmax_within(score: Float[Tensor, "nodes 1"], graph: GraphBatch) -> Float[Tensor, "nodes 1"]:
    """Softmax over the nodes of each graph."""
    index = graph.graph_of_node[:, None]
    top = score.new_zeros(graph.num_graphs, 1).scatter_reduce(0, index, score.detach(), "amax", include_self=False)
    share = (score - top[graph.graph_of_node]).exp()
    return share / take(graph.graph_of, graph.nodes_of @ share)


class Attention(Readout):
    r""":math:`\sum_v \alpha_v x_v` with :math:`\alpha` the softmax over the graph's nodes of a learned score.

    >>> graph, readout = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2]), Attention(8)
    >>> readout(torch.ones(3, 8), graph).shape, readout.weights(torch.ones(3, 8), graph).flatten().tolist()
    (torch.Size([2, 8]), [1.0, 0.5, 0.5])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1, bias=False))

    def weights(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "nodes 1"]:
        return softmax_within(self.score(x).float(), graph)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> GraphVectors:
        return graph.nodes_of @ (self.weights(x, graph).to(x.dtype) * x)


class VirtualNode(Readout):
    """A learned node in every graph, joined to all nodes by edges; its vector is that of the graph.

    >>> graph, readout = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2]), VirtualNode(8)
    >>> x, more = readout.prepare(torch.ones(3, 8), graph)
    >>> x.shape, more.num_edges, readout(x, more).shape
    (torch.Size([5, 8]), 6, torch.Size([2, 8]))
    """

    is_connected = True

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.start = nn.Parameter(torch.zeros(dim))
        nn.init.normal_(self.start, std=dim**-0.5)

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> tuple[Float[Tensor, "more_nodes dim"], GraphBatch]:
        more, index = add_virtual_nodes(graph, is_connected=self.is_connected)
        spread = x.new_zeros(more.num_nodes, x.shape[1]).index_copy(0, index, x)
        ends = more.node_ptr[1:] - 1
        return spread.index_copy(0, ends, self.start.to(x.dtype).expand(len(ends), -1)), more

    def forward(self, x: NodeVectors, graph: GraphBatch) -> GraphVectors:
        return x.index_select(0, graph.node_ptr[1:] - 1)


class ClsNode(VirtualNode):
    """A learned node that takes part in attention and has no edges.

    >>> graph = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2])
    >>> x, more = ClsNode(8).prepare(torch.ones(3, 8), graph)
    >>> x.shape, more.num_edges
    (torch.Size([5, 8]), 0)
    """

    is_connected = False


class InputSum(Readout):
    """The sum of the nodes' vectors as they were before the first layer: layer 0 of a jumping-knowledge readout.

    >>> graph, readout = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2]), InputSum(1)
    >>> x, graph = readout.prepare(torch.ones(3, 1), graph)
    >>> readout(x + 5, graph).tolist()
    [[1.0], [2.0]]
    """

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> Prepared:
        return x, replace(graph, encodings={**graph.encodings, INPUT: x})

    def forward(self, x: NodeVectors, graph: GraphBatch) -> GraphVectors:
        return graph.nodes_of @ graph.encodings[INPUT]


class Concat(Readout):
    """Several readouts side by side, then BatchNorm over the graphs of the batch.

    The last part is the first to prepare: what it reads off the graph must not depend on nodes that others add.

    Args:
        parts: the readouts.

    >>> readout = Concat([Sum(8), Max(8)])
    >>> readout(torch.ones(3, 8), GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2])).shape
    torch.Size([2, 16])
    """

    def __init__(self, parts: Sequence[Readout]) -> None:
        super().__init__(sum(part.dim for part in parts))
        self.parts: Sequence[Readout] = nn.ModuleList(parts)  # type: ignore[assignment]
        self.encodings = {name: size for part in parts for name, size in part.encodings.items()}
        self.norm = BatchNorm(self.dim, rows="graphs")

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> tuple[Float[Tensor, "more_nodes dim"], GraphBatch]:
        for part in reversed(self.parts):
            x, graph = part.prepare(x, graph)
        return x, graph

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs all_dims"]:
        return self.norm(torch.cat([part(x, graph) for part in self.parts], dim=1), graph)


READOUTS: dict[str, type[Readout]] = {
    "sum": Sum,
    "mean": Mean,
    "max": Max,
    "sum-mean-max": SumMeanMax,
    "attention": Attention,
    "virtual-node": VirtualNode,
    "cls": ClsNode,
}
"""Readouts by name, each built from (dim,): what the setting ``readout`` may be."""


def register_readout(name: str) -> Callable[[type[Readout]], type[Readout]]:
    """Decorate a readout of one's own, a class that is built from (dim,): the setting ``readout`` takes its name.

    >>> from mnagt import register_readout
    >>> @register_readout("last")
    ... class Last(Readout):
    ...     def forward(self, x, graph):
    ...         return x[graph.node_ptr[1:] - 1]
    >>> READOUTS.pop("last").__name__
    'Last'
    """
    return register_class(READOUTS, name, "readout")
