"""Modules of others as modules from (x, graph) to x: PyTorch's, and the convolutions of PyTorch Geometric."""

import inspect
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch

Nodes = Float[Tensor, "nodes dim"]

GRAPH_ARGUMENTS: dict[str, Callable[[GraphBatch], Any]] = {
    "batch": lambda graph: graph.graph_of_node,
    "batch_size": lambda graph: graph.num_graphs,
}
"""Arguments of modules that tell of graphs, in the names of PyTorch Geometric, and what they are given."""


class GraphModule(nn.Module):
    """``module`` as a module from (x, graph) to x. It is called by the names of the arguments of its ``forward``.

    With ``edge_index`` as PyTorch Geometric's convolutions: ``module(x, edge_index)``, and ``edge_attr`` and ``batch``
    by name if it has them. With ``batch`` alone as its norms: ``module(x, batch=batch)``. Others: ``module(x)``. One
    that takes ``batch_size`` is given the number of graphs, and need not wait for the GPU to learn it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        arguments = _arguments(module)
        self.takes = tuple(name for name in ("edge_index", "edge_attr") if name in arguments)
        self.of_graphs = list_graph_arguments(module)
        self.needs_edge_attr = "edge_attr" in arguments and _needs_edge_attr(module)

    def forward(self, x: Nodes, graph: GraphBatch) -> Float[Tensor, "nodes _"]:
        named: dict[str, Any] = {name: GRAPH_ARGUMENTS[name](graph) for name in self.of_graphs}
        if "edge_index" not in self.takes:
            return self.module(x, **named)
        if "edge_attr" in self.takes:
            edge_attr = graph.edge_labels if graph.edge_values is None else graph.edge_values
            if edge_attr is None and self.needs_edge_attr:
                raise InputError(f"{type(self.module).__name__} reads edge_attr: give it to the layer or model")
            named["edge_attr"] = edge_attr
        return self.module(x, graph.edge_index, **named)


def as_graph_module(module: nn.Module) -> nn.Module:
    """``module``, wrapped in a :class:`GraphModule` unless it is one from (x, graph) to x already.

    >>> as_graph_module(nn.Linear(3, 3))
    GraphModule(
      (module): Linear(in_features=3, out_features=3, bias=True)
    )
    """
    arguments = _arguments(module)
    is_positional = [a for a in arguments.values() if a.default is a.empty and a.kind is a.POSITIONAL_OR_KEYWORD]
    takes_graph = "graph" in arguments or (len(is_positional) == 2 and not arguments.keys() & {"edge_index", "batch"})
    return module if takes_graph else GraphModule(module)


def list_graph_arguments(module: nn.Module) -> tuple[str, ...]:
    """Which of ``GRAPH_ARGUMENTS`` the module takes, as PyTorch Geometric's norms do."""
    return tuple(name for name in GRAPH_ARGUMENTS if name in _arguments(module))


def _needs_edge_attr(module: nn.Module) -> bool:
    """Whether it has no use for None: by its ``forward``, or by the ``message`` of a convolution such as GINEConv."""
    message = getattr(module, "message", None)
    arguments = inspect.signature(message).parameters if callable(message) else {}
    is_required = "edge_attr" in arguments and arguments["edge_attr"].annotation in (Tensor, "Tensor")
    return is_required or _arguments(module)["edge_attr"].default is inspect.Parameter.empty


def _arguments(module: nn.Module) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(module.forward).parameters)
