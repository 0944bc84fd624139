"""Batches that are padded to a fixed shape, so that a CUDA graph can be replayed on them."""

import math
from typing import NamedTuple

import torch

from mnagt.graphs.batch import GraphBatch, Padding

PADDING_GRAPH_SIZE = 64
"""Nodes of a padding graph, at most."""


class Shape(NamedTuple):
    """The graphs, nodes and edges of a padded batch."""

    graphs: int
    nodes: int
    edges: int

    def holds(self, other: "Shape") -> bool:
        """Whether a batch of shape ``other`` fits, with one node more, which takes the padding edges."""
        return self.graphs >= other.graphs and self.nodes > other.nodes and self.edges >= other.edges

    def round_up(self, step: int = 256) -> "Shape":
        """The shape with nodes and edges rounded up to multiples of ``step``, and at least one node more."""
        return Shape(self.graphs, (self.nodes // step + 1) * step, math.ceil(self.edges / step) * step)


def pad_batch(graph: GraphBatch, shape: Shape, max_num_nodes: int) -> GraphBatch:
    """The structure of ``graph``, and padding after it, as a batch of ``shape``, which holds it. Columns are left out.

    A padding graph has at most ``PADDING_GRAPH_SIZE`` nodes, which have self loops only.
    ``max_num_nodes`` is a bound on the nodes of a graph.

    >>> graph = GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [2])
    >>> padded = pad_batch(graph, Shape(1, 4, 3), max_num_nodes=64)
    >>> padded.sizes, padded.edge_index
    (tensor([2, 2]), tensor([[1, 0, 2],
            [0, 1, 2]]))
    """
    nodes, edges, device = graph.num_nodes, graph.num_edges, graph.device
    spare_nodes, spare_edges = shape.nodes - nodes, shape.edges - edges
    ends = torch.arange(1, -(-shape.nodes // PADDING_GRAPH_SIZE) + 1) * PADDING_GRAPH_SIZE
    padding_ptr = nodes + ends.clamp(max=spare_nodes)
    node, edge = (torch.arange(n, device=device) for n in (spare_nodes + 1, spare_edges))
    loops = nodes + edge * spare_nodes // max(spare_edges, 1)  # as in PaddedBatches._layout
    starts = edges - (-node * spare_edges // spare_nodes)
    counts = torch.tensor([graph.num_graphs, nodes, edges], device=device)
    padded = GraphBatch(
        sizes=torch.cat([graph.sizes, padding_ptr.diff(prepend=torch.tensor([nodes]))]),
        node_ptr=torch.cat([graph.node_ptr, padding_ptr.to(device)]),
        in_ptr=torch.cat([graph.in_ptr[:-1], starts.int()]),
        source=torch.cat([graph.source, loops.int()]),
        is_symmetric=graph.is_symmetric,
        padding=Padding(*counts.unbind(), max_num_nodes=max(PADDING_GRAPH_SIZE, max_num_nodes)),
    )
    assert graph.edge_order is not None
    order = torch.arange(edges, shape.edges, device=device, dtype=torch.int32)
    object.__setattr__(padded, "edge_order", torch.cat([graph.edge_order, order]))
    return padded
