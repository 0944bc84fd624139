"""``NodeModel``: a model that predicts for each node of a graph."""

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.graphs.batch import GraphBatch
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import Mean
from mnagt.nn.shapes import GraphVectors, NodeVectors


class NodeModel(GraphModel):
    """``head(layers(encoder(graph)))`` of each node; a row for each graph has the outputs of its nodes end to end.

    Rows are as wide as those of the largest graph of the batch, and end in NaN. ``embed`` gives the mean of the nodes'
    vectors.

    >>> from mnagt import build_model, load_dataset
    >>> dataset = load_dataset("MUTAG")
    >>> model = build_model("gin", {"dim": 8}, dataset.features, 2, level="node")
    >>> dataset.sizes[:2].tolist(), model(dataset.batch(torch.tensor([0, 1]))).shape
    ([17, 13], torch.Size([2, 34]))
    """

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs cells"]:
        return self.predict_and_embed(graph)[0]

    def predict_and_embed(self, graph: GraphBatch) -> tuple[Float[Tensor, "graphs cells"], GraphVectors]:
        x, graph = self.encode(graph)
        for layer in self.layers:
            x = layer(x, graph)
        return self.predict_from(x, graph), self.readout(x, graph)

    def predict_from(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs cells"]:
        return pad_rows(self.head(x), graph)


def pad_rows(values: Float[Tensor, "nodes columns"], graph: GraphBatch) -> Float[Tensor, "graphs cells"]:
    """The rows of a graph's nodes end to end, and NaN after the last.

    >>> graph = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [1, 2])
    >>> pad_rows(torch.tensor([[1.0], [2.0], [3.0]]), graph)
    tensor([[1., nan],
            [2., 3.]])
    """
    width = int(graph.sizes.max()) if graph.num_graphs else 0
    owner = graph.graph_of_node.long()
    position = torch.arange(len(values), device=values.device) - graph.node_ptr.long()[owner]
    padded = values.new_full((graph.num_graphs * width, values.shape[1]), torch.nan)
    return padded.index_copy(0, owner * width + position, values).view(graph.num_graphs, width * values.shape[1])


def is_network(model: GraphModel) -> bool:
    """Whether the model has layers that give a vector for each node, and nothing beside them."""
    return type(model) is GraphModel and not isinstance(model.encoder, NoEncoder) and len(model.layers) > 0


def make_node_model(model: GraphModel, dim: int, outputs: int, dropout: float = 0.0) -> NodeModel:
    """The encoder and the layers of ``model`` with a head for nodes; its readouts are left out.

    ``dim`` is the width of its nodes, ``dropout`` that of the head.
    """
    head = make_head(default_head(dim, outputs), dim, dim, outputs, dropout)
    return NodeModel(model.encoder, list(model.layers), Mean(dim), head, model.features)
