"""Gophormer's proximity-enhanced attention, on whole graphs.

Zhao et al.: Gophormer: Ego-Graph Transformer for Node Classification, 2021. What differs: the original samples
ego-graphs around a node and classifies it; here attention runs over all nodes of a graph, which is then pooled. Its
global nodes, its sampling and its consistency loss are left out.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.kernels import Hop
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.attention.pairs import from_adjacency
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.once import once_a_batch
from mnagt.linear import Linear
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.layer import Layer, Skip, feed_forward
from mnagt.models.norms import LayerNorm
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, one_of


@dataclass(frozen=True)
class GophormerConfig:
    dim: int = 64
    """Width of node vectors."""
    depth: int = 4
    """Layers."""
    heads: int = 4
    """Attention heads."""
    head_dim: int = 16
    """Width of a head."""
    views: int = 4
    """M: attention is told of the powers 0 to M - 1 of the adjacency."""
    ffn: int = 2
    """Width of the feed-forward network, in widths of a node."""
    readout: str = "sum"
    """From nodes to a graph: sum, mean, max, joined (all three), attention, virtual or cls."""
    dropout: float = 0.1
    """Share of a branch's output dropped in training."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim", "depth", "heads", "head_dim", "views", "ffn")
        at_least(self, 0, "dropout")
        below(self, 1, "dropout")
        one_of(self, readout=READOUTS)


@once_a_batch
def proximity(graph: GraphBatch, views: int) -> Float[Tensor, "pairs views"]:
    r""":math:`\phi_{ij} = (I_{ij}, \hat A_{ij}, \dots, \hat A^{M-1}_{ij})`, with :math:`\hat A` as in ``propagate``."""

    def work(adjacency: Float[Tensor, "graphs size size"]) -> list[Tensor]:
        identity = torch.eye(adjacency.shape[1], dtype=adjacency.dtype, device=adjacency.device)
        joined = adjacency + identity
        scale = joined.sum(dim=2).rsqrt()
        step = scale[:, :, None] * joined * scale[:, None, :]
        powers = [identity.expand_as(adjacency)]
        while len(powers) < views:
            powers.append(powers[-1] @ step)
        return powers

    return from_adjacency(graph, views, work)


class Proximity(nn.Module):
    r"""A term :math:`\phi_{ij}^\top b` in each head's scores, b learned."""

    def __init__(self, heads: int, views: int) -> None:
        super().__init__()
        self.views = views
        self.weigh = Linear(views, heads, bias=False)

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs heads"]:
        return self.weigh(proximity(graph, self.views).to(self.weigh.weight.dtype))


def gophormer(config: GophormerConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by themselves and by how near they are, in M views."""

    def layer() -> Layer:
        bias = Proximity(config.heads, config.views)
        return Layer(
            MultiKernelAttention(config.dim, [Hop(0)], heads=config.heads, head_dim=config.head_dim, bias=bias),
            mixer=Mean(config.dim, 1),
            residual=Skip(),
            ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=(LayerNorm(config.dim), LayerNorm(config.dim)),
            dropout=config.dropout,
        )

    return GraphModel(
        NodeEncoder(features.nodes, config.dim),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs, config.dropout),
        features,
    )
