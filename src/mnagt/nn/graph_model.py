"""``GraphModel``, which all models are: encoder, layers, readout and head."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.dropout import Dropout
from mnagt.errors import InputError, join_names
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import add_encodings
from mnagt.graphs.features import Features
from mnagt.linear import Linear
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.gated_gcn import GatedStack
from mnagt.nn.layer import Layer
from mnagt.nn.readouts import Readout
from mnagt.nn.shapes import GraphVectors, NodeVectors

HeadKind = Literal["mlp", "linear"]


class GraphModel(nn.Module):
    """``head(readout(layers(encoder(graph))))``, from a batch of graphs to [graphs, outputs].

    Layers are modules from (x, graph) to x. ``features`` are the columns of nodes and edges that the model reads.

    >>> import torch
    >>> from mnagt.nn.convolutions import GIN
    >>> from mnagt.nn.readouts import Sum
    >>> encoder, head = NodeEncoder(Features().nodes, 8), make_head("mlp", 8, 8, 3)
    >>> model = GraphModel(encoder, [GIN(8)], Sum(8), head, Features())
    >>> model(GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [2, 4])).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, encoder: NodeEncoder, layers: Sequence[nn.Module], readout: Readout, head: nn.Module, features: Features
    ) -> None:
        super().__init__()
        self.encoder, self.layers, self.readout, self.head = encoder, nn.ModuleList(layers), readout, head
        self.features = features
        self.layer_encodings = {
            name: size for layer in self.transformer_layers for name, size in layer.attention.encodings.items()
        }
        """The encodings that attention reads."""

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        return self.head(self.embed(graph))

    def embed(self, graph: GraphBatch) -> GraphVectors:
        """The vector of each graph that the head maps to outputs."""
        return self.read_out(*self.encode(graph))

    def encode(self, graph: GraphBatch) -> tuple[NodeVectors, GraphBatch]:
        """The input of the first layer, and the graph that layers and readout see: a readout may add to both."""
        for kind, columns in (("node", self.features.nodes), ("edge", self.features.edges)):
            if missing := graph.describe_missing_columns(kind, columns):
                raise InputError(f"the model reads {missing}; give it graphs like those it was built for")
            graph.check_categories(kind, columns)
        graph = add_encodings(graph, self.layer_encodings)  # before the readout adds nodes
        return self.readout.prepare(self.encoder(graph), graph)

    def read_out(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs readout_dim"]:
        """From what ``encode`` gives to what ``embed`` gives: ``readout(layers(x))``."""
        for layer in self.layers:
            x = layer(x, graph)
        return self.readout(x, graph)

    def predict_from(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        """The outputs for what the last layer gives."""
        return self.head(self.readout(x, graph))

    def predict_and_embed(self, graph: GraphBatch) -> tuple[Float[Tensor, "graphs outputs"], GraphVectors]:
        """As ``forward`` and ``embed``, in one pass."""
        vectors = self.embed(graph)
        return self.head(vectors), vectors

    def kernel_weights(self, graph: GraphBatch) -> list[Float[Tensor, "nodes kernels"]]:
        """How each node weighs its kernels, layer by layer, where layers do that."""
        weights = [layer.kernel_weights(x, graph) for layer, x, graph in self._layers_with_inputs(graph)]
        return [of_layer for of_layer in weights if of_layer is not None]

    def attention_weights(self, graph: GraphBatch) -> list[list[Float[Tensor, "kernels heads nodes nodes"]]]:
        """Attention weights: layer by layer where they are those of eq. 8, then graph by graph."""
        return [
            layer.attention.weights(layer.hops(x, graph))
            for layer, x, graph in self._layers_with_inputs(graph)
            if type(layer.attention) is MultiKernelAttention
        ]

    def _layers_with_inputs(self, graph: GraphBatch) -> Iterator[tuple[Layer, NodeVectors, GraphBatch]]:
        x, graph = self.encode(graph)
        for layer in self.layers:
            steps = list(layer.steps(x, graph)) if isinstance(layer, GatedStack) else [(layer, x, layer(x, graph))]
            yield from ((inner, inputs, graph) for inner, inputs, _ in steps if isinstance(inner, Layer))
            x = steps[-1][2]

    @property
    def transformer_layers(self) -> list[Layer]:
        """The layers with kernels, also those inside of a stack."""
        return [layer for layer in self.layers.modules() if isinstance(layer, Layer)]

    @property
    def encodings(self) -> dict[str, int]:
        """Name and size of each encoding that the model reads and that can be computed once for a data set."""
        return self.encoder.encodings | self.layer_encodings | self.readout.encodings

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def resize_tables(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give tables as many rows as they have in ``weights``; what they hold is not copied.

    Parts of ``module`` name such tables in ``sized``: they have as many rows as the training graphs made them, all
    tables of a part alike.
    """
    for path, part in module.named_modules():
        names = {name: path + "." * bool(path) + name for name in getattr(part, "sized", ())}
        rows = {len(weights[full]) for full in names.values() if full in weights and weights[full].ndim}
        if len(rows) > 1:
            raise InputError(f"its tables have {join_names(map(str, sorted(rows)))} rows; restore it or train again")
        for name in names if rows else ():
            table = getattr(part, name)
            resized = table.data.new_empty(*rows, *table.shape[1:])
            setattr(part, name, nn.Parameter(resized, table.requires_grad) if name in part._parameters else resized)


def make_head(kind: HeadKind, width: int, dim: int, outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """From a graph vector of ``width`` columns to ``outputs``: 'linear', or 'mlp' with a hidden layer of ``dim``.

    ``kind`` is one of these; ``dropout`` is that of the hidden layer.

    >>> make_head("linear", 8, 8, 2)
    Sequential(
      (0): Linear(in_features=8, out_features=2, bias=True)
    )
    """
    if kind == "linear":
        return nn.Sequential(Linear(width, outputs))
    return nn.Sequential(Linear(width, dim), nn.ReLU(), Dropout(dropout), Linear(dim, outputs))


def default_head(dim: int, outputs: int) -> HeadKind:
    """'linear' where there are more outputs (words, by thousands) than hidden columns, else 'mlp'.

    The models first tried on such tasks have one linear map, and a narrow layer before it learns slowly (docs/log.md).
    """
    return "linear" if outputs > dim else "mlp"
