"""What a graph is made of, whatever the layers make of it: a learned vector for each subtree in it, summed."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.subtrees import subtrees
from mnagt.models.lookup import look_up


class Subtrees(nn.Module):
    r"""A vector for each graph, :math:`\sum_v \sum_r T_r[c_r(v)]`, with the names :math:`c_r` of Weisfeiler and Leman.

    A linear map of it is a linear model over counts of subtrees, as strong on molecules as deep ones and fast to learn;
    deep layers see what counts do not. Tables have ``rows`` rows, on which names fall by chance. In training a name is
    left out of the sum with chance ``dropout``: rare ones would otherwise be learned by heart.
    """

    def __init__(self, dim: int, rounds: int, *, rows: int, dropout: float) -> None:
        super().__init__()
        self.dim, self.rounds, self.rows, self.dropout = dim, rounds, rows, dropout
        self.table = nn.Embedding(rounds * rows, dim)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs dim"]:
        return graph.nodes_of @ self.of_nodes(graph)

    def of_nodes(self, graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        r"""The part of each node, :math:`\sum_r T_r[c_r(v)]`."""
        names = graph.encodings.get("subtrees")
        names = subtrees(graph, self.rounds) if names is None else names
        row = names.long() % self.rows + self.rows * torch.arange(self.rounds, device=names.device)
        vectors = look_up(self.table.weight, row.flatten()).unflatten(0, row.shape)
        if self.training and self.dropout:
            stays = torch.rand(row.shape, device=row.device) >= self.dropout
            vectors = vectors * (stays / (1 - self.dropout))[:, :, None].to(vectors.dtype)
        return vectors.sum(dim=1)
