"""k-subtree SAT: nodes compared by the subtrees around them.

Chen, O'Bray, Borgwardt: Structure-Aware Transformer for Graph Representation Learning, 2022. As in their code: a
structure extractor of k GNN layers, all of their outputs kept; what attention brings to a node is divided by the root
of its degree; normalised after each branch; BatchNorm; mean pooling. What differs: their default GNN is PyTorch
Geometric's GraphConv, ours GIN (GINE where edges carry columns); the output map of attention has no constant term; and
random-walk encodings, if any, are standardised first.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.kernels import Hops, Structural
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.linear import Linear
from mnagt.models.convolutions import CONVOLUTIONS, convolution
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.layer import PostNormLayer, Skip, relu_feed_forward
from mnagt.models.norms import NORMS, BatchNorm
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, one_of


@dataclass(frozen=True)
class SatConfig:
    dim: int = 64
    """Width of node vectors."""
    depth: int = 4
    """Layers."""
    hops: int = 3
    """k: layers of the GNN through which nodes are compared, in every layer."""
    conv: str = "auto"
    """Message passing of the extractor: gin, gcn, gine, gcne (these read edges); auto is gine if they have columns."""
    heads: int = 8
    """Attention heads."""
    head_dim: int = 8
    """Width of a head."""
    ffn: int = 2
    """Width of the feed-forward network, in widths of a node."""
    degree: bool = True
    """What attention brings is divided by the root of the node's degree, itself counted."""
    norm: str = "batch"
    """Normalisation after attention and feed-forward: batch, layer or none."""
    readout: str = "mean"
    """From nodes to a graph: mean, sum, max, attention, virtual or cls."""
    dropout: float = 0.2
    """Share of a branch's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training (slower on a CPU, whose fused kernels do without)."""
    random_walk: int = 0
    """Random-walk return probabilities added to the nodes, this many steps; 0 for none."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim", "depth", "hops", "heads", "head_dim", "ffn")
        at_least(self, 0, "dropout", "attention_dropout", "random_walk")
        below(self, 1, "dropout", "attention_dropout")
        one_of(self, conv={"auto", *CONVOLUTIONS}, norm=NORMS, readout=READOUTS)


class StructureExtractor(nn.Module):
    r"""The subtree of k hops around each node, as a vector.

    .. math:: \mathrm{BN}(x_0 \Vert x_1 \Vert \dots \Vert x_k) W, \qquad x_i = \mathrm{ReLU}(\mathrm{conv}_i(x_{i-1}))
    """

    def __init__(self, dim: int, hops: int, conv: str, edges: Columns) -> None:
        super().__init__()
        self.convs = nn.ModuleList([convolution(conv, dim, edges) for _ in range(hops)])
        self.norm, self.project = BatchNorm((hops + 1) * dim), Linear((hops + 1) * dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        seen = [x]
        for conv in self.convs:
            seen.append(conv(seen[-1], graph).relu())
        return self.project(self.norm(torch.cat(seen, dim=1), graph.real_nodes))


class DegreeScaledAttention(MultiKernelAttention):
    r""":math:`D^{-1/2} Z`, with D the degrees, each node itself counted."""

    def forward(self, hops: Hops) -> Float[Tensor, "nodes kernels dim"]:
        z = super().forward(hops)
        return hops.graph.degree_root[:, None, None].to(z.dtype) * z


def sat(config: SatConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by what a GNN sees around them."""

    def layer() -> PostNormLayer:
        attention = DegreeScaledAttention if config.degree else MultiKernelAttention
        norm = lookup(NORMS, config.norm, "norm")
        return PostNormLayer(
            attention(
                config.dim,
                [Structural(StructureExtractor(config.dim, config.hops, config.conv, features.edges))],
                heads=config.heads,
                head_dim=config.head_dim,
                dropout=config.attention_dropout,
            ),
            mixer=Mean(config.dim, 1),
            residual=Skip(),
            ffn=relu_feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=(norm(config.dim), norm(config.dim)),
            dropout=config.dropout,
        )

    return GraphModel(
        NodeEncoder(features.nodes, config.dim, random_walk=config.random_walk),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs),
        features,
    )
