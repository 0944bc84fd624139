"""Every model in the library: encode nodes, pass them through layers, read out the graph, answer."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.dropout import Dropout
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.linear import Linear
from mnagt.models.encoders import NodeEncoder
from mnagt.models.forest import ROUNDS, Forest
from mnagt.models.layer import Layer
from mnagt.models.norms import BatchNorm
from mnagt.models.readouts import Readout
from mnagt.models.recompute import Recomputed
from mnagt.models.subtrees import Subtrees


class GraphModel(nn.Module):
    """``head(readout(layers(encoder(graph))))``. A layer is any module from (X, graph) to X.

    With ``subtrees`` what they say stands beside the readout, and both are normalised; with ``normalised`` the readout
    is in any case. With a ``forest``, answers outside of training are its own too. With ``recomputed`` set, training
    keeps only what goes from layer to layer.
    """

    def __init__(
        self,
        encoder: NodeEncoder,
        layers: Sequence[nn.Module],
        readout: Readout,
        head: nn.Sequential,
        features: Features,
        subtrees: Subtrees | None = None,
        forest: Forest | None = None,
        *,
        normalised: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.layers, self.readout, self.head = encoder, nn.ModuleList(layers), readout, head
        self.features, self.subtrees, self.forest = features, subtrees, forest
        counted = 0 if subtrees is None else subtrees.dim
        self.norm = BatchNorm(readout.dim + counted) if counted or normalised else None
        self.recomputed: Recomputed | None = None

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        return self.answer(graph, self.embed(graph))

    def answer(self, graph: GraphBatch, embedded: Float[Tensor, "graphs dim"]) -> Float[Tensor, "graphs outputs"]:
        """From ``embed`` to the outputs."""
        said = self.head(embedded)
        return said if self.forest is None or self.training else self.forest(graph, said)

    def embed(self, graph: GraphBatch) -> Float[Tensor, "graphs dim"]:
        """A vector for each graph: what the head answers from."""
        return self.finish(*self.start(graph), None if self.subtrees is None else self.subtrees(graph))

    def finish(
        self, x: Float[Tensor, "nodes dim"], inner: GraphBatch, counted: Float[Tensor, "graphs counted"] | None
    ) -> Float[Tensor, "graphs all"]:
        """From the nodes as the first layer gets them, and what the subtrees say, to ``embed``."""
        for layer in self.layers:
            x = layer(x, inner) if self.recomputed is None or not self.training else self.recomputed(layer, x, inner)
        out = self.readout(x, inner)
        out = out if counted is None else torch.cat([out, counted], dim=1)
        return out if self.norm is None else self.norm(out, inner.real_graphs)

    def start(self, graph: GraphBatch) -> tuple[Float[Tensor, "nodes dim"], GraphBatch]:
        """The nodes as the first layer gets them; a readout may have added its own."""
        for kind, columns in (("node", self.features.nodes), ("edge", self.features.edges)):
            if missing := graph.columns_missing(kind, columns):
                raise InputError(f"the model reads {missing}; give it graphs like those it was built for")
        return self.readout.prepare(self.encoder(graph), graph)

    def kernel_weights(self, graph: GraphBatch) -> list[Float[Tensor, "nodes kernels"]]:
        """How each node weighs its kernels, layer by layer, where layers do that."""
        x, graph = self.start(graph)
        weights = []
        for layer in self.layers:
            if isinstance(layer, Layer) and (here := layer.kernel_weights(x, graph)) is not None:
                weights.append(here)
            x = layer(x, graph)
        return weights

    def attention_weights(self, graph: GraphBatch) -> list[list[Float[Tensor, "kernels heads nodes nodes"]]]:
        """How nodes share their attention: layer by layer where it is that of eq. 8, then graph by graph."""
        x, graph = self.start(graph)
        weights = []
        for layer in self.layers:
            if isinstance(layer, Layer) and type(layer.attention) is MultiKernelAttention:
                weights.append(layer.attention.weights(layer.hops(x, graph)))
            x = layer(x, graph)
        return weights

    @property
    def encodings(self) -> dict[str, int]:
        """What can be worked out once for a whole data set: name and size of each encoding used."""
        counted = {} if self.subtrees is None else {"subtrees": self.subtrees.rounds}
        asked = {} if self.forest is None else {"fragments": ROUNDS}
        return self.encoder.encodings | counted | asked

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def head(dim: int, outputs: int, dropout: float = 0.0, width_in: int | None = None) -> nn.Sequential:
    """A linear map, ReLU, and the answer.

    Where the answer is wider than that (words, by thousands) it is one linear map, as in the models that were first
    tried on such: a narrow layer before it learns slowly (docs/log.md).
    """
    if outputs > dim:
        return nn.Sequential(Linear(width_in or dim, outputs))
    return nn.Sequential(Linear(width_in or dim, dim), nn.ReLU(), Dropout(dropout), Linear(dim, outputs))
