r"""The normalised adjacency :math:`\hat A` and the step :math:`\hat A X`."""

from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch

Norm = Literal["sym", "row"]


def propagate(x: Float[Tensor, "nodes dim"], graph: GraphBatch, norm: Norm = "sym") -> Float[Tensor, "nodes dim"]:
    r"""One hop, :math:`\hat A X`, with :math:`\tilde A = A + I` and :math:`D` its row sums (paper, section 3.1).

    .. math:: \hat A = D^{-1/2} \tilde A D^{-1/2} \text{ (sym)}, \qquad \hat A = D^{-1} \tilde A \text{ (row)}

    :math:`D` scales nodes, not edges, so no edge weight is ever written down.

    Args:
        x: [nodes, dim].
        graph: the batch.
        norm: 'sym' or 'row'.

    >>> import torch
    >>> graph = GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])
    >>> propagate(torch.tensor([[1.0], [3.0], [5.0]]), graph, "row").tolist()
    [[2.0], [2.0], [5.0]]
    """
    if norm not in get_args(Norm):
        raise InputError(f"norm must be 'sym' or 'row', got {norm!r}")
    if norm == "row":
        return graph.neighbours.product(x, with_self=True, after=graph.inv_sqrt_degree.square())
    return graph.neighbours.product(x, with_self=True, before=graph.inv_sqrt_degree, after=graph.inv_sqrt_degree)
