"""One more node in every graph."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from mnagt.graphs.batch import GraphBatch, Padding
from mnagt.graphs.sparse import ptr_from_index


def add_virtual_nodes(graph: GraphBatch, *, is_connected: bool) -> tuple[GraphBatch, Int[Tensor, "nodes"]]:
    """The batch with a node added at the end of each graph, and where the old nodes went.

    ``is_connected``: the new node has edges to and from all others of its graph. What it and its edges carry is 'none':
    label -1, value and encodings 0. Node columns are left behind: the batch is for layers, which no longer read them.
    """
    nodes, graphs, device = graph.num_nodes, graph.num_graphs, graph.device
    new_index = torch.arange(nodes, device=device) + graph.graph_of_node
    node_ptr = graph.node_ptr + torch.arange(graphs + 1, device=device)
    source, destination = new_index[graph.source], new_index[graph.destination]
    edge_labels, edge_values = graph.edge_labels, graph.edge_values
    if is_connected:
        hub = (node_ptr[1:] - 1)[graph.graph_of_node]
        source, destination = torch.cat([source, new_index, hub]), torch.cat([destination, hub, new_index])
        order = (destination * (nodes + graphs) + source).argsort(stable=True)
        source, destination = source[order], destination[order]
        edge_labels = None if edge_labels is None else F.pad(edge_labels, (0, 0, 0, 2 * nodes), value=-1)[order]
        edge_values = None if edge_values is None else F.pad(edge_values, (0, 0, 0, 2 * nodes))[order]
    padding = graph.padding
    if padding is not None:
        edges = padding.edges + 2 * padding.nodes if is_connected else padding.edges
        padding = Padding(padding.graphs, padding.nodes + padding.graphs, edges, padding.max_num_nodes + 1)
    more = replace(
        graph,
        sizes=graph.sizes + 1,
        node_ptr=node_ptr,
        in_ptr=ptr_from_index(destination, nodes + graphs).int(),
        source=source.int(),
        node_labels=None,
        node_values=None,
        edge_labels=edge_labels,
        edge_values=edge_values,
        encodings={
            name: rows.new_zeros(nodes + graphs, rows.shape[1]).index_copy(0, new_index, rows)
            for name, rows in graph.encodings.items()
        },
        padding=padding,
    )
    return more, new_index
