"""GraphTrans: a GNN for short distances, then a transformer for long ones.

Wu, Jain, Wright, Mirhoseini, Gonzalez, Stoica: Representing Long-Range Context for Graph Neural Networks with Global
Attention, 2021. As in their code: a GNN, a linear map, a learned CLS node, LayerNorm, layers of the original
Transformer and a last LayerNorm; the CLS node is read. Differs in GIN by default, in ReLU after the GNN's last layer
too, in attention maps without constant terms, and in the head. The GNN is the encoder: the residual of the first layer
does not bypass it, as it would in the first layer of MNA-GT's reading (a kernel that is the GNN, then ``Hop(0)``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from mnagt.attention.kernels import Hop
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.linear import Linear
from mnagt.models.builders import make_attention, make_layer, make_model
from mnagt.models.config import GnnTransformerConfig, ReadoutName, Repeats
from mnagt.models.virtual_node import add_virtual_node
from mnagt.nn.convolutions import Block, convolution
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.norms import LayerNorm
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import Fraction, PositiveInt


@dataclass(frozen=True)
class GraphTransConfig(GnnTransformerConfig):
    dim: PositiveInt = 128
    gnn_depth: Repeats = 4
    """Layers of the GNN."""
    depth: Repeats = 3
    """Layers of the transformer."""
    virtual: bool = False
    """A virtual node beside the GNN, as in their configurations for ogbg-code2."""
    head_dim: PositiveInt = 32
    readout: ReadoutName = "cls"
    gnn_dropout: Fraction = 0.1
    """Share of a GNN layer's output dropped in training."""


class GnnEncoder(NodeEncoder):
    """Nodes as a GNN sees them, through a linear map: the first stage of the model."""

    def __init__(self, columns: Columns, dim: int, gnn: Sequence[nn.Module]) -> None:
        super().__init__(columns, dim)
        self.gnn, self.project = nn.ModuleList(gnn), Linear(dim, dim)

    def forward(self, graph: GraphBatch) -> NodeVectors:
        x = super().forward(graph)
        for layer in self.gnn:
            x = layer(x, graph)
        return self.project(x)


class Normalised(nn.Module):
    """LayerNorm as a step of its own, before or after the layers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = LayerNorm(dim)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        return self.norm(x)


def graphtrans(config: GraphTransConfig, features: Features, outputs: int) -> GraphModel:
    """A GNN, then a transformer with a CLS node."""

    def block() -> Block:
        return Block(convolution(config.conv, config.dim, features.edges), config.dim, config.gnn_dropout)

    gnn: list[nn.Module] = [block() for _ in range(config.gnn_depth)]
    if config.virtual:
        gnn = [add_virtual_node(gnn, config.dim, config.gnn_dropout)]
    encoder = GnnEncoder(features.nodes, config.dim, gnn)
    attentions = (make_attention(config, [Hop(0)]) for _ in range(config.depth))
    layers = [make_layer(config, attention, is_post_norm=True) for attention in attentions]
    layers = [Normalised(config.dim), *layers, Normalised(config.dim)]
    return make_model(config, features, outputs, layers, encoder=encoder, head_dropout=config.dropout)
