"""GROVER's GTransformer: attention over what message passing of a random length makes of the nodes.

Rong et al.: Self-Supervised Graph Transformer on Large-Scale Molecular Data, 2020. Three networks (dyMPN) make queries,
keys and values; their hops share weights, so that their number can be drawn at random in training. Differs from the
original in one tower, over nodes (theirs has a second over edges); in heads that share the three networks; in LayerNorm
after each hop, which keeps sums over many neighbours in bounds; in several blocks; and in no pre-training.
"""

from dataclasses import dataclass

import torch
from torch import nn

from mnagt.attention.kernels import SeparateGnns
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.linear import Linear
from mnagt.models.builders import make_attention, make_layer, make_model
from mnagt.models.config import Repeats, TransformerLayerConfig
from mnagt.nn.encoders import EdgeEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.norms import LayerNorm
from mnagt.nn.shapes import NodeVectors
from mnagt.settings import NonNegativeInt


@dataclass(frozen=True)
class GroverConfig(TransformerLayerConfig):
    depth: Repeats = 3
    """GTransformer blocks."""
    hops: Repeats = 3
    """Hops of message passing before queries, keys and values."""
    spread: NonNegativeInt = 1
    """In training each network takes up to so many hops fewer or more, at random; below hops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spread >= self.hops:
            raise InputError(f"spread must be below hops {self.hops}, got {self.spread}")


class DyMpn(nn.Module):
    r"""Message passing whose hops share their weights.

    .. math:: h_v^{t+1} = \mathrm{LN}\big(\mathrm{ReLU}(h_v^0 + W \sum_{u \to v} h_u^t)\big), \qquad
              h_v^0 = W_0 x_v + \sum_{e: u \to v} e
    """

    def __init__(self, dim: int, edges: Columns, *, hops: int, spread: int) -> None:
        super().__init__()
        self.hops, self.spread = hops, spread
        self.first, self.each = Linear(dim, dim), Linear(dim, dim, bias=False)
        self.norm = LayerNorm(dim)
        self.edges = EdgeEncoder(edges, dim) if edges else None

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        start = self.first(x)
        if self.edges is not None:
            start = start + graph.edges_into @ self.edges(graph)
        spread = self.spread if self.training else 0
        outputs = [start]
        while len(outputs) <= self.hops + spread:
            outputs.append(self.norm((start + self.each(graph.neighbours @ outputs[-1])).relu()))
        if not spread:
            return outputs[-1]
        # drawn where the nodes lie, and all hops taken: a recorded step draws anew each time
        last = torch.stack(outputs[self.hops - spread :])
        return last.index_select(0, torch.randint(len(last), (1,), device=x.device))[0]


def grover(config: GroverConfig, features: Features, outputs: int) -> GraphModel:
    """GTransformer blocks: message passing of random length makes queries, keys and values."""

    def kernel() -> SeparateGnns:
        return SeparateGnns(
            *(DyMpn(config.dim, features.edges, hops=config.hops, spread=config.spread) for _ in range(3))
        )

    layers = (make_layer(config, make_attention(config, [kernel()])) for _ in range(config.depth))
    return make_model(config, features, outputs, layers, head_dropout=config.dropout)
