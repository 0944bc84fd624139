"""GCN and GIN with a virtual node: a vector for each graph that is added to all its nodes and updated by their sum.

Gilmer, Schoenholz, Riley, Vinyals, Dahl: Neural Message Passing for Quantum Chemistry, 2017; in the form of Hu, Fey,
Zitnik et al.: Open Graph Benchmark, 2020. Differs from OGB's code in GIN's epsilon, which stays at 0, and in the
initial embeddings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from mnagt.dropout import Dropout
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.sparse import take
from mnagt.linear import Linear
from mnagt.models.config import EdgeConfig, ReadoutConfig, Repeats
from mnagt.nn.convolutions import GCN, GCNE, GIN, GINE, Block
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, make_head
from mnagt.nn.norms import BatchNorm
from mnagt.nn.readouts import READOUTS
from mnagt.nn.shapes import GraphVectors, NodeVectors


class Update(nn.Module):
    """The virtual node's network: twice a linear map, BatchNorm over the graphs and ReLU."""

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = Linear(dim, 2 * dim, bias=False), Linear(2 * dim, dim, bias=False)
        self.norm_first = BatchNorm(2 * dim, relu=True, rows="graphs")
        self.norm_second = BatchNorm(dim, relu=True, rows="graphs")
        self.dropout = Dropout(dropout)

    def forward(self, virtual: GraphVectors, graph: GraphBatch) -> GraphVectors:
        hidden = self.norm_first(self.first(virtual), graph)
        return self.dropout(self.norm_second(self.second(hidden), graph))


class WithVirtualNode(nn.Module):
    r"""Layers that a vector for each graph, :math:`z`, goes along with. It starts as the same learned one, at zero.

    .. math:: y = x + z, \qquad x' = \mathrm{layer}(y), \qquad z' = \mathrm{update}(z + \sum_v y_v)

    The sum is over the nodes as the layer gets them, as in OGB's code. There is no update after the last layer: nothing
    reads its result.
    """

    def __init__(self, layers: Sequence[nn.Module], updates: Sequence[nn.Module], dim: int) -> None:
        super().__init__()
        self.layers, self.updates = nn.ModuleList(layers), nn.ModuleList(updates)
        self.start = nn.Parameter(torch.zeros(dim))

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        virtual = self.start.expand(graph.num_graphs, -1)
        for i, layer in enumerate(self.layers):
            received = x + take(graph.graph_of, virtual)
            x = layer(received, graph)
            if i < len(self.updates):
                virtual = self.updates[i](virtual + graph.nodes_of @ received, graph)
        return x


def add_virtual_node(layers: Sequence[nn.Module], dim: int, dropout: float) -> WithVirtualNode:
    """``layers`` with a virtual node, updated after each of them but the last."""
    return WithVirtualNode(layers, [Update(dim, dropout) for _ in layers[1:]], dim)


@dataclass(frozen=True)
class VirtualConfig(ReadoutConfig, EdgeConfig):
    depth: Repeats = 5


def gcn_virtual(config: VirtualConfig, features: Features, outputs: int) -> GraphModel:
    """GCN with a virtual node (the OGB kind)."""
    edges = config.edge_columns(features)
    return _make_model(lambda: GCNE(config.dim, edges) if edges else GCN(config.dim), config, features, outputs)


def gin_virtual(config: VirtualConfig, features: Features, outputs: int) -> GraphModel:
    """GIN with a virtual node (the OGB kind)."""
    edges, hidden = config.edge_columns(features), 2 * config.dim

    def conv() -> nn.Module:
        return GINE(config.dim, edges, hidden=hidden) if edges else GIN(config.dim, hidden=hidden)

    return _make_model(conv, config, features, outputs)


def _make_model(conv: Callable[[], nn.Module], config: VirtualConfig, features: Features, outputs: int) -> GraphModel:
    last = config.depth - 1
    layers = [Block(conv(), config.dim, config.dropout, relu=i < last) for i in range(config.depth)]
    stack = add_virtual_node(layers, config.dim, config.dropout)
    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [stack],
        READOUTS[config.readout](config.dim),
        make_head("linear", config.dim, config.dim, outputs),
        features,
    )
