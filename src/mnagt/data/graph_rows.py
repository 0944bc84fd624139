"""The rows that some graphs have in the flat columns of a data set, laid end to end."""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.graphs.sparse import ptr_from_counts, ragged_arange

LONG_GRAPH = 1024
"""Edges a graph, on average, from which copying graph by graph is faster than picking edge by edge."""


class HostRows:
    """The rows of some graphs in flat columns on the CPU, laid end to end.

    NumPy does the work: a batch is so little of it that the cost of calling torch would show.
    """

    def __init__(self, ptr: Int[Tensor, "all_graphs_and_end"], graphs: np.ndarray) -> None:
        ends = ptr.numpy()
        self.first = ends[graphs]
        self.counts = ends[graphs + 1] - self.first
        self.ptr = _ptr_from_counts(self.counts)

    @cached_property
    def index(self) -> np.ndarray:
        index = np.repeat(self.first - self.ptr[:-1], self.counts)
        index += np.arange(len(index))
        return index

    def take(self, column: Tensor) -> Tensor:
        return torch.from_numpy(column.numpy().take(self.index, axis=0))

    def take_ptr(self, counts: Int[Tensor, "all"]) -> Int[Tensor, "some_and_end"]:
        return torch.from_numpy(_ptr_from_counts(counts.numpy().take(self.index), np.int32))

    def take_shifted(self, column: Int[Tensor, "all"], by: Int[Tensor, "graphs"]) -> Int[Tensor, "some"]:
        """The rows of ``column``, those of each graph plus its number in ``by`` (int32)."""
        rows, total = column.numpy(), int(self.ptr[-1])
        if total < LONG_GRAPH * len(by):
            shifted = np.repeat(by.numpy().astype(np.int32), self.counts)
            shifted += rows.take(self.index)
        else:
            shifted = np.empty(total, dtype=np.int32)
            ends = self.first + self.counts
            each = (self.first, ends, self.ptr[:-1], self.ptr[1:], by.numpy())
            for first, last, start, end, number in zip(*(part.tolist() for part in each), strict=True):
                np.add(rows[first:last], number, out=shifted[start:end])
        return torch.from_numpy(shifted)


def _ptr_from_counts(counts: np.ndarray, dtype: type = np.int64) -> np.ndarray:
    ptr = np.zeros(len(counts) + 1, dtype=dtype)
    np.cumsum(counts, out=ptr[1:])
    return ptr


class DeviceRows:
    """The same of columns on a GPU, where the index of rows is made."""

    def __init__(self, first: Int[Tensor, "graphs"], counts: Int[Tensor, "graphs"], total: int) -> None:
        self.counts, self.total = counts, total
        self.index = ragged_arange(first, counts, total)

    def take(self, column: Tensor) -> Tensor:
        return column.index_select(0, self.index)

    def take_ptr(self, counts: Int[Tensor, "all"]) -> Int[Tensor, "some_and_end"]:
        return ptr_from_counts(self.take(counts)).int()

    def take_shifted(self, column: Int[Tensor, "all"], by: Int[Tensor, "graphs"]) -> Int[Tensor, "some"]:
        return self.take(column) + torch.repeat_interleave(by.int(), self.counts, output_size=self.total)


def rows_on_device(
    nodes: HostRows, edges: HostRows, device: torch.device
) -> tuple[DeviceRows, DeviceRows, Int[Tensor, "graphs_and_end"]]:
    """The rows of nodes and edges, and the node pointer, on ``device``: one transfer of a few numbers a graph."""
    small = [nodes.first, nodes.counts, edges.first, edges.counts, nodes.ptr]
    together = torch.from_numpy(np.concatenate(small)).to(device, non_blocking=True)
    first_node, sizes, first_edge, edge_counts, node_ptr = together.split([len(part) for part in small])
    node_rows = DeviceRows(first_node, sizes, int(nodes.ptr[-1]))
    return node_rows, DeviceRows(first_edge, edge_counts, int(edges.ptr[-1])), node_ptr
