"""Rows of a table, picked by number."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.graphs.sparse import Incidence, take
from mnagt.linear import linear

SMALL = 256
"""Rows of a table up to which a GPU multiplies by a 0/1 matrix."""


def look_up(table: Float[Tensor, "rows dim"], index: Int[Tensor, "some"]) -> Float[Tensor, "some dim"]:
    """``table[index]``. On a GPU, torch would add up gradients of equal rows in any order: not twice the same."""
    if table.device.type == "cpu":
        return F.embedding(index, table)
    if len(table) <= SMALL:
        is_row = index[:, None] == torch.arange(len(table), device=index.device)
        return linear(is_row.to(table.dtype), table.T)
    ends = torch.arange(len(index) + 1, device=index.device)
    return take(Incidence(index.long(), ends, len(table)), table)
