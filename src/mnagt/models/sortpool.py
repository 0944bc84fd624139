"""SortPool (DGCNN): nodes sorted by the last layer's output, and read by 1-D convolutions.

Zhang, Cui, Neumann, Chen: An End-to-End Deep Learning Architecture for Graph Classification, 2018. Differs from the
original in embedding the nodes' columns before the first layer, in the width of layers (32 there), and in k, fixed here
and there such that 60% of the graphs have more nodes. Edge columns are not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.dropout import Dropout
from mnagt.graphs.adjacency import propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.subgraph import sort_by_score
from mnagt.linear import Linear
from mnagt.models.config import HeadDropoutConfig, Repeats
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import Readout
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import Ge, PositiveInt


class TanhStack(nn.Module):
    r"""Layers :math:`\tanh(D^{-1} \tilde A X W)`, eq. 1, the outputs of all side by side."""

    def __init__(self, widths: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.maps = nn.ModuleList(Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "nodes all_dims"]:
        outputs = []
        for project in self.maps:
            x = torch.tanh(propagate(project(self.dropout(x)), graph, "row"))
            outputs.append(x)
        return torch.cat(outputs, dim=1)


def sorted_nodes(x: NodeVectors, graph: GraphBatch, k: int) -> Float[Tensor, "graphs k dim"]:
    """The k nodes of each graph with the largest last column, in that order; zeros where there are fewer."""
    order, graphs = sort_by_score(x.detach()[:, -1], graph), graph.num_graphs
    rank = torch.arange(graph.num_nodes, device=x.device) - graph.node_ptr[graph.graph_of_node]
    slot = torch.where(rank < k, graph.graph_of_node * k + rank, graphs * k)  # the last takes all others
    slot_of_node = torch.empty_like(slot).scatter(0, order, slot)
    return x.new_zeros(graphs * k + 1, x.shape[1]).index_copy(0, slot_of_node, x)[:-1].unflatten(0, (graphs, k))


class SortPool(Readout):
    """The k first nodes in a row: a map of each, the larger of every two, and a convolution along the row.

    Convolutions are written as linear maps of windows: those of cuDNN are not twice the same.
    """

    def __init__(self, dim: int, k: int, channels: tuple[int, int] = (16, 32), window: int = 5) -> None:
        window = min(window, k // 2)
        places = k // 2 - window + 1
        super().__init__(places * channels[1])
        self.k, self.window, self.places = k, window, places
        self.each, self.along = Linear(dim, channels[0]), Linear(window * channels[0], channels[1])

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs out"]:
        row = self.each(sorted_nodes(x, graph, self.k)).relu()
        row = row[:, : self.k // 2 * 2].unflatten(1, (-1, 2)).amax(dim=2)
        windows = torch.cat([row[:, i : i + self.places] for i in range(self.window)], dim=2)
        return self.along(windows).relu().flatten(1)


@dataclass(frozen=True)
class SortPoolConfig(HeadDropoutConfig):
    depth: Repeats = 4
    """Layers, with the one that sorts."""
    k: Annotated[int, Ge(2)] = 30
    """Nodes kept of each graph."""
    head_dim: PositiveInt = 128
    """Width of the head."""


def sortpool(config: SortPoolConfig, features: Features, outputs: int) -> GraphModel:
    """DGCNN: nodes sorted, then 1-D convolutions."""
    widths = [config.dim] * config.depth + [1]
    readout = SortPool(sum(widths[1:]), config.k)
    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [TanhStack(widths, config.dropout)],
        readout,
        make_head(default_head(config.head_dim, outputs), readout.dim, config.head_dim, outputs, config.head_dropout),
        features,
    )
