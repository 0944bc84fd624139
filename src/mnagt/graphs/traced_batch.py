"""A batch that PyTorch's exporter can follow: no shape depends on Python's numbers, and sums are scattered."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.buckets import Bucket, Buckets, Layout
from mnagt.graphs.sparse import Incidence, ptr_from_counts


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedBatch(GraphBatch):
    """A batch whose sizes are those of tensors, and whose sums are scattered: what tracing can follow."""

    graph_of_node: Int[Tensor, "nodes"] = field()  # pyright: ignore[reportIncompatibleVariableOverride]
    destination: Int[Tensor, "edges"] = field()  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        nodes, graph = self.num_nodes, self.graph_of_node
        self.__dict__.update(  # in place of cached properties
            neighbours=_Scattered(self.source, self.destination, nodes),
            edges_into=_Scattered(None, self.destination, nodes),
            edge_sources=_Scattered(self.source, None, self.num_edges),
            nodes_of=_Scattered(None, graph, self.num_graphs),
            graph_of=_Scattered(graph, None, nodes),
        )

    @classmethod
    def trace(
        cls,
        edge_index: Int[Tensor, "2 edges"],
        graph_of_node: Int[Tensor, "nodes"],
        sizes: Int[Tensor, "graphs"],
        *,
        edge_labels: Int[Tensor, "edges _"] | None = None,
        edge_values: Float[Tensor, "edges _"] | None = None,
        **columns: Any,
    ) -> "TracedBatch":
        """The batch of these edges, in any order. ``columns`` are other fields of a batch. Nothing is checked."""
        order = edge_index[1].argsort()
        source, destination = edge_index[:, order]
        in_degree = scatter_add(torch.zeros_like(graph_of_node), destination, torch.ones_like(destination))
        made = cls(
            sizes=sizes,
            node_ptr=ptr_from_counts(sizes),
            in_ptr=ptr_from_counts(in_degree),
            source=source,
            is_symmetric=False,
            edge_labels=None if edge_labels is None else edge_labels[order],
            edge_values=None if edge_values is None else edge_values[order],
            graph_of_node=graph_of_node,
            destination=destination,
            **columns,
        )
        object.__setattr__(made, "edge_order", order)
        return made

    @cached_property
    def buckets(self) -> Buckets:
        """One bucket, as wide as the largest graph, and two slots at least: tracing takes a width of one for fixed."""
        width: Any = self.sizes.max().clamp(min=2).item()
        torch._check(width >= 2)
        slot, first = torch.arange(width), self.node_ptr[:-1]
        row_of_slot = (first[:, None] + slot).clamp(max=self.num_nodes - 1).flatten()
        slot_of_row = self.graph_of_node * width + torch.arange(self.num_nodes) - first[self.graph_of_node]
        bucket = Bucket(self.num_graphs, width, slot < self.sizes[:, None])
        return Buckets((bucket,), Layout(row_of_slot, slot_of_row, is_identity=False), self.sizes, self.sizes)


class _Scattered(Incidence):
    """A 0/1 matrix as the column and the row of each one; None where these count 0, 1, 2, ..."""

    def __init__(self, column: Tensor | None, row: Tensor | None, rows: int) -> None:
        self.index, self.row, self.rows = column, row, rows  # type: ignore[assignment]

    @property
    def transposed(self) -> Incidence:
        return _Scattered(self.row, self.index, -1)

    def product(
        self,
        x: Float[Tensor, "columns dim"],
        *,
        with_self: bool = False,
        before: Float[Tensor, "columns"] | None = None,
        after: Float[Tensor, "rows"] | None = None,
    ) -> Float[Tensor, "rows dim"]:
        x = x if before is None else before[:, None].to(x.dtype) * x
        y = x if self.index is None else x.index_select(0, self.index)
        if self.row is not None:
            y = scatter_add(x if with_self else x.new_zeros(self.rows, x.shape[1]), self.row, y)
        return y if after is None else after[:, None].to(x.dtype) * y


def scatter_add(x: Shaped[Tensor, "rows *dim"], row: Int[Tensor, "some"], y: Shaped[Tensor, "some *dim"]) -> Tensor:
    """``x.index_add(0, row, y)``, of which ONNX Runtime makes a ScatterND that loses summands with several threads."""
    return x.scatter_add(0, row if y.ndim == 1 else row[:, None].expand_as(y), y)
