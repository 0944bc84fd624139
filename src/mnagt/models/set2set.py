"""Set2Set: a GNN whose nodes are read by a small LSTM that asks them, again and again.

Vinyals, Bengio, Kudlur: Order Matters: Sequence to Sequence for Sets, 2016; on graphs: Gilmer, Schoenholz, Riley,
Vinyals, Dahl: Neural Message Passing for Quantum Chemistry, 2017. Differs from the latter in its GNN: GIN layers for
the gated, edge-conditioned ones.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.sparse import take
from mnagt.models.builders import make_model
from mnagt.models.config import ConvolutionConfig, HeadDropoutConfig, Repeats
from mnagt.nn.convolutions import Block, convolution
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.readouts import Readout, softmax_within
from mnagt.nn.shapes import NodeVectors


class Set2Set(Readout):
    r"""In each step a question :math:`q` is put to the nodes, and the answer :math:`r` leads to the next one.

    .. math:: q_t = \mathrm{LSTM}(q_{t-1} \Vert r_{t-1}), \qquad
              r_t = \sum_v \alpha_v x_v, \qquad \alpha = \mathrm{softmax}_v(x_v \cdot q_t)

    What is read is :math:`q_T \Vert r_T`, twice as wide as a node.
    """

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__(2 * dim)
        self.steps, self.lstm = steps, nn.LSTMCell(2 * dim, dim)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs twice_dim"]:
        read = x.new_zeros(graph.num_graphs, self.dim)
        state = None
        for _ in range(self.steps):
            question, memory = self.lstm(read, state)
            state = question, memory
            score = (x * take(graph.graph_of, question)).sum(dim=1, keepdim=True)
            answer = graph.nodes_of @ (softmax_within(score, graph) * x)
            read = torch.cat([question, answer], dim=1)
        return read


@dataclass(frozen=True)
class Set2SetConfig(ConvolutionConfig, HeadDropoutConfig):
    steps: Repeats = 3
    """Steps of the LSTM."""


def set2set(config: Set2SetConfig, features: Features, outputs: int) -> GraphModel:
    """GIN read by an LSTM that attends to the nodes."""
    convolutions = (convolution(config.conv, config.dim, features.edges) for _ in range(config.depth))
    layers = (Block(conv, config.dim, config.dropout) for conv in convolutions)
    readout = Set2Set(config.dim, config.steps)
    return make_model(config, features, outputs, layers, readout=readout, head_dropout=config.head_dropout)
