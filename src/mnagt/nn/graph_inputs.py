"""From PyTorch Geometric's tensors (x, edge_index, batch, edge_attr) to the batch that layers work on, made once."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.edges import check_edge_index, describe_tensor
from mnagt.graphs.traced_batch import TracedBatch, scatter_add

EdgeIndex = Int[Tensor, "2 edges"]
BatchVector = Int[Tensor, "rows_of_batch"]
EdgeAttr = Shaped[Tensor, "rows_of_edges *columns"]


Function = TypeVar("Function", bound=Callable[..., Any])


def run_eagerly(function: Function) -> Function:
    """Decorate a function that ``torch.compile`` is to leave as it is: a graph break, once for each call.

    The sizes of graphs decide which products are computed, so that what is compiled for one batch fits no other.
    """
    as_it_is = torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage]

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return (as_it_is if torch.compiler.is_dynamo_compiling() else function)(*args, **named)

    return call  # type: ignore[return-value]


def check_node_vectors(x: Any, channels: int) -> None:
    """Raise ``InputError`` unless ``x`` is [nodes, channels], of floats."""
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != channels or not x.is_floating_point():
        raise InputError(f"x must be [nodes, {channels}] of floats, got {describe_tensor(x)}")


class _Made(NamedTuple):
    """A batch, and what it was made from."""

    version: int
    vector: TensorWeakRef | None
    vector_version: int
    num_nodes: int
    graph: GraphBatch


_cache: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()
"""The last batch made from each tensor ``edge_index`` (or ``batch``, where there are no edges); freed with it."""


def as_graph_batch(
    num_nodes: int,
    edge_index: EdgeIndex | GraphBatch | None,
    batch: BatchVector | None = None,
    edge_attr: EdgeAttr | None = None,
) -> GraphBatch:
    """The batch of these graphs. All layers that are given the same tensors share it, and what is computed from it.

    It is kept as long as ``edge_index`` lives, and made again if ``edge_index`` or ``batch`` was changed in place.
    Tensors made in ``torch.inference_mode`` do not tell that: theirs are made for each call.

    Args:
        num_nodes: rows of x.
        edge_index: edges in any order, or a ``GraphBatch`` in place of edges and ``batch``.
        batch: the graph of each node, in ascending order; None for one graph.
        edge_attr: one row an edge.
    """
    if isinstance(edge_index, GraphBatch):
        if batch is not None:
            raise InputError("a GraphBatch takes the place of edge_index and batch; leave batch out")
        graph = edge_index
        if graph.num_nodes != num_nodes:
            raise InputError(f"x has {num_nodes} rows, and the GraphBatch {graph.num_nodes} nodes; give one row a node")
    else:
        check_edge_index(edge_index, batch)
        if batch is not None and batch.shape[0] != num_nodes:
            raise InputError(f"x has {num_nodes} rows, and batch {len(batch)}; each needs one a node")
        graph = _find_or_make(num_nodes, edge_index, batch)
    return graph if edge_attr is None else graph.with_edge_attr(edge_attr)


def _find_or_make(num_nodes: int, edge_index: EdgeIndex | None, batch: BatchVector | None) -> GraphBatch:
    if torch.compiler.is_compiling():
        return _trace(num_nodes, edge_index, batch)
    key = batch if edge_index is None else edge_index
    if key is None or key.is_inference() or (batch is not None and batch.is_inference()):
        return _make(num_nodes, edge_index, batch)
    made, vector_version = _cache.get(key), 0 if batch is None else batch._version
    if (
        made is not None
        and (made.version, made.vector_version, made.num_nodes) == (key._version, vector_version, num_nodes)
        and (None if made.vector is None else made.vector()) is batch
    ):
        return made.graph
    graph = _make(num_nodes, edge_index, batch)
    keep_graph_batch(graph, key, batch)
    return graph


def keep_graph_batch(graph: GraphBatch, key: Tensor, batch: BatchVector | None) -> None:
    """From now on :func:`as_graph_batch` gives ``graph`` for this ``edge_index``, or ``batch`` where there is none."""
    vector, vector_version = (None, 0) if batch is None else (TensorWeakRef(batch), batch._version)
    _cache[key] = _Made(key._version, vector, vector_version, graph.num_nodes, graph)


def _make(num_nodes: int, edge_index: EdgeIndex | None, batch: BatchVector | None) -> GraphBatch:
    with torch.no_grad():
        if edge_index is None:
            edge_index = torch.zeros(2, 0, dtype=torch.long, device=None if batch is None else batch.device)
        if batch is None:
            return GraphBatch.from_edges(edge_index, [num_nodes])
        return GraphBatch.from_edges(edge_index, batch=batch.to(edge_index.device))


def _trace(num_nodes: int, edge_index: EdgeIndex | None, batch: BatchVector | None) -> GraphBatch:
    """The batch of an exported program. ``batch`` cannot be checked there."""
    if edge_index is None:
        edge_index = torch.zeros(2, 0, dtype=torch.long)
    if batch is None:
        return TracedBatch.trace(edge_index, torch.zeros(num_nodes, dtype=torch.long), torch.full((1,), num_nodes))
    graphs = (batch.max() + 1).item()
    torch._check(graphs >= 1)
    sizes = scatter_add(torch.zeros(graphs, dtype=torch.long), batch, torch.ones_like(batch))  # type: ignore
    return TracedBatch.trace(edge_index, batch, sizes)
