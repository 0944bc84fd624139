"""The fields of PyTorch Geometric's graphs: which are read, and what they must hold."""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.errors import InputError, join_names, quote
from mnagt.graphs.edges import check_edge_index, find_simple_edges
from mnagt.graphs.sparse import ptr_from_counts

COLUMNS = {"x": "nodes", "node_labels": "nodes", "edge_attr": "edges", "edge_labels": "edges", "y": "graphs"}
"""The fields with values, and what has a row of them."""
STRUCTURE = ("edge_index", "adj_t", "num_nodes", "batch", "ptr")

_log = logging.getLogger(__name__)


class PygFields(NamedTuple):
    """What is read of graphs of PyTorch Geometric, one after the other."""

    sizes: Int[Tensor, "graphs"]
    edge_index: Int[Tensor, "2 edges"]
    """Without self loops and parallel edges; nodes count through all graphs."""
    columns: dict[str, Tensor | None]
    """By the names of ``COLUMNS``; two-dimensional, but for ``y``."""
    unread: tuple[str, ...]
    """The fields that nothing is read of."""

    def describe_unread(self) -> str:
        """A notice that names the fields that are not read; empty if all are."""
        return f"fields of the graphs that are not read: {join_names(self.unread)}" if self.unread else ""


def read_fields(
    data: Any, name: str = "these graphs", target: str | None = "y", *, of_nodes: bool = False
) -> PygFields:
    """The fields of a graph, a batch, or a list of graphs and batches of PyTorch Geometric, checked.

    ``name`` is for notices. ``target`` is the field that is read as ``y``, None for none; it has a row for each graph,
    or for each node if ``of_nodes``.
    """
    from torch_geometric.data import Data, HeteroData

    graphs = [data] if isinstance(data, Data | HeteroData) else list(data)
    for number, graph in enumerate(graphs):
        _check_graph(number, graph)
    each = [_read_sizes(graph) for graph in graphs]
    sizes = torch.cat(each) if each else torch.zeros(0, dtype=torch.long)
    nodes = [int(part.sum()) for part in each]
    starts = ptr_from_counts(torch.tensor(nodes, dtype=torch.long))[:-1]
    edges = [_read_edges(*of_graph) for of_graph in zip(range(len(graphs)), graphs, nodes, strict=True)]
    shifted = [part + start for part, start in zip(edges, starts, strict=True)]
    edge_index = torch.cat(shifted, dim=1) if edges else torch.zeros(2, 0, dtype=torch.long)
    rows = {"nodes": nodes, "edges": [part.shape[1] for part in edges], "graphs": [len(part) for part in each]}
    owners_of = COLUMNS | {"y": "nodes" if of_nodes else "graphs"}
    columns = {
        column: _concatenate(graphs, target if column == "y" else column, owners, rows[owners])
        for column, owners in owners_of.items()
    }
    edges_kept = find_simple_edges(edge_index, name)
    if edges_kept is not None:
        edge_index = edge_index[:, edges_kept]
        for column in ("edge_attr", "edge_labels"):
            values = columns[column]
            columns[column] = None if values is None else values[edges_kept]
    names = {*COLUMNS, *STRUCTURE, target}
    unread = sorted({key for graph in graphs for key in graph.keys() if key not in names})  # noqa: SIM118
    if any(_has_values(getattr(graph, "adj_t", None)) for graph in graphs):
        unread.append("the values of adj_t")
    return PygFields(sizes, edge_index, columns, tuple(unread))


@cache
def log_once(notice: str) -> None:
    """Log a notice, the first time that it comes up."""
    _log.warning("%s", notice)


def _read_sizes(graph: Any) -> Int[Tensor, "graphs"]:
    """Nodes of the graph, or of each graph of a batch."""
    from torch_geometric.data import Batch

    if not isinstance(graph, Batch):
        return torch.tensor([graph.num_nodes])
    batch: Any = graph
    return (torch.bincount(batch.batch) if batch.ptr is None else batch.ptr.diff()).cpu()


def _check_graph(number: int, graph: Any) -> None:
    from torch_geometric.data import Data

    if type(graph).__name__ == "HeteroData":
        raise InputError(
            f"graph {number} is a HeteroData, with several kinds of nodes or edges; data.to_homogeneous() makes one "
            "graph of it, with the kind as node_type: put that into x"
        )
    if not isinstance(graph, Data):
        raise InputError(f"graph {number} is a {type(graph).__name__}; expected `Data` of PyTorch Geometric")
    if graph.num_nodes is None:
        raise InputError(f"graph {number} has neither x nor num_nodes; give it num_nodes")
    for name in COLUMNS:
        column = getattr(graph, name, None)
        if column is None:
            continue
        if hasattr(column, "to_dense") and getattr(column, "layout", None) != torch.strided:
            raise InputError(f"graph {number}: {name} is sparse; give {name}.to_dense()")
        if _as_tensor(number, name, column).dtype.is_complex:
            raise InputError(
                f"graph {number}: {name} holds complex numbers; give real ones: torch.view_as_real({name}).flatten(1)"
            )


def _as_tensor(number: int, name: str | None, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"graph {number}: {name} holds {quote(str(value))}, and no numbers; number the values"
        ) from None


def _read_edges(number: int, graph: Any, nodes: int) -> Int[Tensor, "2 edges"]:
    """The edges of a graph, checked: each between two of its nodes."""
    edges = _find_edges(graph)
    try:
        check_edge_index(edges)
    except InputError as error:
        raise InputError(f"graph {number}: {error}") from error
    if edges.numel():
        lowest, highest = map(int, edges.aminmax())
        if lowest < 0 or highest >= nodes:
            wrong = lowest if lowest < 0 else highest
            raise InputError(f"graph {number}: edge_index names node {wrong}; it has nodes 0 to {nodes - 1}")
    return edges


def _find_edges(graph: Any) -> Tensor:
    """(source, destination) of each edge: ``edge_index``, or ``adj_t``, whose rows are destinations."""
    if graph.edge_index is not None:
        return torch.as_tensor(graph.edge_index)
    adj_t = getattr(graph, "adj_t", None)
    if adj_t is None:
        return torch.zeros(2, 0, dtype=torch.long)
    if isinstance(adj_t, Tensor):
        row, col = (adj_t if adj_t.layout == torch.sparse_coo else adj_t.to_sparse_coo()).coalesce().indices()
    else:  # SparseTensor of torch_sparse
        row, col, _ = adj_t.coo()
    return torch.stack([col, row]).long()


def _has_values(adj_t: Any) -> bool:
    """Whether a sparse matrix holds other values than ones."""
    if adj_t is None:
        return False
    if not isinstance(adj_t, Tensor):
        return adj_t.storage.value() is not None
    return bool((adj_t.to_sparse_coo().coalesce().values() != 1).any())


def _concatenate(graphs: Sequence[Any], name: str | None, owners: str, rows: Sequence[int]) -> Tensor | None:
    """Column ``name`` of all graphs, with a row for each of their ``owners``; None where none has it."""
    parts = [None if name is None else getattr(graph, name, None) for graph in graphs]
    missing = [g for g, part in enumerate(parts) if part is None]
    if len(missing) == len(parts):
        return None
    if missing:
        raise InputError(f"graph {missing[0]} has no {name}, and others do; give it to all of them or to none")
    tensors = [_as_tensor(number, name, part) for number, part in enumerate(parts)]
    tensors = [part if part.dim() else part[None] for part in tensors]
    for number, (tensor, count) in enumerate(zip(tensors, rows, strict=True)):
        if len(tensor) != count:
            raise InputError(f"graph {number}: {name} has {len(tensor)} rows for {count} {owners}; each needs one")
    widths = [tuple(tensor.shape[1:]) for tensor in tensors]
    if different := [g for g, width in enumerate(widths) if width != widths[0]]:
        shapes = f"{tuple(tensors[different[0]].shape)}, and that of graph 0 {tuple(tensors[0].shape)}"
        raise InputError(f"graph {different[0]}: {name} has the shape {shapes}; give all of them the same columns")
    column = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
    if name not in COLUMNS or name == "y":
        return column
    if column.dim() > 2:
        raise InputError(f"{name} has shape {tuple(column.shape)}; it needs one row each, with one or more columns")
    return column[:, None] if column.dim() == 1 else column
