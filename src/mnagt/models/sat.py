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
from mnagt.models.config import ConvolutionName, NormName, ReadoutModelConfig, ReadoutName, Repeats
from mnagt.nn.convolutions import convolution
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.layer import IdentityResidual, PostNormLayer, relu_feed_forward
from mnagt.nn.norms import NORMS, BatchNorm
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction, NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class SatConfig(ReadoutModelConfig):
    hops: Repeats = 3
    """k: layers of the GNN through which nodes are compared, in every layer."""
    conv: ConvolutionName = "auto"
    """Message passing of the extractor: gin, gcn, gine, gcne (these read edges); auto is gine if they have columns."""
    heads: PositiveInt = 8
    """Attention heads."""
    head_dim: PositiveInt = 8
    """Width of a head."""
    ffn: PositiveInt = 2
    """Width of the feed-forward network, in widths of a node."""
    degree: bool = True
    """What attention brings is divided by the root of the node's degree, itself counted."""
    norm: NormName = "batch"
    """Normalisation after attention and feed-forward: batch, layer or none."""
    readout: ReadoutName = "mean"
    dropout: Fraction = 0.2
    attention_dropout: Fraction = 0.0
    """Share of attention weights dropped in training (slower on a CPU, whose fused kernels do without)."""
    random_walk: NonNegativeInt = 0
    """Random-walk return probabilities added to the nodes, this many steps; 0 for none."""


class StructureExtractor(nn.Module):
    r"""The subtree of k hops around each node, as a vector.

    .. math:: \mathrm{BN}(x_0 \Vert x_1 \Vert \dots \Vert x_k) W, \qquad x_i = \mathrm{ReLU}(\mathrm{conv}_i(x_{i-1}))
    """

    def __init__(self, dim: int, hops: int, conv: str, edges: Columns) -> None:
        super().__init__()
        self.convs = nn.ModuleList([convolution(conv, dim, edges) for _ in range(hops)])
        self.norm, self.project = BatchNorm((hops + 1) * dim), Linear((hops + 1) * dim, dim)

    def forward(self, x: Float[Tensor, "nodes dim"], graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        outputs = [x]
        for conv in self.convs:
            outputs.append(conv(outputs[-1], graph).relu())
        return self.project(self.norm(torch.cat(outputs, dim=1), graph))


class DegreeScaledAttention(MultiKernelAttention):
    r""":math:`D^{-1/2} Z`, with D the degrees, each node itself counted."""

    def forward(self, hops: Hops) -> Float[Tensor, "nodes kernels dim"]:
        z = super().forward(hops)
        return hops.graph.inv_sqrt_degree[:, None, None].to(z.dtype) * z


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
            residual=IdentityResidual(),
            ffn=relu_feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=(norm(config.dim), norm(config.dim)),
            dropout=config.dropout,
        )

    return GraphModel(
        NodeEncoder(features.nodes, config.dim, random_walk=config.random_walk),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        make_head(default_head(config.dim, outputs), config.dim, config.dim, outputs),
        features,
    )
