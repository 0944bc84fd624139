"""What a graph is made of, whatever the layers make of it: a learned vector for each subtree in it, summed."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.subtrees import subtrees
from mnagt.models.lookup import look_up

SLOTS = 2**18
"""Names are looked up by their remainder by this: one in thirty unknown ones is taken for one of 8,192 known."""


class Subtrees(nn.Module):
    r"""A vector for each graph, :math:`\sum_v \sum_r T_r[c_r(v)]`, with the names :math:`c_r` of Weisfeiler and Leman.

    A linear map of it is a linear model over counts of subtrees, as strong on molecules as deep ones and fast to learn;
    deep layers see what counts do not. Tables have ``rows`` rows. ``meet`` gives them to the names that most training
    graphs have; names that fewer than ``least`` of them have say nothing, and would be learned by heart. Until then all
    names fall on the rows by chance. In training a name is left out of the sum with chance ``dropout``.
    """

    row: Int[Tensor, "rounds_by_slots"]
    """The row of each slot; ~row where its names do not count. (They are looked up all the same, as many as there are:
    sent to one row, they would keep a GPU waiting for it.)"""

    def __init__(self, dim: int, rounds: int, *, rows: int, dropout: float, least: int = 2) -> None:
        super().__init__()
        self.dim, self.rounds, self.rows, self.dropout, self.least = dim, rounds, rows, dropout, least
        self.table = nn.Embedding(rounds * rows, dim)
        nn.init.normal_(self.table.weight, std=0.1)
        by_chance = torch.arange(SLOTS) % rows + rows * torch.arange(rounds)[:, None]
        self.register_buffer("row", by_chance.int().flatten())

    def meet(self, names: Int[Tensor, "nodes rounds"], graph: Int[Tensor, "nodes"]) -> None:
        """Choose what to count by the names in the training part, whose nodes belong to these graphs."""
        for r, row in enumerate(self.row.view(self.rounds, SLOTS)):
            row.copy_(~(torch.arange(SLOTS) % self.rows + r * self.rows))
            kept = commonest(names[:, r], graph, self.rows, self.least)
            row[kept % SLOTS] = torch.arange(len(kept), dtype=torch.int32) + r * self.rows

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs dim"]:
        return graph.nodes_of @ self.of_nodes(graph)

    def of_nodes(self, graph: GraphBatch) -> Float[Tensor, "nodes dim"]:
        r"""The part of each node, :math:`\sum_r T_r[c_r(v)]`."""
        names = graph.encodings.get("subtrees")
        names = subtrees(graph, self.rounds) if names is None else names
        row = self.row[names.long() % SLOTS + SLOTS * torch.arange(self.rounds, device=names.device)].long()
        counts = (row >= 0).to(self.table.weight.dtype)
        if self.training and self.dropout:
            counts = counts * (torch.rand(row.shape, device=row.device) >= self.dropout) / (1 - self.dropout)
        vectors = look_up(self.table.weight, torch.where(row < 0, ~row, row).flatten()).unflatten(0, row.shape)
        return (vectors * counts[:, :, None].to(vectors.dtype)).sum(dim=1)


def commonest(names: Int[Tensor, "nodes"], graph: Int[Tensor, "nodes"], most: int, least: int) -> Int[Tensor, "some"]:
    """The names that most graphs have, ``most`` of them, and none that fewer than ``least`` graphs have."""
    graphs = int(graph.max()) + 1 if len(graph) else 1
    name = torch.unique(names.long() * graphs + graph) // graphs  # once for each graph that has it
    name, having = name.unique_consecutive(return_counts=True)
    name, having = name[having >= least], having[having >= least]
    return name[having.argsort(descending=True, stable=True)[:most]]
