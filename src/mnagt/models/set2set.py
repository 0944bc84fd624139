"""Set2Set: a GNN whose nodes are read by an LSTM with attention.

Vinyals, Bengio, Kudlur: Order Matters: Sequence to Sequence for Sets, 2016; on graphs: Gilmer, Schoenholz, Riley,
Vinyals, Dahl: Neural Message Passing for Quantum Chemistry, 2017. Differs from the latter in GIN layers.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.sparse import take
from mnagt.models.builders import make_blocks, make_model
from mnagt.models.config import ConvolutionConfig, HeadDropoutConfig, Repeats
from mnagt.nn.convolutions import convolution
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.readouts import Readout, softmax_within
from mnagt.nn.shapes import NodeVectors


class Set2Set(Readout):
    r"""Attention over the nodes with queries :math:`q` from an LSTM that reads the results :math:`r`.

    .. math:: q_t = \mathrm{LSTM}(q_{t-1} \Vert r_{t-1}), \qquad
              r_t = \sum_v \alpha_v x_v, \qquad \alpha = \mathrm{softmax}_v(x_v \cdot q_t)

    The output is :math:`q_T \Vert r_T`, twice as wide as a node.
    """

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__(2 * dim)
        self.steps, self.lstm = steps, nn.LSTMCell(2 * dim, dim)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs twice_dim"]:
        read, state = x.new_zeros(graph.num_graphs, self.dim), None
        for _ in range(self.steps):
            state = self.lstm(read, state)
            score = (x * take(graph.graph_of, state[0])).sum(dim=1, keepdim=True)
            read = torch.cat([state[0], graph.nodes_of @ (softmax_within(score, graph) * x)], dim=1)
        return read


@dataclass(frozen=True)
class Set2SetConfig(ConvolutionConfig, HeadDropoutConfig):
    steps: Repeats = 3
    """Steps of the LSTM."""


def set2set(config: Set2SetConfig, features: Features, outputs: int) -> GraphModel:
    """GIN read by an LSTM that attends to the nodes."""
    layers = make_blocks(config, lambda: convolution(config.conv, config.dim, features.edges))
    readout = Set2Set(config.dim, config.steps)
    return make_model(config, features, outputs, layers, readout=readout, head_dropout=config.head_dropout)
