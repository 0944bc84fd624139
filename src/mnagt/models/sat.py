"""k-subtree SAT: nodes compared by the subtrees around them.

Chen, O'Bray, Borgwardt: Structure-Aware Transformer for Graph Representation Learning, 2022. As in their code: a
structure extractor of k GNN layers, all of their outputs kept; the output of attention divided by the root of the
node's degree; BatchNorm after each branch. Differs in GIN (theirs: PyTorch Geometric's GraphConv), in an output map of
attention without constant term, and in standardised random-walk encodings.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.kernels import Hops, Structural
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.linear import Linear
from mnagt.models.builders import make_attention, make_layer, make_model
from mnagt.models.config import GnnTransformerConfig, NormName, ReadoutName, Repeats
from mnagt.nn.convolutions import convolution
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.norms import NORMS, BatchNorm
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import Fraction, NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class SatConfig(GnnTransformerConfig):
    hops: Repeats = 3
    """k: layers of the GNN through which nodes are compared, in every layer."""
    heads: PositiveInt = 8
    head_dim: PositiveInt = 8
    degree: bool = True
    """What attention brings is divided by the root of the node's degree, itself counted."""
    norm: NormName = "batch"
    """Normalisation after attention and feed-forward: batch, layer or none."""
    readout: ReadoutName = "mean"
    dropout: Fraction = 0.2
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

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
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
    """k-subtree SAT: nodes compared by the subtrees around them."""
    scaled = DegreeScaledAttention if config.degree else MultiKernelAttention
    extractors = (StructureExtractor(config.dim, config.hops, config.conv, features.edges) for _ in range(config.depth))
    attentions = (make_attention(config, [Structural(extractor)], scaled) for extractor in extractors)
    layers = (make_layer(config, attention, NORMS[config.norm], is_post_norm=True) for attention in attentions)
    encoder = NodeEncoder(features.nodes, config.dim, random_walk=config.random_walk)
    return make_model(config, features, outputs, layers, encoder=encoder)
