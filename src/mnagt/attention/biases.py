"""Terms added to the attention scores of each pair of nodes; minus infinity forbids the pair.

A bias is a module from a batch to one row a pair, in the order of ``GraphBatch.pair_ptr``, and one column a head (or
one for all heads).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import shortest_paths


def edge_pairs(graph: GraphBatch) -> Int[Tensor, "edges"]:
    """The pair (destination, source) of each edge: the destination is the one that attends."""
    place = graph.graph_of_node[graph.destination]
    first, size = graph.node_ptr[place], graph.node_ptr.diff()[place]
    ptr = graph.pair_ptr.to(graph.device)[place]
    return ptr + (graph.destination - first) * size + (graph.source - first)


def self_pairs(graph: GraphBatch) -> Int[Tensor, "nodes"]:
    """The pair (v, v) of each node."""
    place = graph.graph_of_node
    own = torch.arange(graph.num_nodes, device=graph.device) - graph.node_ptr[place]
    return graph.pair_ptr.to(graph.device)[place] + own * (graph.node_ptr.diff()[place] + 1)


class EdgesOnly(nn.Module):
    """GT: a node attends to its neighbours and to itself."""

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs 1"]:
        bias = torch.full((int(graph.pair_ptr[-1]), 1), -torch.inf, device=graph.device)
        bias[edge_pairs(graph)] = 0.0
        bias[self_pairs(graph)] = 0.0
        return bias


class ShortestPath(nn.Module):
    """Graphormer: a learned number for each head and distance; one more for what is farther or out of reach."""

    def __init__(self, heads: int, limit: int = 20) -> None:
        super().__init__()
        self.limit = limit
        self.table = nn.Embedding(limit + 2, heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, graph: GraphBatch) -> Float[Tensor, "pairs heads"]:
        return self.table(shortest_paths(graph, self.limit))


BIASES = {"edges": EdgesOnly, "shortest-path": ShortestPath}
