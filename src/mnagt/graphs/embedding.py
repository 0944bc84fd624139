"""Rows of a table, picked by number."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.graphs.sparse import Incidence, take
from mnagt.ops import autocast_type
from mnagt.ops.functional import linear

SMALL = 256
"""Rows of a table up to which a GPU multiplies by a 0/1 matrix."""


def look_up(table: Float[Tensor, "rows dim"], index: Int[Tensor, "some"]) -> Float[Tensor, "some dim"]:
    """``table[index]``. On a GPU, torch would add up gradients of equal rows in any order: not twice the same."""
    if table.device.type == "cpu":
        return F.embedding(index, table)
    if len(table) <= SMALL:
        return look_up_sum(table, index[:, None])
    ends = torch.arange(len(index) + 1, device=index.device)
    return take(Incidence(index.long(), ends, len(table)), table)


def look_up_sum(table: Float[Tensor, "rows dim"], index: Int[Tensor, "some columns"]) -> Float[Tensor, "some dim"]:
    """``table[index].sum(dim=1)``, where no row is asked for twice in a line."""
    if table.device.type == "cpu" or len(table) > SMALL:
        return look_up(table, index.flatten()).unflatten(0, index.shape).sum(dim=1)
    is_row = torch.zeros(len(index), len(table), device=index.device, dtype=autocast_type(index.device) or table.dtype)
    return linear(is_row.scatter_(1, index.long(), 1.0), table.T)
