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
from mnagt.models.config import ConvolutionName, ModelConfig, Repeats
from mnagt.nn.convolutions import Block, convolution
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import Readout, softmax_within
from mnagt.settings import Fraction


class Set2Set(Readout):
    r"""In each step a question :math:`q` is put to the nodes, and the answer :math:`r` leads to the next one.

    .. math:: q_t = \mathrm{LSTM}(q_{t-1} \Vert r_{t-1}), \qquad
              r_t = \sum_v \alpha_v x_v, \qquad \alpha = \mathrm{softmax}_v(x_v \cdot q_t)

    What is read is :math:`q_T \Vert r_T`, twice as wide as a node.
    """

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__(2 * dim)
        self.steps, self.lstm = steps, nn.LSTMCell(2 * dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "graphs twice_dim"]:
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
class Set2SetConfig(ModelConfig):
    conv: ConvolutionName = "auto"
    """gin, gcn, gine and gcne (read edges); auto is gine where edges carry columns."""
    steps: Repeats = 3
    """Questions put to the nodes."""
    head_dropout: Fraction = 0.0
    """Share of the head's hidden units dropped in training."""


def set2set(config: Set2SetConfig, features: Features, outputs: int) -> GraphModel:
    """Message passing, then an LSTM that reads the nodes as a set."""

    def layer() -> Block:
        return Block(convolution(config.conv, config.dim, features.edges), config.dim, config.dropout)

    readout = Set2Set(config.dim, config.steps)
    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        readout,
        make_head(default_head(config.dim, outputs), readout.dim, config.dim, outputs, config.head_dropout),
        features,
    )
