"""All graphs of a data set as a few flat tensors, and batches cut from them by index arithmetic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.sparse import pointer_of_counts, ragged_arange
from mnagt.tasks import Task


@dataclass(frozen=True, eq=False)
class PackedDataset:
    """``graphs`` graphs, laid end to end. There is no Python object per graph.

    Edges are sorted by (destination, source) within each graph. ``dataset.batch(indices)`` costs a handful of
    vectorised operations, whatever the number of graphs, on the device where the tensors lie.
    """

    name: str
    task: Task
    node_ptr: Int[Tensor, "graphs_and_end"]
    """Graph g owns the nodes ``node_ptr[g]:node_ptr[g + 1]``. On the CPU."""
    edge_ptr: Int[Tensor, "graphs_and_end"]
    """Graph g owns the edges ``edge_ptr[g]:edge_ptr[g + 1]``. On the CPU."""
    source: Int[Tensor, "edges"]
    """Where each edge comes from, counted from its graph's first node (int32)."""
    in_degree: Int[Tensor, "nodes"]
    """Edges into each node (int32)."""
    targets: Tensor
    is_symmetric: bool = True
    """Every edge of every graph runs both ways."""
    label_counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Categories of each column of ``node_labels`` and ``edge_labels``."""
    node_labels: Int[Tensor, "nodes _"] | None = None
    node_values: Float[Tensor, "nodes _"] | None = None
    edge_labels: Int[Tensor, "edges _"] | None = None
    edge_values: Float[Tensor, "edges _"] | None = None
    encodings: Mapping[str, Float[Tensor, "nodes _"]] = field(default_factory=dict)
    vocabularies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the categories, where the source gives any, by column: 'node_labels/0', ..."""

    def __len__(self) -> int:
        return len(self.node_ptr) - 1

    @cached_property
    def sizes(self) -> Int[Tensor, "graphs"]:
        """Nodes of each graph."""
        return self.node_ptr.diff()

    @property
    def device(self) -> torch.device:
        return self.source.device

    @cached_property
    def features(self) -> Features:
        """What a model can read off these graphs."""
        return Features(
            Columns(
                tuple(self.label_counts.get("node_labels", ())),
                0 if self.node_values is None else self.node_values.shape[1],
            ),
            Columns(
                tuple(self.label_counts.get("edge_labels", ())),
                0 if self.edge_values is None else self.edge_values.shape[1],
            ),
        )

    def batch(self, indices: Int[Tensor, "batch"]) -> GraphBatch:
        """The graphs ``indices``, in that order, as one batch."""
        indices = torch.as_tensor(indices, dtype=torch.long).cpu()
        if len(indices) and not (0 <= int(indices.min()) and int(indices.max()) < len(self)):
            raise InputError(
                f"{self.name} has graphs 0 to {len(self) - 1}; asked for {int(indices.min())} to {int(indices.max())}"
            )
        first_node, first_edge = self.node_ptr[indices], self.edge_ptr[indices]
        sizes, edges = self.node_ptr[indices + 1] - first_node, self.edge_ptr[indices + 1] - first_edge
        node_ptr = pointer_of_counts(sizes)
        num_nodes, num_edges = int(node_ptr[-1]), int(edges.sum())

        first_node, first_edge, here, edge_counts, ptr = self._moved(first_node, first_edge, sizes, edges, node_ptr)
        node = ragged_arange(first_node, here, num_nodes)
        edge = ragged_arange(first_edge, edge_counts, num_edges)
        source = self.source.index_select(0, edge) + torch.repeat_interleave(
            ptr[:-1], edge_counts, output_size=num_edges
        )

        def of_nodes(column: Tensor | None) -> Tensor | None:
            return None if column is None else column.index_select(0, node)

        def of_edges(column: Tensor | None) -> Tensor | None:
            return None if column is None else column.index_select(0, edge)

        return GraphBatch(
            sizes=sizes,
            node_ptr=ptr,
            in_ptr=pointer_of_counts(self.in_degree.index_select(0, node).long()),
            source=source,
            is_symmetric=self.is_symmetric,
            node_labels=of_nodes(self.node_labels),
            node_values=of_nodes(self.node_values),
            edge_labels=of_edges(self.edge_labels),
            edge_values=of_edges(self.edge_values),
            targets=self.targets.index_select(0, indices.to(self.device, non_blocking=True)),
            encodings={name: column.index_select(0, node) for name, column in self.encodings.items()},
        )

    def _moved(self, *small: Tensor) -> tuple[Tensor, ...]:
        """Per-graph numbers, one transfer for all, to where the graphs lie."""
        if self.device.type == "cpu":
            return small
        return torch.cat(small).to(self.device, non_blocking=True).split([len(t) for t in small])

    def batches(
        self, indices: Int[Tensor, "some"], batch_size: int, generator: torch.Generator | None = None, start: int = 0
    ) -> Iterator[tuple[Int[Tensor, "batch"], GraphBatch]]:
        """``indices`` in batches, each with the graphs it holds.

        With a ``generator`` the graphs are shuffled first; without one they come in order of size, so that a batch
        holds graphs of like size. Within a batch graphs are always in order of size: attention then finds equal
        ones side by side. The first ``start`` batches are left out.
        """
        if generator is None:
            order = indices[self.sizes[indices].argsort(stable=True)]
        else:
            order = indices[torch.randperm(len(indices), generator=generator)]
        for chunk in order.split(batch_size)[start:] if len(order) else ():
            chunk = chunk[self.sizes[chunk].argsort(stable=True)]
            yield chunk, self.batch(chunk)

    def to(self, device: torch.device | str) -> "PackedDataset":
        """The same data set with its flat tensors on ``device``; the pointers stay on the CPU."""
        moved = {
            f.name: value.to(device)
            for f in fields(self)
            if f.name not in ("node_ptr", "edge_ptr") and isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved, encodings={name: t.to(device) for name, t in self.encodings.items()})

    @classmethod
    def from_edges(
        cls,
        name: str,
        task: Task,
        edge_index: Int[Tensor, "2 edges"],
        sizes: Int[Tensor, "graphs"],
        targets: Tensor,
        *,
        label_counts: Mapping[str, tuple[int, ...]] | None = None,
        node_labels: Int[Tensor, "nodes _"] | None = None,
        node_values: Float[Tensor, "nodes _"] | None = None,
        edge_labels: Int[Tensor, "edges _"] | None = None,
        edge_values: Float[Tensor, "edges _"] | None = None,
        vocabularies: Mapping[str, tuple[str, ...]] | None = None,
    ) -> "PackedDataset":
        """A data set from (source, destination) pairs whose node ids run over all graphs."""
        whole = GraphBatch.from_edges(
            edge_index,
            sizes,
            node_labels=node_labels,
            node_values=node_values,
            edge_labels=edge_labels,
            edge_values=edge_values,
            targets=targets,
        )
        if len(targets) != len(sizes):
            raise InputError(f"{name}: {len(targets)} targets for {len(sizes)} graphs")
        first = whole.node_ptr[:-1][whole.graph_of_node]
        return cls(
            name=name,
            task=task,
            node_ptr=whole.node_ptr.cpu(),
            edge_ptr=whole.in_ptr[whole.node_ptr].cpu(),
            source=(whole.source - first[whole.destination]).int(),
            in_degree=whole.in_degree.int(),
            targets=targets,
            is_symmetric=whole.is_symmetric,
            label_counts=dict(label_counts or {}),
            node_labels=whole.node_labels,
            node_values=whole.node_values,
            edge_labels=whole.edge_labels,
            edge_values=whole.edge_values,
            vocabularies=dict(vocabularies or {}),
        )
