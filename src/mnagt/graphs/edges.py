"""Edges in any order, checked and sorted by destination, with one transfer from a GPU for all checks."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.errors import InputError

MAX_EDGES = 2**31 - 1
"""Edges are counted in int32."""

_log = logging.getLogger(__name__)


class SortedEdges(NamedTuple):
    """The structure of a batch."""

    sizes: Int[Tensor, "graphs"]
    """On the CPU."""
    source: Int[Tensor, "edges"]
    destination: Int[Tensor, "edges"]
    order: Int[Tensor, "edges"]
    """Where each edge stood before."""
    is_symmetric: bool
    label_counts: dict[str, tuple[int, ...]]
    """Categories of each column of labels: the largest one there is, plus one."""


def sort_edges(
    edge_index: Int[Tensor, "2 edges"],
    sizes: Int[Tensor, "graphs"] | None,
    batch: Int[Tensor, "nodes"] | None,
    num_graphs: int | None,
    labels: Mapping[str, Int[Tensor, "_ _"] | None],
) -> SortedEdges:
    """The edges by destination, then source. Raises ``InputError`` where nodes, graphs or labels cannot be right.

    Graphs are given by ``sizes``, or by ``batch`` and, where the last of them have no nodes, ``num_graphs``.
    """
    check_edge_index(edge_index, batch)
    if edge_index.shape[1] > MAX_EDGES:
        raise InputError(f"{edge_index.shape[1]} edges in one batch; at most {MAX_EDGES} can be counted")
    if batch is not None:
        graph_of_node = batch.long()
    else:
        assert sizes is not None
        graph_of_node = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(edge_index.device)
    nodes, (source, destination) = len(graph_of_node), edge_index.long()
    order, checks = source, []
    if source.numel() and nodes:
        inside = edge_index.long().clamp(0, nodes - 1)  # _check_edges refuses what is outside
        is_across = graph_of_node[inside[0]] != graph_of_node[inside[1]]
        key = destination * nodes + source
        by_destination, order = key.sort(stable=True)
        is_symmetric = (by_destination == (source * nodes + destination).sort().values).all()
        checks = [*edge_index.aminmax(), is_across.any(), is_across.long().argmax(), is_symmetric]
    columns = {kind: column for kind, column in labels.items() if column is not None and column.numel()}
    bounds = [bound for column in columns.values() for bound in (column.amin()[None], column.amax(dim=0))]
    parts = [each.long().reshape(-1) for each in (*checks, *bounds)]
    if batch is not None:
        parts.append(graph_of_node)
    values = torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.long)  # the one transfer
    checks, values = values[: len(checks)].tolist(), values[len(checks) :]
    label_counts = {}
    for kind, column in columns.items():
        label_counts[kind] = _count_labels(kind, values[: 1 + column.shape[1]].tolist())
        values = values[1 + column.shape[1] :]
    if batch is not None:
        sizes = count_nodes(values, num_graphs)
    _check_edges(checks, nodes, edge_index.shape[1])
    assert sizes is not None
    is_symmetric = bool(checks[4]) if checks else True
    return SortedEdges(sizes, source[order], destination[order], order, is_symmetric, label_counts)


def check_edge_index(edge_index: Any, batch: Any = None) -> None:
    """Raise ``InputError`` unless ``edge_index`` is [2, edges] and ``batch`` [nodes], of whole numbers, or None."""
    for name, value, shape in (("edge_index", edge_index, "[2, edges]"), ("batch", batch, "[nodes]")):
        if value is None:
            continue
        is_dense = isinstance(value, Tensor) and value.layout == torch.strided
        has_shape = is_dense and (value.dim() == 1 if name == "batch" else value.dim() == 2 and len(value) == 2)
        if not has_shape or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            is_sparse = name == "edge_index" and not is_dense
            remedy = "; for adj_t give to_edge_index(adj_t.t())[0] of torch_geometric.utils" if is_sparse else ""
            raise InputError(f"{name} must be {shape} of whole numbers, got {describe_tensor(value)}{remedy}")


def describe_tensor(value: Any) -> str:
    """Shape and type, as messages name them.

    >>> describe_tensor(torch.ones(3, 2))
    '[3, 2] of float32'
    """
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    layout = "" if value.layout == torch.strided else " in a sparse matrix"
    return f"{list(value.shape)} of {str(value.dtype).removeprefix('torch.')}{layout}"


def find_simple_edges(edge_index: Int[Tensor, "2 edges"], name: str = "these graphs") -> Int[Tensor, "kept"] | None:
    """The edges that are left without self loops, and with the first of parallel edges only; None if all are.

    The adjacency matrix of the paper is 0/1, and its normalisation adds the self loops. ``name`` is for the notice.

    >>> find_simple_edges(torch.tensor([[0, 0, 1, 0], [1, 1, 1, 2]]))
    tensor([0, 3])
    """
    source, destination = edge_index.long()
    if not len(source):
        return None
    is_loop, key = source == destination, source * (destination.max() + 1) + destination
    if (key.diff() > 0).all() and not is_loop.any():  # sorted, as PyTorch Geometric's edges mostly are
        return None
    key, order = key.sort(stable=True)
    is_repeated = torch.zeros_like(is_loop)
    is_repeated[order[1:]] = key.diff() == 0
    is_kept = ~(is_loop | is_repeated)
    if is_kept.all():
        return None
    log_dropped_edges(name, int(is_loop.sum()), int((is_repeated & ~is_loop).sum()))
    return is_kept.nonzero()[:, 0]


def log_dropped_edges(name: str, loops: int, repeated: int) -> None:
    """The notice of readers that leave edges out."""
    if loops:
        _log.info("%s: %d self loops were dropped", name, loops)
    if repeated:
        _log.warning("%s: %d repeated edges were dropped; the first of them counts", name, repeated)


def count_nodes(batch: Int[Tensor, "nodes"], num_graphs: int | None = None) -> Int[Tensor, "graphs"]:
    """Nodes of each graph. ``batch``, on the CPU, holds the graph of each node, in ascending order.

    >>> count_nodes(torch.tensor([0, 0, 2]))
    tensor([2, 0, 1])
    """
    if len(batch) and int(batch[0]) < 0:
        raise InputError(f"batch: node 0 is in graph {int(batch[0])}; graphs count from 0")
    falls = (batch.diff() < 0).nonzero()
    if len(falls):
        node = int(falls[0]) + 1
        raise InputError(
            f"batch is not sorted: node {node} is in graph {int(batch[node])} and the node before it in graph "
            f"{int(batch[node - 1])}; put the nodes of a graph side by side, e.g. order = batch.argsort(stable=True), "
            "then x[order], batch[order] and order.argsort()[edge_index]"
        )
    last = int(batch[-1]) if len(batch) else -1
    if num_graphs is not None and last >= num_graphs:
        raise InputError(f"batch names graph {last}; there are {num_graphs}, counted from 0")
    return torch.bincount(batch, minlength=num_graphs or 0)


def _count_labels(kind: str, bounds: Sequence[int]) -> tuple[int, ...]:
    lowest, *highest = bounds
    if lowest < -1:
        raise InputError(f"{kind} holds {lowest}; categories count from 0, and -1 is none")
    return tuple(top + 1 for top in highest)


def _check_edges(checks: Sequence[int], nodes: int, edges: int) -> None:
    if edges and not nodes:
        raise InputError(f"edge_index has {edges} edges, and there are no nodes")
    if not checks:
        return
    lowest, highest, is_across, across, _ = checks
    if lowest < 0 or highest >= nodes:
        wrong = lowest if lowest < 0 else highest
        raise InputError(f"edge_index names node {wrong}; nodes are 0 to {nodes - 1}")
    if is_across:
        raise InputError(f"edge {across} joins two graphs; check that sizes add up, or the batch vector")
