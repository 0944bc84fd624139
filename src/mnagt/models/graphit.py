r"""GraphiT: attention weighed by a kernel on the graph.

Mialon, Chen, Selosse, Mairal: GraphiT: Encoding Graph Structure in Transformers, 2021. Attention weights are multiplied
by a kernel :math:`K` of the graph's Laplacian and brought back to sum 1, queries and keys are the same, and what
attention brings is divided by the root of a node's degree. Differs from the original in norms before each
branch, not after, and in a choice of readout; its encoding of paths by GCKN is left out.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from mnagt.attention.attend import Heads
from mnagt.attention.biases import DiffusionBias, RandomWalkBias
from mnagt.attention.kernels import Hop, Hops
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.models.builders import make_layer, make_model
from mnagt.models.config import Repeats, TransformerLayerConfig
from mnagt.models.sat import DegreeScaledAttention
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.norms import BatchNorm
from mnagt.nn.readouts import READOUTS
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import NonNegativeFloat, NonNegativeInt, OneOf


@dataclass(frozen=True)
class GraphitConfig(TransformerLayerConfig):
    depth: Repeats = 3
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
    readout: Annotated[str, OneOf(READOUTS.keys() - {"cls"})] = "mean"
    """From node vectors to a graph vector; its CLS node would have no place in the kernel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma > 1:
            raise InputError(f"gamma must be at most 1, or the kernel has negative entries; got {self.gamma}")


class TiedAttention(DegreeScaledAttention):
    r""":math:`D^{-1/2}\, \mathrm{normalise}(\exp(Q Q^\top / \sqrt d) \odot K)\, V`, D the degrees and 1."""

    def __init__(self, config: GraphitConfig) -> None:
        is_diffusion = config.kernel == "diffusion"
        bias = DiffusionBias(config.beta) if is_diffusion else RandomWalkBias(config.steps, config.gamma)
        super().__init__(config.dim, [Hop(0)], heads=config.heads, head_dim=config.head_dim, bias=bias)
        del self.to_key

    def _project(self, hops: Hops) -> tuple[Heads, Heads, tuple[NodeVectors, ...]]:
        query = self.to_query([hops[0]]).unflatten(2, (self.heads, self.head_dim))
        return query, query, (hops[0],)


def graphit(config: GraphitConfig, features: Features, outputs: int) -> GraphModel:
    """Attention weighed by a diffusion or random-walk kernel on the graph.

    >>> graphit(GraphitConfig(kernel="random-walk"), Features(), outputs=2).layers[0].attention.bias
    RandomWalkBias()
    """
    layers = (make_layer(config, TiedAttention(config), BatchNorm) for _ in range(config.depth))
    encoder = NodeEncoder(features.nodes, config.dim, laplacian=config.laplacian)
    return make_model(config, features, outputs, layers, encoder=encoder, head_dropout=config.dropout)
