"""One more node in every graph."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from mnagt.graphs.batch import Filled, GraphBatch
from mnagt.graphs.sparse import pointer


def with_virtual_nodes(graph: GraphBatch, *, is_joined: bool) -> tuple[GraphBatch, Int[Tensor, "nodes"]]:
    """The batch with a node added at the end of each graph, and where the old nodes went.

    ``is_joined``: the new node has edges to and from all others of its graph. What it and its edges carry is 'none':
    label -1, value 0. Node columns are left behind: the batch is for layers, which no longer read them.
    """
    nodes, graphs, device = graph.num_nodes, graph.num_graphs, graph.device
    place = torch.arange(nodes, device=device) + graph.graph_of_node
    node_ptr = graph.node_ptr + torch.arange(graphs + 1, device=device)
    source, destination = place[graph.source], place[graph.destination]
    edge_labels, edge_values = graph.edge_labels, graph.edge_values
    if is_joined:
        hub = (node_ptr[1:] - 1)[graph.graph_of_node]
        source, destination = torch.cat([source, place, hub]), torch.cat([destination, hub, place])
        order = (destination * (nodes + graphs) + source).argsort(stable=True)
        source, destination = source[order], destination[order]
        edge_labels = None if edge_labels is None else F.pad(edge_labels, (0, 0, 0, 2 * nodes), value=-1)[order]
        edge_values = None if edge_values is None else F.pad(edge_values, (0, 0, 0, 2 * nodes))[order]
    more = replace(
        graph,
        sizes=graph.sizes + 1,
        node_ptr=node_ptr,
        in_ptr=pointer(destination, nodes + graphs).int(),
        source=source.int(),
        node_labels=None,
        node_values=None,
        edge_labels=edge_labels,
        edge_values=edge_values,
        encodings={},
        filled=None if graph.filled is None else _with_more(graph.filled, is_joined=is_joined),
    )
    return more, place


def _with_more(filled: Filled, *, is_joined: bool) -> Filled:
    """What is real once every graph has a node more."""
    edges = filled.edges + 2 * filled.nodes if is_joined else filled.edges
    return Filled(filled.graphs, filled.nodes + filled.graphs, edges, filled.largest + 1)
