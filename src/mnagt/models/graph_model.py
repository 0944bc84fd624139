"""Every model in the library: encode nodes, pass them through layers, read out the graph, answer."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.models.encoders import NodeEncoder
from mnagt.models.layer import Layer
from mnagt.models.readouts import Readout


class GraphModel(nn.Module):
    """``head(readout(layers(encoder(graph))))``. A layer is any module from (X, graph) to X."""

    def __init__(
        self, encoder: NodeEncoder, layers: Sequence[nn.Module], readout: Readout, head: nn.Module, features: Features
    ) -> None:
        super().__init__()
        self.encoder, self.layers, self.readout, self.head = encoder, nn.ModuleList(layers), readout, head
        self.features = features

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        return self.head(self.embed(graph))

    def embed(self, graph: GraphBatch) -> Float[Tensor, "graphs dim"]:
        """A vector for each graph: what the head answers from."""
        x, graph = self.start(graph)
        for layer in self.layers:
            x = layer(x, graph)
        return self.readout(x, graph)

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

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def head(dim: int, outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """A linear map, ReLU, and the answer."""
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, outputs))
