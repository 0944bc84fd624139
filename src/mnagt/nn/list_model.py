"""Models that predict for each node, or for each edge, of a graph."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns
from mnagt.graphs.sparse import take
from mnagt.nn.encoders import EdgeEncoder, NoEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import Mean
from mnagt.nn.shapes import GraphVectors, NodeVectors
from mnagt.tasks.base import Level


class ListModel(GraphModel):
    """``layers(encoder(graph))``, then a head for each item (node, edge); a row has the outputs of a graph's items.

    Rows are as wide as those of the largest graph of the batch, and end in NaN. ``embed`` gives the mean of the nodes'
    vectors.
    """

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs cells"]:
        return self.predict_and_embed(graph)[0]

    def predict_and_embed(self, graph: GraphBatch) -> tuple[Float[Tensor, "graphs cells"], GraphVectors]:
        x, graph = self.encode(graph)
        for layer in self.layers:
            x = layer(x, graph)
        return self.predict_from(x, graph), self.readout(x, graph)

    @abstractmethod
    def predict_from(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs cells"]: ...


class NodeModel(ListModel):
    """A number, or several, for each node.

    >>> from mnagt import build_model, load_dataset
    >>> dataset = load_dataset("MUTAG")
    >>> model = build_model("gin", {"dim": 8}, dataset.features, 2, level="node")
    >>> dataset.sizes[:2].tolist(), model(dataset.batch(torch.tensor([0, 1]))).shape
    ([17, 13], torch.Size([2, 34]))
    """

    def predict_from(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs cells"]:
        return pad_rows(self.head(x), graph.graph_of_node, graph.num_graphs)


class EdgeModel(ListModel):
    """A number, or several, for each pair of nodes with an edge, both directions as one.

    Edges are in the order of ``graph.edge_numbers``; without, sorted by their later node and then by the other.

    >>> from mnagt import build_model, load_dataset
    >>> dataset = load_dataset("MUTAG")
    >>> model = build_model("gin", {"dim": 8}, dataset.features, 2, level="edge")
    >>> dataset.edge_ptr.diff()[:2].tolist(), model(dataset.batch(torch.tensor([0, 1]))).shape
    ([38, 28], torch.Size([2, 38]))
    """

    def predict_from(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs cells"]:
        if not graph.is_symmetric:
            raise InputError("edges of which some run one way have no targets; give graphs whose edges run both ways")
        is_counted = graph.source < graph.destination
        graph_of_edge = graph.graph_of_node[graph.destination[is_counted]]
        position = None if graph.edge_numbers is None else graph.edge_numbers[is_counted].long()
        return pad_rows(self.head(x, graph)[is_counted], graph_of_edge, graph.num_graphs, position)


class EdgeHead(nn.Module):
    r""":math:`f(x_u + x_v, |x_u - x_v|, e_{uv})` for each edge: the same whichever of its ends comes first.

    ``columns`` are those of edges; without, there is no :math:`e_{uv}`.
    """

    def __init__(self, columns: Columns, dim: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.edges = EdgeEncoder(columns, dim) if columns else None
        width = 2 * dim if self.edges is None else 3 * dim
        self.map = make_head(default_head(dim, outputs), width, dim, outputs, dropout)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "edges outputs"]:
        source, destination = take(graph.edge_sources, x), take(graph.edges_into.transposed, x)
        parts = [source + destination, (source - destination).abs()]
        return self.map(torch.cat(parts if self.edges is None else [*parts, self.edges(graph)], dim=1))


def pad_rows(
    values: Float[Tensor, "items columns"],
    owner: Int[Tensor, "items"],
    graphs: int,
    position: Int[Tensor, "items"] | None = None,
) -> Float[Tensor, "graphs cells"]:
    """The rows of each graph's items end to end, and NaN after the last; a value that is NaN becomes infinite.

    ``owner`` is the graph of each item. ``position``, from 0 in each graph, says where it stands; without, items stand
    as they come, and ``owner`` ascends.

    >>> pad_rows(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 1]), graphs=2)
    tensor([[1., nan],
            [2., 3.]])
    """
    sizes = torch.bincount(owner, minlength=graphs)
    width = int(sizes.max()) if graphs else 0
    if position is None:
        position = torch.arange(len(owner), device=owner.device) - (F.pad(sizes, (1, 0)).cumsum(0))[owner]
    padded = values.new_full((graphs * width, values.shape[1]), torch.nan)
    padded = padded.index_copy(0, owner * width + position, values.where(~values.isnan(), torch.inf))
    return padded.view(graphs, width * values.shape[1])


def is_network(model: GraphModel) -> bool:
    """Whether the model has layers that give a vector for each node, and nothing beside them."""
    return type(model) is GraphModel and not isinstance(model.encoder, NoEncoder) and len(model.layers) > 0


def make_list_model(model: GraphModel, level: Level, dim: int, outputs: int, dropout: float = 0.0) -> ListModel:
    """The encoder and the layers of ``model`` with a head for nodes or for edges (``level``); its readouts go.

    ``dim`` is the width of its nodes, ``dropout`` that of the head.
    """
    parts = model.encoder, list(model.layers), Mean(dim)
    if level == "edge":
        return EdgeModel(*parts, EdgeHead(model.features.edges, dim, outputs, dropout), model.features)
    return NodeModel(*parts, make_head(default_head(dim, outputs), dim, dim, outputs, dropout), model.features)
