r"""GraphiT: attention weighed by a kernel on the graph.

Mialon, Chen, Selosse, Mairal: GraphiT: Encoding Graph Structure in Transformers, 2021. Attention weights are multiplied
by a kernel :math:`K` of the graph's Laplacian and brought back to sum 1, queries and keys are the same, and what
attention brings is divided by the root of a node's degree. What differs: norms stand before each branch, not after;
pooling is a setting; its encoding of paths by GCKN is left out.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.attend import attend
from mnagt.attention.kernels import Hop, Hops
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.attention.pairs import from_adjacency
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.once import once_a_batch
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.layer import Layer, Skip, feed_forward
from mnagt.models.norms import BatchNorm
from mnagt.models.readouts import READOUTS
from mnagt.registry import lookup
from mnagt.settings import at_least, below, literals, one_of

SMALLEST = 1e-13
"""Entries of a kernel below are rounding errors: the pair does not see each other."""


@dataclass(frozen=True)
class GraphitConfig:
    dim: int = 64
    """Width of node vectors."""
    depth: int = 3
    """Layers."""
    heads: int = 4
    """Attention heads."""
    head_dim: int = 16
    """Width of a head."""
    kernel: Literal["diffusion", "random-walk"] = "diffusion"
    """What attention is weighed by: exp(-beta L), or the random walk (I - gamma L)^steps."""
    beta: float = 1.0
    """How far diffusion goes."""
    steps: int = 3
    """Steps of the random walk: no node sees farther."""
    gamma: float = 0.5
    """Share of the random walk that moves on in a step; at most 1."""
    laplacian: int = 0
    """Laplacian eigenvectors added to the nodes, this many; 0 for none."""
    ffn: int = 2
    """Width of the feed-forward network, in widths of a node."""
    readout: str = "mean"
    """From nodes to a graph: mean, sum, max, attention or virtual."""
    dropout: float = 0.1
    """Share of a branch's output dropped in training."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim", "depth", "heads", "head_dim", "steps", "ffn")
        at_least(self, 0, "beta", "gamma", "laplacian", "dropout")
        below(self, 1, "dropout")
        if self.gamma > 1:
            raise InputError(f"gamma must be at most 1, or the kernel has negative entries; got {self.gamma}")
        one_of(self, readout=READOUTS.keys() - {"cls"})  # no kernel joins a node without edges to the others
        literals(self)


@once_a_batch
def log_diffusion(graph: GraphBatch, beta: float) -> Float[Tensor, "pairs 1"]:
    r""":math:`\log \exp(-\beta L)` of each pair."""
    return from_adjacency(graph, 1, lambda a: [_log(torch.linalg.matrix_exp(-beta * _laplacian(a)))])


@once_a_batch
def log_random_walk(graph: GraphBatch, steps: int, gamma: float) -> Float[Tensor, "pairs 1"]:
    r""":math:`\log (I - \gamma L)^p` of each pair, p the number of steps."""

    def work(adjacency: Float[Tensor, "graphs size size"]) -> list[Tensor]:
        identity = torch.eye(adjacency.shape[1], dtype=adjacency.dtype, device=adjacency.device)
        return [_log(torch.linalg.matrix_power(identity - gamma * _laplacian(adjacency), steps))]

    return from_adjacency(graph, 1, work)


def _laplacian(adjacency: Float[Tensor, "graphs size size"]) -> Float[Tensor, "graphs size size"]:
    r""":math:`I - D^{-1/2} A D^{-1/2}`, zero at isolated nodes; directed edges are taken both ways."""
    adjacency = adjacency.maximum(adjacency.mT)
    degree = adjacency.sum(dim=2)
    scale = degree.clamp(min=1).rsqrt()
    return torch.diag_embed((degree > 0).to(degree)) - scale[:, :, None] * adjacency * scale[:, None, :]


def _log(kernel: Float[Tensor, "graphs size size"]) -> Float[Tensor, "graphs size size"]:
    return torch.where(kernel > SMALLEST, kernel.clamp(min=SMALLEST).log(), -torch.inf)


class GraphKernel(nn.Module):
    """The logarithm of a kernel: added to the scores, it multiplies the weights."""

    def __init__(self, config: GraphitConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs 1"]:
        if self.config.kernel == "diffusion":
            return log_diffusion(graph, self.config.beta)
        return log_random_walk(graph, self.config.steps, self.config.gamma)


class TiedAttention(MultiKernelAttention):
    r""":math:`D^{-1/2}\, \mathrm{normalise}(\exp(Q Q^\top / \sqrt d) \odot K)\, V`, D the degrees and 1."""

    def __init__(self, config: GraphitConfig) -> None:
        kernel = GraphKernel(config)
        super().__init__(config.dim, [Hop(0)], heads=config.heads, head_dim=config.head_dim, bias=kernel)
        del self.to_key

    def forward(self, hops: Hops) -> Float[Tensor, "nodes kernels dim"]:
        assert self.bias is not None
        x, heads = [hops[0]], (self.heads, self.head_dim)
        query, value = self.to_query(x).unflatten(2, heads), self.to_value(x).unflatten(2, heads)
        z = attend(query, query, value, hops.graph, bias=self.bias(hops.graph), backend=self.backend)
        return self.to_out.each(z.flatten(2)) * hops.graph.degree_root.to(z.dtype)[:, None, None]


def graphit(config: GraphitConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by themselves, and weighs what it finds by a kernel on the graph."""

    def layer() -> Layer:
        return Layer(
            TiedAttention(config),
            mixer=Mean(config.dim, 1),
            residual=Skip(),
            ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=(BatchNorm(config.dim), BatchNorm(config.dim)),
            dropout=config.dropout,
        )

    return GraphModel(
        NodeEncoder(features.nodes, config.dim, laplacian=config.laplacian),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        head(config.dim, outputs, config.dropout),
        features,
    )
