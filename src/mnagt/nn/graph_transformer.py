"""A whole network of multi-neighbourhood layers on PyTorch Geometric's tensors."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.linear import Linear
from mnagt.nn.conv import MNAGTConv
from mnagt.nn.graph_inputs import BatchVector, EdgeAttr, EdgeIndex, as_graph_batch, run_eagerly
from mnagt.nn.graph_model import make_head
from mnagt.nn.readouts import READOUTS, Readout
from mnagt.registry import lookup


class GraphTransformer(nn.Module):
    """``head(readout(layers(encoder(x))))``: from nodes to one row of outputs a graph, or a node without readout.

    Args:
        in_channels: columns of x.
        hidden_channels: width of node vectors.
        num_layers: how many layers.
        out_channels: columns of the output.
        layer: makes the layer of a number, from 0: a module called as :class:`MNAGTConv` is, or one from (x, graph) to
            x. If not given: ``MNAGTConv(hidden_channels, **settings)``.
        encoder: module from x to [nodes, hidden_channels]; a linear map if not given.
        readout: 'sum', 'mean', ... (``READOUTS``), a :class:`Readout`, or None for outputs of nodes.
        dropout: of layers and head.
        settings: those of :class:`MNAGTConv`, such as ``hops``.

    >>> import torch
    >>> model = GraphTransformer(7, 32, num_layers=3, out_channels=2, heads=2, hops=2)
    >>> edge_index, batch = torch.tensor([[0, 1, 3], [1, 0, 4]]), torch.tensor([0, 0, 0, 1, 1])
    >>> model(torch.randn(5, 7), edge_index, batch).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        *,
        layer: Callable[[int], nn.Module] | None = None,
        encoder: nn.Module | None = None,
        readout: str | Readout | None = "mean",
        dropout: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__()
        if layer is None:
            layer = lambda _: MNAGTConv(hidden_channels, dropout=dropout, **settings)  # noqa: E731
        elif settings:
            raise TypeError(f"layer makes the layers; give it these settings: {', '.join(settings)}")
        if isinstance(readout, str):
            readout = lookup(READOUTS, readout, "readout")(hidden_channels)
        self.encoder = Linear(in_channels, hidden_channels) if encoder is None else encoder
        self.layers = nn.ModuleList(layer(i) for i in range(num_layers))
        self.readout = readout
        width = hidden_channels if readout is None else readout.dim
        self.head = make_head("mlp", width, hidden_channels, out_channels, dropout)

    @run_eagerly
    def forward(
        self,
        x: Tensor,
        edge_index: EdgeIndex | GraphBatch,
        batch: BatchVector | None = None,
        edge_attr: EdgeAttr | None = None,
    ) -> Float[Tensor, "rows outputs"]:
        """The outputs of each graph, or of each node without readout. Arguments are those of :class:`MNAGTConv`."""
        graph = as_graph_batch(x.shape[0], edge_index, batch, edge_attr)
        x = self.encoder(x)
        if self.readout is not None:
            x, graph = self.readout.prepare(x, graph)
        for layer in self.layers:
            x = layer(x, graph)
        return self.head(x if self.readout is None else self.readout(x, graph))
