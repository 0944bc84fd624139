"""Batches of a fixed shape, assembled on the device of the data set, for training steps in CUDA graphs.

A batch is padded with graphs that have self loops only and no target. Statistics over nodes and edges must leave them
out: ``GraphBatch.padding`` says how many are valid.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt import ops
from mnagt.data.packed import PackedDataset
from mnagt.graphs.batch import GraphBatch, Padding
from mnagt.graphs.padding import PADDING_GRAPH_SIZE, Shape
from mnagt.graphs.sparse import ptr_from_counts

NO_GRAPH = -1
"""The index of a graph that is padding."""


class Layout(NamedTuple):
    """The structure of a padded batch, and the rows of the data set that its nodes and edges come from."""

    node_ptr: Int[Tensor, "graphs_and_end"]
    in_ptr: Int[Tensor, "nodes_and_end"]
    source: Int[Tensor, "edges"]
    node: Int[Tensor, "nodes"]
    """The row of each node in the data set."""
    edge: Int[Tensor, "edges"]
    num_valid: Int[Tensor, "3"]
    """How many graphs, nodes and edges are no padding."""


@dataclass(frozen=True, eq=False)
class PaddedBatches:
    """Batches of ``dataset``, assembled on its device without synchronisation."""

    dataset: PackedDataset

    @cached_property
    def _ptrs(self) -> tuple[Tensor, Tensor, Tensor]:
        """First node and first edge of each graph, and first edge of each node, on the device."""
        data = self.dataset
        in_ptr = ptr_from_counts(data.in_degree.long())
        return data.node_ptr.to(data.device), data.edge_ptr.to(data.device), in_ptr

    @cached_property
    def _edges(self) -> Int[Tensor, "graphs"]:
        return self.dataset.edge_ptr.diff()

    def shape_of(self, graphs: Int[Tensor, "graphs"]) -> Shape:
        """The shape of these graphs without padding; computed on the CPU."""
        graphs = graphs[graphs != NO_GRAPH]
        return Shape(len(graphs), int(self.dataset.sizes[graphs].sum()), int(self._edges[graphs].sum()))

    def batch(self, graphs: Int[Tensor, "slots"], shape: Shape) -> GraphBatch:
        """The graphs (those that are ``NO_GRAPH`` last) and padding, as one batch of ``shape``.

        The graphs must fit (``shape.holds``). A data set without edges has no padding edges.
        """
        data, device = self.dataset, self.dataset.device
        if ops.is_usable(device):
            from mnagt.ops.assemble import assemble

            slots = (shape.nodes, shape.edges, PADDING_GRAPH_SIZE)
            layout = Layout(*assemble(graphs, *self._ptrs, data.source, *slots))
        else:
            layout = self._layout(graphs, shape)
        is_graph = graphs != NO_GRAPH
        missing = data.task.missing_target
        targets = data.targets.index_select(0, graphs.clamp(min=0))
        has_target = is_graph.view(-1, *[1] * (targets.ndim - 1))
        return GraphBatch(
            sizes=layout.node_ptr.diff() if device.type == "cpu" else layout.node_ptr[1:].to("meta"),
            node_ptr=layout.node_ptr,
            in_ptr=layout.in_ptr,
            source=layout.source,
            is_symmetric=data.is_symmetric,
            targets=torch.where(has_target, targets, missing),
            encodings={name: column.index_select(0, layout.node) for name, column in data.encodings.items()},
            padding=Padding(*layout.num_valid.unbind(), max_num_nodes=max(PADDING_GRAPH_SIZE, int(data.sizes.max()))),
            label_counts=data.label_counts,
            **{name: column.index_select(0, layout.node) for name, column in data.node_columns.items()},
            **{name: column.index_select(0, layout.edge) for name, column in data.edge_columns.items()},
        )

    def _layout(self, graphs: Int[Tensor, "slots"], shape: Shape) -> Layout:
        """The same as ``mnagt.ops.assemble``, in PyTorch."""
        all_node_ptr, all_edge_ptr, all_in_ptr = self._ptrs
        is_graph = graphs != NO_GRAPH
        graphs = graphs.clamp(min=0)
        nodes, edges = (torch.where(is_graph, ptr.diff()[graphs], 0) for ptr in (all_node_ptr, all_edge_ptr))
        num_valid_nodes, num_valid_edges = nodes.sum(), edges.sum()

        padding = torch.arange(-(-shape.nodes // PADDING_GRAPH_SIZE), device=graphs.device) * PADDING_GRAPH_SIZE
        sizes = torch.cat([nodes, (shape.nodes - num_valid_nodes - padding).clamp(0, PADDING_GRAPH_SIZE)])
        node_ptr, edge_ptr = ptr_from_counts(sizes), ptr_from_counts(edges)
        # padding nodes and edges share one more graph, whose rows are the data set's first
        first_node = torch.cat([all_node_ptr[graphs] - node_ptr[: len(graphs)], graphs.new_zeros(1)])
        first_edge = torch.cat([all_edge_ptr[graphs] - edge_ptr[:-1], graphs.new_zeros(1)])

        node = torch.arange(shape.nodes, device=graphs.device)
        graph = torch.searchsorted(node_ptr[1 : len(graphs) + 1], node, right=True)
        is_node = node < num_valid_nodes
        node_row = torch.where(is_node, node + first_node[graph], 0)

        edge = torch.arange(shape.edges, device=graphs.device)
        edge_graph = torch.searchsorted(edge_ptr[1:], edge, right=True)
        is_edge = edge < num_valid_edges
        edge_row = torch.where(is_edge, edge + first_edge[edge_graph], 0)

        # the e-th of the E padding edges is a loop at the floor(e N / E)-th of the N padding nodes
        spare_nodes, spare_edges = shape.nodes - num_valid_nodes, (shape.edges - num_valid_edges).clamp(min=1)
        loop = num_valid_nodes + (edge - num_valid_edges) * spare_nodes // spare_edges
        first = node_ptr[edge_graph.clamp(max=len(graphs) - 1)]
        source = torch.where(is_edge, self.dataset.source[edge_row] + first, loop)
        before = -(-(node - num_valid_nodes) * (shape.edges - num_valid_edges) // spare_nodes)
        start = torch.where(is_node, all_in_ptr[node_row] - first_edge[graph], num_valid_edges + before)
        in_ptr = torch.cat([start, start.new_full((1,), shape.edges)])
        num_valid = torch.stack([is_graph.sum(), num_valid_nodes, num_valid_edges])
        return Layout(node_ptr, in_ptr.int(), source.int(), node_row, edge_row, num_valid)
