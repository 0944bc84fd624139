"""GPS: in every layer message passing and attention side by side.

Rampášek, Galkin, Dwivedi, Luu, Wolf, Beaini: Recipe for a General, Powerful, Scalable Graph Transformer, 2022. The
layer is that of their code and of PyTorch Geometric's ``GPSConv``. What differs: the GIN within has BatchNorm in its
network, as our GIN everywhere; random-walk (RWSE) and Laplacian (LapPE) encodings go through a linear map and are added
to the nodes, where theirs go through small networks and are put beside them.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.linear import Linear
from mnagt.models.convolutions import CONVOLUTIONS, convolution
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.layer import SelfAttention, heads_divide
from mnagt.models.norms import BatchNorm
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, one_of


@dataclass(frozen=True)
class GpsConfig:
    dim: int = 64
    """Width of node vectors."""
    depth: int = 5
    """Layers."""
    heads: int = 4
    """Attention heads; they divide the width of nodes."""
    conv: str = "auto"
    """Message passing beside attention: gin, gine (reads edges), gcn; auto is gine where edges carry columns."""
    readout: str = "mean"
    """From nodes to a graph: mean, sum, max, attention, virtual or cls."""
    dropout: float = 0.1
    """Share of a branch's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training (slower on a CPU, whose fused kernels do without)."""
    random_walk: int = 16
    """Random-walk return probabilities added to the nodes, this many steps; 0 for none."""
    laplacian: int = 0
    """Laplacian eigenvectors added to the nodes, this many; 0 for none."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim", "depth", "heads")
        at_least(self, 0, "dropout", "attention_dropout", "random_walk", "laplacian")
        below(self, 1, "dropout", "attention_dropout")
        one_of(self, conv={"auto", *CONVOLUTIONS}, readout=READOUTS)
        heads_divide(self.dim, self.heads)


class GpsLayer(nn.Module):
    r"""Message passing and attention, each with its residual and norm, added up; then a small network.

    .. math:: Z = \mathrm{norm}(X + \mathrm{conv}(X)) + \mathrm{norm}(X + \mathrm{attention}(X)), \qquad
              X' = \mathrm{norm}(Z + \mathrm{MLP}(Z))
    """

    def __init__(self, dim: int, conv: nn.Module, attention: SelfAttention, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv, self.attention = conv, attention
        self.mlp = nn.Sequential(Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(dropout), Linear(2 * dim, dim))
        self.norm_conv, self.norm_attention, self.norm_mlp = BatchNorm(dim), BatchNorm(dim), BatchNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        near = self.norm_conv(x + self.dropout(self.conv(x, graph)), graph.real_nodes)
        far = self.norm_attention(x + self.dropout(self.attention(x, graph)), graph.real_nodes)
        z = near + far
        return self.norm_mlp(z + self.dropout(self.mlp(z)), graph.real_nodes)


def gps(config: GpsConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer passes messages along edges and attends to all nodes, and adds up the two."""

    def layer() -> GpsLayer:
        conv = convolution(config.conv, config.dim, features.edges)
        attention = SelfAttention(config.dim, config.heads, config.attention_dropout)
        return GpsLayer(config.dim, conv, attention, config.dropout)

    return GraphModel(
        NodeEncoder(features.nodes, config.dim, random_walk=config.random_walk, laplacian=config.laplacian),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs, config.dropout),
        features,
    )
