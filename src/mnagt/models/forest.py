"""A random forest beside the network, that asks which pieces a graph has."""

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.subtrees import fragments
from mnagt.models.subtrees import commonest
from mnagt.tasks import Task

ROUNDS = 3
NAMES = 2 * ROUNDS + 1
"""Of each node (``fragments``)."""
PIECES, LEAST = 512, 5
"""Pieces of each round that can be asked for, at most, and training graphs that must have one."""
SLOTS = 2**16
"""Names are looked up by their remainder by this: one in 128 unknown ones is taken for one of 512 known."""
DEPTH = 64
"""Questions from the root of a tree to a leaf, at most. (Most pieces are rare, most answers no, and trees deep: with no
such limit up to 117 on ogbg-molhiv, and no better.)"""


class Forest(nn.Module):
    r"""Answers :math:`(1 - s)\, p + s\, q`: of beliefs p of the network and q of trees, probabilities or numbers.

    A tree asks at each node whether a graph has a certain piece, and ends in a leaf with a number; q is the mean over
    ``trees`` trees for each output. On new kinds of molecules it is often the better of the two, and the two err in
    different ways (docs/log.md).

    It is grown once the network has learned (``training/forests.py``) and says nothing before: a network trains and is
    judged by itself.
    """

    column: Int[Tensor, "names_by_slots"]
    """The column of each slot; the last, which nobody asks for, where no name in it is known."""
    asked: Int[Tensor, "nodes"]
    """The column that each node of all trees asks for."""
    following: Int[Tensor, "nodes 2"]
    """Where to go from there without the piece, and with it; from a leaf to itself."""
    value: Float[Tensor, "nodes"]
    """Of each leaf."""
    odds: Float[Tensor, "outputs"]
    """How much likelier a yes was in the graphs that trees were grown on than in all."""

    def __init__(self, outputs: int, trees: int, leaves: int, share: float) -> None:
        super().__init__()
        self.outputs, self.trees, self.leaves, self.share = outputs, trees, leaves, share
        self.columns = NAMES * PIECES
        nodes = outputs * trees * self.nodes_of_tree
        self.register_buffer("column", torch.full((NAMES * SLOTS,), self.columns, dtype=torch.int32))
        self.register_buffer("asked", torch.full((nodes,), self.columns, dtype=torch.int32))
        self.register_buffer("following", torch.arange(nodes, dtype=torch.int32)[:, None].repeat(1, 2))
        self.register_buffer("value", torch.zeros(nodes))
        self.register_buffer("odds", torch.ones(outputs))
        self.task: Task | None = None

    @property
    def nodes_of_tree(self) -> int:
        return 2 * self.leaves - 1

    def of(self, output: int) -> slice:
        """The nodes of its trees."""
        size = self.trees * self.nodes_of_tree
        return slice(output * size, (output + 1) * size)

    def meet(self, names: Int[Tensor, "nodes names"], graph: Int[Tensor, "nodes"]) -> None:
        """Choose what can be asked for by the names in the training part, whose nodes belong to these graphs."""
        self.column.fill_(self.columns)
        for r, column in enumerate(self.column.view(NAMES, SLOTS)):
            kept = commonest(names[:, r], graph, PIECES, LEAST)
            column[kept % SLOTS] = torch.arange(len(kept), dtype=torch.int32) + r * PIECES

    def plant(
        self,
        tree: int,
        asked: Int[Tensor, "nodes"],
        absent: Int[Tensor, "nodes"],
        present: Int[Tensor, "nodes"],
        value: Float[Tensor, "nodes"],
    ) -> None:
        """Put a tree in its place: its nodes count from 0, the root, and -1 follows a leaf."""
        first, own, is_leaf = tree * self.nodes_of_tree, torch.arange(len(asked)), absent < 0
        place = slice(first, first + len(asked))
        self.asked[place] = torch.where(is_leaf, self.columns, asked).int()
        for way, following in enumerate((absent, present)):
            self.following[place, way] = (first + torch.where(is_leaf, own, following)).int()
        self.value[place] = value.float()

    def forward(self, graph: GraphBatch, said: Float[Tensor, "graphs outputs"]) -> Float[Tensor, "graphs outputs"]:
        """The answer of both, from that of the network."""
        if self.task is None:
            return said
        believed = self.task.belief(said)
        return self.task.said(believed + self.share * (self.belief(self.pieces(graph)) - believed))

    def pieces(self, graph: GraphBatch) -> UInt8[Tensor, "graphs columns"]:
        """1 where a graph has the piece of a column."""
        names = graph.encodings.get("fragments")
        names = fragments(graph, ROUNDS) if names is None else names
        place = names.long() % SLOTS + SLOTS * torch.arange(NAMES, device=names.device)
        width = self.columns + 1
        there = graph.graph_of_node[:, None] * width + self.column[place]
        found = torch.zeros(graph.num_graphs * width, dtype=torch.uint8, device=names.device)
        return found.index_fill(0, there.flatten().long(), 1).view(-1, width)

    def belief(self, pieces: UInt8[Tensor, "graphs columns"]) -> Float[Tensor, "graphs outputs"]:
        """The mean over the trees of each output, put back to how common a yes is."""
        graphs, device = pieces.shape[0], pieces.device
        pieces, following = pieces.T.flatten(), self.following.flatten()
        graph = torch.arange(graphs, dtype=torch.int32, device=device)
        root = torch.arange(self.outputs * self.trees, dtype=torch.int32, device=device) * self.nodes_of_tree
        at = root[:, None].expand(-1, graphs)  # tree by tree: a tree is small, and stays in the cache
        for _ in range(DEPTH):
            has = _at(pieces, _at(self.asked, at) * graphs + graph)
            at = _at(following, 2 * at + has)
        mean = _at(self.value, at).unflatten(0, (self.outputs, self.trees)).mean(dim=1).T
        return mean / (mean + self.odds * (1 - mean))


def _at(values: Shaped[Tensor, "n"], index: Int[Tensor, "*some"]) -> Shaped[Tensor, "*some"]:
    """``values[index]``, quicker where the index is of 32 bits."""
    return values.index_select(0, index.flatten()).view(index.shape)
