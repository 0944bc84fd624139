"""Wide and deep: a linear model over WL subtree counts, and a network that learns what it leaves."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.nn.graph_model import GraphModel, SklearnModel
from mnagt.nn.readouts import Prepared, Readout
from mnagt.nn.shapes import NodeVectors
from mnagt.nn.wl_counts import Normalisation, WLCounts

FOLDS = 5
"""Parts of the training graphs; the weights that a part sees in training were fitted to the other parts."""


class CrossFittedCounts(WLCounts):
    """``WLCounts`` that in training gives a graph the weights of a model that has not seen it.

    A linear model over thousands of subtrees knows its training graphs nearly by heart. A network beside it would find
    nothing left to learn there. So in training the outputs for a graph come from weights fitted to the other folds.
    The fold of a graph is a hash of its WL colours: graphs that are the same are in the same fold.
    """

    fold_weight: Float[Tensor, "colours folds outputs"]
    """The weights that a fold sees in training. Neither these nor ``fold_bias`` are saved with a model."""
    fold_bias: Float[Tensor, "folds outputs"]

    def __init__(self, outputs: int, iterations: int, initial: int, normalisation: Normalisation) -> None:
        super().__init__(outputs, iterations, initial, normalisation)
        del self.weight, self.bias  # no parameters: the network's optimiser leaves them alone
        self.register_buffer("weight", torch.zeros(0, outputs))
        self.register_buffer("bias", torch.zeros(outputs))
        self.register_buffer("fold_weight", torch.zeros(0, FOLDS, outputs), persistent=False)
        self.register_buffer("fold_bias", torch.zeros(FOLDS, outputs), persistent=False)

    def node_features(self, graph: GraphBatch) -> NodeVectors:
        features = super().node_features(graph)
        if not self._is_cross_fitted:
            return features
        bias = (self.fold_bias[self.folds(graph)] - self.bias) / graph.node_ptr.diff().clamp(min=1)[:, None]
        return features + bias[graph.graph_of_node.long()]  # adds up to the fold's bias

    def weights_of(self, row: Int[Tensor, "some"], graph: GraphBatch) -> Float[Tensor, "some outputs"]:
        if not self._is_cross_fitted:
            return super().weights_of(row, graph)
        fold = self.folds(graph)[graph.graph_of_node.long()]
        return self.fold_weight[row, fold[:, None].expand(-1, self.colours).flatten()]

    @property
    def _is_cross_fitted(self) -> bool:
        return self.training and len(self.fold_weight) > 0

    def folds(self, graph: GraphBatch) -> Int[Tensor, "graphs"]:
        """The fold of each graph."""
        return fold_of_graphs(self.node_colours(graph), graph.graph_of_node, graph.num_graphs)


def fold_of_graphs(
    colours: Int[Tensor, "nodes columns"], graph: Int[Tensor, "nodes"], num_graphs: int
) -> Int[Tensor, "graphs"]:
    """A number below ``FOLDS`` for each graph, from the WL colours of its nodes."""
    total = torch.zeros(num_graphs, dtype=torch.long, device=colours.device)
    return total.index_add(0, graph.long(), colours[:, -1].long()) * 0x9E3779B1 // 2**16 % FOLDS


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
    """``wide + deep_weight * head(deep)``; the weight is chosen by validation once the network is trained."""

    deep_weight: Float[Tensor, ""]

    def __init__(self, head: nn.Module, outputs: int) -> None:
        super().__init__()
        self.head, self.outputs = head, outputs
        self.register_buffer("deep_weight", torch.ones(()))

    def forward(self, vector: Float[Tensor, "graphs both"]) -> Float[Tensor, "graphs outputs"]:
        deep, wide = vector[:, : -self.outputs], vector[:, -self.outputs :]
        return wide + self.deep_weight * self.head(deep)


class WideAndDeep(SklearnModel):
    """A network with a linear model over WL subtree counts beside it."""

    sized = ("readout.wide.key", "readout.wide.weight")

    def __init__(self, deep: GraphModel, wide: CrossFittedCounts) -> None:
        readout, head = Beside(deep.readout, wide), WideAndDeepHead(deep.head, wide.dim)
        super().__init__(deep.encoder, list(deep.layers), readout, head, deep.features)
