"""SAGPool, hierarchical: graphs made smaller step by step, each time keeping the nodes a convolution scores highest.

Lee, Lee, Kang: Self-Attention Graph Pooling, 2019. Differs from the original in a BatchNorm after each convolution, in
a head of two maps for its three, in reading edge columns where there are any, and in ties: where nodes tie for the last
place all of them stay, for otherwise the order in which nodes are named would decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.adjacency import propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.subgraph import induce_subgraph, is_top
from mnagt.linear import Linear
from mnagt.models.builders import make_blocks, make_model
from mnagt.models.config import EdgeConfig, HeadDropoutConfig, Repeats
from mnagt.nn.convolutions import GCN, GCNE
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.readouts import Max, Mean, Readout
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import Gt, Le


class SelfAttentionPool(nn.Module):
    r"""The ``ratio`` of nodes with the highest scores :math:`s = \tanh(\hat A X w)`, each times its score."""

    def __init__(self, dim: int, ratio: float) -> None:
        super().__init__()
        self.ratio, self.score = ratio, Linear(dim, 1)

    def scores(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "nodes 1"]:
        return torch.tanh(propagate(self.score(x), graph))

    def forward(self, x: NodeVectors, graph: GraphBatch) -> tuple[Float[Tensor, "more_nodes dim"], GraphBatch]:
        score = self.scores(x, graph)
        smaller, rows = induce_subgraph(graph, is_top(score[:, 0], graph, self.ratio))
        return (x * score).index_select(0, rows), smaller


class Hierarchy(Readout):
    """Convolve, pool, and read mean and maximum of what is left; the sum over all blocks."""

    def __init__(self, dim: int, blocks: Sequence[nn.Module], pools: Sequence[nn.Module]) -> None:
        super().__init__(2 * dim)
        self.blocks, self.pools = nn.ModuleList(blocks), nn.ModuleList(pools)
        self.mean, self.max = Mean(dim), Max(dim)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs twice_dim"]:
        read, graphs = [], graph.num_graphs
        for block, pool in zip(self.blocks, self.pools, strict=True):
            x, graph = pool(block(x, graph), graph)
            # pooling may have put what it left out in graphs of its own, at the end
            read.append(torch.cat([self.mean(x, graph), self.max(x, graph)], dim=1)[:graphs])
        return sum(read[1:], start=read[0])


@dataclass(frozen=True)
class SagPoolConfig(EdgeConfig, HeadDropoutConfig):
    depth: Repeats = 3
    """Blocks of convolution and pooling."""
    ratio: Annotated[float, Gt(0), Le(1)] = 0.5
    """Share of each graph's nodes that a pooling keeps, rounded up."""


def sagpool(config: SagPoolConfig, features: Features, outputs: int) -> GraphModel:
    """Hierarchical self-attention pooling."""
    edges = config.edge_columns(features)
    blocks = list(make_blocks(config, lambda: (GCNE if edges else GCN)(config.dim, edges)))
    readout = Hierarchy(config.dim, blocks, [SelfAttentionPool(config.dim, config.ratio) for _ in blocks])
    return make_model(config, features, outputs, [], readout=readout, head_dropout=config.head_dropout)
