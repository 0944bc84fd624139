"""GraphTrans: a GNN for what is near, then a transformer for what is far.

Wu, Jain, Wright, Mirhoseini, Gonzalez, Stoica: Representing Long-Range Context for Graph Neural Networks with Global
Attention, 2021. As in their code: layers of a GNN, a linear map, a learned CLS node, LayerNorm, layers of the original
Transformer (normalised after each branch, ReLU) and a last LayerNorm; the CLS node is read. What differs: GIN by
default, where their configurations for NCI1 have GCN or GIN (GINE where edges carry columns); ReLU after the GNN's last
layer too; the attention's maps have no constant terms; and the head is ours.

The paper of MNA-GT reads it as a first layer whose kernel is the GNN, then ``Hop(0)``. Here the GNN is the encoder, as
in the original: the residual of the first layer does not bypass it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.kernels import Hop
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.linear import Linear
from mnagt.models.config import ConvolutionName, ReadoutModelConfig, ReadoutName, Repeats
from mnagt.models.virtual_node import Update, WithVirtualNode
from mnagt.nn.convolutions import Block, convolution
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.layer import IdentityResidual, PostNormLayer, relu_feed_forward
from mnagt.nn.norms import LayerNorm
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction, PositiveInt


@dataclass(frozen=True)
class GraphTransConfig(ReadoutModelConfig):
    dim: PositiveInt = 128
    gnn_depth: Repeats = 4
    """Layers of the GNN."""
    depth: Repeats = 3
    """Layers of the transformer."""
    conv: ConvolutionName = "auto"
    """Message passing of the GNN: gin, gcn, gine and gcne (read edges); auto is gine where edges carry columns."""
    virtual: bool = False
    """A virtual node beside the GNN, as in their configurations for ogbg-code2."""
    heads: PositiveInt = 4
    """Attention heads."""
    head_dim: PositiveInt = 32
    """Width of a head."""
    ffn: PositiveInt = 2
    """Width of the feed-forward network, in widths of a node."""
    readout: ReadoutName = "cls"
    gnn_dropout: Fraction = 0.1
    """Share of a GNN layer's output dropped in training."""
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.0
    """Share of attention weights dropped in training (slower on a CPU, whose fused kernels do without)."""


class GnnEncoder(NodeEncoder):
    """Nodes as a GNN sees them, through a linear map: the first stage of the model."""

    def __init__(self, columns: Columns, dim: int, gnn: Sequence[nn.Module]) -> None:
        super().__init__(columns, dim)
        self.gnn, self.project = nn.ModuleList(gnn), Linear(dim, dim)

    def forward(self, graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        x = super().forward(graph)
        for layer in self.gnn:
            x = layer(x, graph)
        return self.project(x)


class Normalised(nn.Module):
    """LayerNorm as a step of its own, before or after the layers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = LayerNorm(dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        return self.norm(x)


def graphtrans(config: GraphTransConfig, features: Features, outputs: int) -> GraphModel:
    """Message passing first; then every layer compares nodes, and a CLS node, by what it made of them."""

    def gnn() -> list[nn.Module]:
        convolutions = [convolution(config.conv, config.dim, features.edges) for _ in range(config.gnn_depth)]
        blocks: list[nn.Module] = [Block(conv, config.dim, config.gnn_dropout) for conv in convolutions]
        if not config.virtual:
            return blocks
        updates = [Update(config.dim, config.gnn_dropout) for _ in blocks[1:]]
        return [WithVirtualNode(blocks, updates, config.dim)]

    def layer() -> PostNormLayer:
        return PostNormLayer(
            MultiKernelAttention(
                config.dim,
                [Hop(0)],
                heads=config.heads,
                head_dim=config.head_dim,
                dropout=config.attention_dropout,
            ),
            mixer=Mean(config.dim, 1),
            residual=IdentityResidual(),
            ffn=relu_feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=(LayerNorm(config.dim), LayerNorm(config.dim)),
            dropout=config.dropout,
        )

    return GraphModel(
        GnnEncoder(features.nodes, config.dim, gnn()),
        [Normalised(config.dim), *(layer() for _ in range(config.depth)), Normalised(config.dim)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        make_head(default_head(config.dim, outputs), config.dim, config.dim, outputs, config.dropout),
        features,
    )
