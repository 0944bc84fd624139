"""Batches of a fixed shape, assembled where the data lie, for steps that are recorded once and replayed.

A CUDA graph replays the same launches on the same addresses, so every batch it is fed must have the same shape. Here a
batch is filled up to that shape: graphs of up to ``FILLING`` nodes stand at its end, their nodes joined to themselves
alone. Layers treat them like any other graph. Only statistics over nodes and edges, and the loss, must leave them out:
``GraphBatch.filled`` says how much is real, and missing graphs have a target that every loss leaves out.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt import fused
from mnagt.data.packed import PackedDataset
from mnagt.graphs.batch import Filled, GraphBatch
from mnagt.graphs.sparse import pointer_of_counts
from mnagt.tasks import NO_CLASS

FILLING = 64
"""Nodes of the graphs that fill a batch up, at most."""
NO_GRAPH = -1
"""Stands in a list of graphs where there is none."""


class Shape(NamedTuple):
    """What a batch has room for."""

    graphs: int
    nodes: int
    edges: int

    def holds(self, other: "Shape") -> bool:
        """Whether a batch of shape ``other`` fits. One more node must: it takes the edges that fill up."""
        return self.graphs >= other.graphs and self.nodes > other.nodes and self.edges >= other.edges

    def raised(self, step: int = 256) -> "Shape":
        """Room for this and a little more."""
        return Shape(self.graphs, (self.nodes // step + 1) * step, math.ceil(self.edges / step) * step)


class Layout(NamedTuple):
    """Where the nodes and edges of a batch come from, and how they hang together."""

    node_ptr: Int[Tensor, "graphs_and_end"]
    in_ptr: Int[Tensor, "nodes_and_end"]
    source: Int[Tensor, "edges"]
    node: Int[Tensor, "nodes"]
    """The data set's node for each."""
    edge: Int[Tensor, "edges"]
    real: Int[Tensor, "3"]
    """How many graphs, nodes and edges are no filling."""


@dataclass(frozen=True, eq=False)
class FixedBatches:
    """Batches of ``dataset``, cut on its device by operations that no value but the graphs' ids decides."""

    dataset: PackedDataset

    @cached_property
    def _ptrs(self) -> tuple[Tensor, Tensor, Tensor]:
        """First node and first edge of each graph, and first edge of each node, on the device."""
        data = self.dataset
        in_ptr = pointer_of_counts(data.in_degree.long())
        return data.node_ptr.to(data.device), data.edge_ptr.to(data.device), in_ptr

    @cached_property
    def _edges(self) -> Int[Tensor, "graphs"]:
        return self.dataset.edge_ptr.diff()

    def shape_of(self, graphs: Int[Tensor, "graphs"]) -> Shape:
        """What these graphs need. All on the CPU."""
        graphs = graphs[graphs != NO_GRAPH]
        return Shape(len(graphs), int(self.dataset.sizes[graphs].sum()), int(self._edges[graphs].sum()))

    def batch(self, graphs: Int[Tensor, "slots"], shape: Shape) -> GraphBatch:
        """The graphs (those that are ``NO_GRAPH`` last) and filling, as one batch of ``shape``.

        Graphs that do not fit would be cut short: ask ``shape.holds`` first. A data set without edges has none to fill
        up with.
        """
        data, device = self.dataset, self.dataset.device
        layout = self._assembled(graphs, shape) if fused.is_usable(device) else self._layout(graphs, shape)
        is_graph = graphs != NO_GRAPH
        missing = NO_CLASS if not data.targets.is_floating_point() else math.nan
        targets = data.targets.index_select(0, graphs.clamp(min=0))
        has_target = is_graph.view(-1, *[1] * (targets.ndim - 1))
        return GraphBatch(
            sizes=layout.node_ptr.diff() if device.type == "cpu" else layout.node_ptr[1:].to("meta"),
            node_ptr=layout.node_ptr,
            in_ptr=layout.in_ptr,
            source=layout.source,
            is_symmetric=data.is_symmetric,
            node_labels=None if data.node_labels is None else data.node_labels.index_select(0, layout.node),
            node_values=None if data.node_values is None else data.node_values.index_select(0, layout.node),
            edge_labels=None if data.edge_labels is None else data.edge_labels.index_select(0, layout.edge),
            edge_values=None if data.edge_values is None else data.edge_values.index_select(0, layout.edge),
            targets=torch.where(has_target, targets, missing),
            encodings={name: column.index_select(0, layout.node) for name, column in data.encodings.items()},
            filled=Filled(layout.real[0], layout.real[1], layout.real[2], max(FILLING, int(data.sizes.max()))),
        )

    def _assembled(self, graphs: Int[Tensor, "slots"], shape: Shape) -> Layout:
        from mnagt.fused.assemble import assemble

        return Layout(*assemble(graphs, *self._ptrs, self.dataset.source, shape.nodes, shape.edges, FILLING))

    def _layout(self, graphs: Int[Tensor, "slots"], shape: Shape) -> Layout:
        """The twin of ``mnagt.fused.assemble``."""
        all_node_ptr, all_edge_ptr, all_in_ptr = self._ptrs
        is_graph = graphs != NO_GRAPH
        graphs = graphs.clamp(min=0)
        nodes, edges = (torch.where(is_graph, ptr.diff()[graphs], 0) for ptr in (all_node_ptr, all_edge_ptr))
        real_nodes, real_edges = nodes.sum(), edges.sum()

        filling = torch.arange(-(-shape.nodes // FILLING), device=graphs.device) * FILLING
        sizes = torch.cat([nodes, (shape.nodes - real_nodes - filling).clamp(0, FILLING)])
        node_ptr, edge_ptr = pointer_of_counts(sizes), pointer_of_counts(edges)
        # filling nodes and edges share one more place, whose rows are the data set's first
        first_node = torch.cat([all_node_ptr[graphs] - node_ptr[: len(graphs)], graphs.new_zeros(1)])
        first_edge = torch.cat([all_edge_ptr[graphs] - edge_ptr[:-1], graphs.new_zeros(1)])

        node = torch.arange(shape.nodes, device=graphs.device)
        place = torch.searchsorted(node_ptr[1 : len(graphs) + 1], node, right=True)
        is_node = node < real_nodes
        node_row = torch.where(is_node, node + first_node[place], 0)

        edge = torch.arange(shape.edges, device=graphs.device)
        edge_place = torch.searchsorted(edge_ptr[1:], edge, right=True)
        is_edge = edge < real_edges
        edge_row = torch.where(is_edge, edge + first_edge[edge_place], 0)

        # the e-th of the filling edges, E in all, is a loop at the floor(e N / E)-th of the N filling nodes
        spare_nodes, spare_edges = shape.nodes - real_nodes, (shape.edges - real_edges).clamp(min=1)
        loop = real_nodes + (edge - real_edges) * spare_nodes // spare_edges
        home = node_ptr[edge_place.clamp(max=len(graphs) - 1)]
        source = torch.where(is_edge, self.dataset.source[edge_row] + home, loop)
        before = -(-(node - real_nodes) * (shape.edges - real_edges) // spare_nodes)
        start = torch.where(is_node, all_in_ptr[node_row] - first_edge[place], real_edges + before)
        in_ptr = torch.cat([start, start.new_full((1,), shape.edges)])
        real = torch.stack([is_graph.sum(), real_nodes, real_edges])
        return Layout(node_ptr, in_ptr.int(), source.int(), node_row, edge_row, real)
