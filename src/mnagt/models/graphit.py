r"""GraphiT: attention weighed by a kernel on the graph.

Mialon, Chen, Selosse, Mairal: GraphiT: Encoding Graph Structure in Transformers, 2021. Attention weights are multiplied
by a kernel :math:`K` of the graph's Laplacian and brought back to sum 1, queries and keys are the same, and what
attention brings is divided by the root of a node's degree. What differs: norms stand before each branch, not after;
pooling is a setting; its encoding of paths by GCKN is left out.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from jaxtyping import Float
from torch import Tensor

from mnagt.attention.attend import attend
from mnagt.attention.biases import DiffusionBias, RandomWalkBias
from mnagt.attention.kernels import Hop, Hops
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.models.config import ReadoutModelConfig, Repeats
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.layer import IdentityResidual, Layer, feed_forward
from mnagt.nn.norms import BatchNorm, pre_norms
from mnagt.nn.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import Fraction, NonNegativeFloat, NonNegativeInt, OneOf, PositiveInt


@dataclass(frozen=True)
class GraphitConfig(ReadoutModelConfig):
    depth: Repeats = 3
    heads: PositiveInt = 4
    """Attention heads."""
    head_dim: PositiveInt = 16
    """Width of a head."""
    kernel: Literal["diffusion", "random-walk"] = "diffusion"
    """What attention is weighed by: exp(-beta L), or the random walk (I - gamma L)^steps."""
    beta: NonNegativeFloat = 1.0
    """How far diffusion goes."""
    steps: Repeats = 3
    """Steps of the random walk: no node sees farther."""
    gamma: NonNegativeFloat = 0.5
    """Share of the random walk that moves on in a step; at most 1."""
    laplacian: NonNegativeInt = 0
    """Laplacian eigenvectors added to the nodes, this many; 0 for none."""
    ffn: PositiveInt = 2
    """Width of the feed-forward network, in widths of a node."""
    readout: Annotated[str, OneOf(READOUTS.keys() - {"cls"})] = "mean"
    """From nodes to a graph: mean, sum, max, attention or virtual-node."""
    dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma > 1:
            raise InputError(f"gamma must be at most 1, or the kernel has negative entries; got {self.gamma}")


class TiedAttention(MultiKernelAttention):
    r""":math:`D^{-1/2}\, \mathrm{normalise}(\exp(Q Q^\top / \sqrt d) \odot K)\, V`, D the degrees and 1."""

    def __init__(self, config: GraphitConfig) -> None:
        is_diffusion = config.kernel == "diffusion"
        bias = DiffusionBias(config.beta) if is_diffusion else RandomWalkBias(config.steps, config.gamma)
        super().__init__(config.dim, [Hop(0)], heads=config.heads, head_dim=config.head_dim, bias=bias)
        del self.to_key

    def forward(self, hops: Hops) -> Float[Tensor, "nodes kernels dim"]:
        assert self.bias is not None
        x, heads = [hops[0]], (self.heads, self.head_dim)
        query, value = self.to_query(x).unflatten(2, heads), self.to_value(x).unflatten(2, heads)
        z = attend(query, query, value, hops.graph, bias=self.bias(hops.graph), backend=self.backend)
        return self.to_out.each(z.flatten(2)) * hops.graph.inv_sqrt_degree.to(z.dtype)[:, None, None]


def graphit(config: GraphitConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by themselves, and weighs what it finds by a kernel on the graph."""

    def layer() -> Layer:
        return Layer(
            TiedAttention(config),
            mixer=Mean(config.dim, 1),
            residual=IdentityResidual(),
            ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=pre_norms(BatchNorm, config.dim),
            dropout=config.dropout,
        )

    return GraphModel(
        NodeEncoder(features.nodes, config.dim, laplacian=config.laplacian),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        make_head(default_head(config.dim, outputs), config.dim, config.dim, outputs, config.dropout),
        features,
    )
