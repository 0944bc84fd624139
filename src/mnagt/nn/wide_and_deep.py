"""Wide and deep: the weighted sum of a linear model over WL subtree counts and of a network."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.joined_model import JoinedModel
from mnagt.nn.readouts import Prepared, Readout
from mnagt.nn.shapes import NodeVectors
from mnagt.nn.wl_counts import WLCounts


class Beside(Readout):
    """The readout of the network, and the outputs of the linear model in the columns after it."""

    def __init__(self, deep: Readout, wide: WLCounts) -> None:
        super().__init__(deep.dim + wide.dim)
        self.deep, self.wide = deep, wide

    @property
    def encodings(self) -> dict[str, int]:
        return self.deep.encodings | self.wide.encodings

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> Prepared:
        return self.deep.prepare(*self.wide.prepare(x, graph))

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs both"]:
        return torch.cat([self.deep(x, graph), self.wide(x, graph).to(x.dtype)], dim=1)


class WideAndDeepHead(nn.Module):
    """``weights[0] * wide + weights[1] * head(deep)``; validation chooses the weights (``training/fit_wide.py``)."""

    weights: Float[Tensor, "2"]

    def __init__(self, head: nn.Module, outputs: int) -> None:
        super().__init__()
        self.head, self.outputs = head, outputs
        self.register_buffer("weights", torch.ones(2))

    def forward(self, vector: Float[Tensor, "graphs both"]) -> Float[Tensor, "graphs outputs"]:
        deep, wide = vector[:, : -self.outputs], vector[:, -self.outputs :]
        return self.weights[0] * wide + self.weights[1] * self.head(deep)


class WideAndDeep(JoinedModel):
    """A linear model over WL subtree counts and a network. Each is fitted by itself, the network as ``network``."""

    def __init__(self, deep: GraphModel, wide: WLCounts) -> None:
        readout, head = Beside(deep.readout, wide), WideAndDeepHead(deep.head, wide.dim)
        super().__init__(deep.encoder, list(deep.layers), readout, head, deep.features)

    @property
    def members(self) -> tuple[str, ...]:
        return "wide", "network"

    @property
    def network(self) -> GraphModel:
        assert isinstance(self.readout, Beside)
        assert isinstance(self.head, WideAndDeepHead)
        return GraphModel(self.encoder, list(self.layers), self.readout.deep, self.head.head, self.features)
