"""A module of one's own, of PyTorch or PyTorch Geometric, as a model that can be trained."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.readouts import Readout
from mnagt.nn.shapes import NodeVectors

ARGUMENTS = ("x", "edge_index", "batch", "edge_attr", "batch_size")
"""What the ``forward`` of a module of PyTorch Geometric may ask for, by name."""


class ModuleModel(GraphModel):
    """``module`` as a model: from a batch of graphs to [graphs, outputs].

    A ``forward`` with a parameter ``edge_index`` is called as PyTorch Geometric's are, with those of ``ARGUMENTS`` that
    it names. One with a parameter ``data`` gets a ``Batch`` of theirs, and any other a ``GraphBatch``.

    >>> from torch_geometric.nn import GCNConv, global_mean_pool
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv = GCNConv(7, 2)
    ...     def forward(self, x, edge_index, batch):
    ...         return global_mean_pool(self.conv(x, edge_index), batch)
    >>> from mnagt import load_dataset
    >>> dataset = load_dataset("MUTAG")
    >>> ModuleModel(Net(), dataset.features, 2)(dataset.batch(torch.tensor([3, 5]))).shape
    torch.Size([2, 2])
    """

    def __init__(self, module: nn.Module, features: Features, outputs: int) -> None:
        super().__init__(NoEncoder(), [], Readout(0), nn.Identity(), features)
        self.module, self.outputs = module, outputs
        self.node_columns, self.edge_columns = DenseColumns(features.nodes), DenseColumns(features.edges)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise InputError(f"{type(module).__name__} has no parameters to learn; give a module that has")
        parameters = inspect.signature(module.forward).parameters
        self.arguments = [name for name in ARGUMENTS if name in parameters] if "edge_index" in parameters else []
        self.takes_data = "data" in parameters and not self.arguments
        for name, parameter in parameters.items() if self.arguments else ():
            if parameter.default is parameter.empty and name not in ARGUMENTS and parameter.kind.name.startswith("POS"):
                raise InputError(
                    f"{type(module).__name__}.forward asks for {name!r}; it can ask for {', '.join(ARGUMENTS)}, or "
                    "for a GraphBatch alone"
                )

    def fit_columns(self, names: Mapping[str, Sequence[str]], categories: Mapping[str, Sequence[str]]) -> None:
        """Give ``x`` and ``edge_attr`` the columns that PyTorch Geometric's graphs had, if the data came from there."""
        self.node_columns.fit("x", "node", names, categories)
        self.edge_columns.fit("edge_attr", "edge", names, categories)

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        for kind, columns in (("node", self.features.nodes), ("edge", self.features.edges)):
            graph.check_categories(kind, columns)
        output = self._call(graph)
        shape = getattr(output, "shape", None)
        if shape != (graph.num_graphs, self.outputs):
            description = type(output).__name__ if shape is None else f"shape {tuple(shape)}"
            raise InputError(
                f"{type(self.module).__name__} returns {description} for {graph.num_graphs} graphs; the task needs "
                f"[graphs, {self.outputs}]"
            )
        return output

    def encode(self, graph: GraphBatch) -> tuple[NodeVectors, GraphBatch]:
        raise InputError(
            f"{type(self.module).__name__} is a module of your own, whose layers are not known: it has no embeddings, "
            "explanations of kernels or activation_checkpointing"
        )

    def _call(self, graph: GraphBatch) -> Any:
        if not self.arguments and not self.takes_data:
            return self.module(graph)
        x = self.node_columns(graph.node_labels, graph.node_values)
        arguments = {
            "x": graph.in_degree.new_ones(graph.num_nodes, 1, dtype=torch.float) if x is None else x,
            "edge_index": graph.edge_index,
            "batch": graph.graph_of_node,
            "edge_attr": self.edge_columns(graph.edge_labels, graph.edge_values),
            "batch_size": graph.num_graphs,
        }
        if self.arguments:
            return self.module(**{name: arguments[name] for name in self.arguments})
        from torch_geometric.data import Batch

        tensors = {name: arguments[name] for name in ("x", "edge_index", "batch", "edge_attr")}
        return self.module(Batch(**tensors, ptr=graph.node_ptr, y=graph.targets))


class DenseColumns(nn.Module):
    """Columns of nodes or edges as one matrix: numbers first, then a one-hot vector for each column of categories.

    That is the form of ``TUDataset``. ``fit`` takes the order of the graphs that the columns were read from; integers
    stay integers.

    >>> DenseColumns(Columns((2, 3), 1))(torch.tensor([[1, 2]]), torch.tensor([[0.5]]))
    tensor([[0.5000, 0.0000, 1.0000, 0.0000, 0.0000, 1.0000]])
    """

    position: Int[Tensor, "values_and_categories"]
    """The column of each number, then that of each category."""
    width: Int[Tensor, ""]
    """The columns of the matrix; 0 if it holds the categories as integers."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns = columns
        total = columns.values + sum(columns.labels)
        self.register_buffer("position", torch.arange(total))
        self.register_buffer("width", torch.tensor(total))

    def fit(
        self, field: str, kind: str, names: Mapping[str, Sequence[str]], categories: Mapping[str, Sequence[str]]
    ) -> None:
        """Take the positions from names such as x/3, a column, and x/0:3, a one-hot vector."""
        values, labels = names.get(f"{kind}_values", ()), names.get(f"{kind}_labels", ())
        if not (values or labels) or not all(name.startswith(f"{field}/") for name in (*values, *labels)):
            return
        if labels and not values and not any(":" in name for name in labels):
            self.width.zero_()
            return
        if not all(":" in name for name in labels):
            return
        one_hot = [name for column in range(len(labels)) for name in categories[f"{kind}_labels/{column}"]]
        position = [int(name.partition("/")[2]) for name in (*values, *one_hot)]
        ends = [int(name.partition(":")[2]) for name in labels]
        self.position.copy_(torch.tensor(position, dtype=torch.long))
        self.width.fill_(max([*ends, *(at + 1 for at in position), 0]))

    def forward(
        self, labels: Int[Tensor, "rows _"] | None, values: Float[Tensor, "rows _"] | None
    ) -> Num[Tensor, "rows width"] | None:
        if not self.columns:
            return None
        width, columns = int(self.width), labels if values is None else values
        assert columns is not None
        if width == 0 and labels is not None:
            return labels.long()
        dense = torch.zeros(len(columns), width, device=columns.device)
        if values is not None:
            dense[:, self.position[: values.shape[1]]] = values
        first = self.columns.values
        for column, count in enumerate(self.columns.labels):
            assert labels is not None
            label = labels[:, column].long()
            position = self.position[first : first + count][label.clamp(min=0)]
            dense.scatter_(1, position[:, None], (label >= 0).float()[:, None])
            first += count
        return dense
