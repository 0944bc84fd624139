"""Graphs of like size side by side: the layout in which dense attention wastes next to nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mnagt.graphs.sparse import ptr_from_counts, ragged_arange


@dataclass(frozen=True, eq=False)
class Bucket:
    """``graphs`` graphs, each in ``width`` slots."""

    graphs: int
    width: int
    is_node: Bool[Tensor, "graphs width"] | None
    """Where a slot holds a node; None where all do."""

    @property
    def slots(self) -> int:
        return self.graphs * self.width


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows copied to slots. Empty slots repeat a row; attention masks them."""

    row_of_slot: Int[Tensor, "slots"]
    slot_of_row: Int[Tensor, "rows"]
    is_identity: bool
    """Rows and slots are the same, in the same order."""

    def pad(self, rows: Shaped[Tensor, "rows ..."]) -> Shaped[Tensor, "slots ..."]:
        """Each row in its slot. Only gradients of filled slots flow back."""
        return rows if self.is_identity else _Pad.apply(rows, self)  # type: ignore[return-value]

    def unpad(self, slots: Float[Tensor, "slots ..."]) -> Float[Tensor, "rows ..."]:
        """Each slot's content back in its row; empty slots get a gradient of zero."""
        return slots if self.is_identity else _Unpad.apply(slots, self)  # type: ignore[return-value]

    def to(self, device: torch.device) -> "Layout":
        row_of_slot, slot_of_row = (t.to(device, non_blocking=True) for t in (self.row_of_slot, self.slot_of_row))
        return replace(self, row_of_slot=row_of_slot, slot_of_row=slot_of_row)


@dataclass(frozen=True, eq=False)
class Buckets:
    """The buckets of a batch, smallest graphs first, and how nodes and pairs of nodes are laid out in them."""

    groups: tuple[Bucket, ...]
    nodes: Layout
    graphs: Int[Tensor, "filled"]
    """The graphs that have nodes, in bucket order. On the CPU."""
    sizes: Int[Tensor, "graphs"]
    """Nodes of each graph of the batch. On the CPU."""

    @classmethod
    def plan(cls, sizes: Int[Tensor, "graphs"], *, step: int = 1) -> "Buckets":
        """Buckets for graphs of the given sizes, widths rounded up to a multiple of ``step``.

        With ``step`` 1 only graphs of equal size share a bucket: no padding and no mask, which is fastest on a
        CPU; a GPU prefers fewer, wider buckets.
        """
        if len(sizes) == 1 and step == 1:
            return cls._of_one(sizes)
        width = (sizes + step - 1) // step * step
        order = width.argsort(stable=True)
        order = order[sizes[order] > 0]
        widths, counts = width[order].unique_consecutive(return_counts=True)
        groups, start = [], 0
        for w, n in zip(widths.tolist(), counts.tolist(), strict=True):
            is_node = torch.arange(w) < sizes[order[start : start + n], None]
            groups.append(Bucket(n, w, None if bool(is_node.all()) else is_node))
            start += n
        return cls(tuple(groups), _layout(sizes, width, order), order, sizes)

    @classmethod
    def _of_one(cls, sizes: Int[Tensor, "1"]) -> "Buckets":
        """The plan of a single graph: nothing to sort."""
        nodes = int(sizes)
        node = torch.arange(nodes)
        groups = (Bucket(1, nodes, None),) if nodes else ()
        return cls(groups, Layout(node, node, True), torch.arange(len(groups)), sizes)

    def pairs(self) -> Layout:
        """How pairs of nodes, in the order of ``GraphBatch.pair_ptr``, lie in ``graphs x width x width`` slots."""
        slots, pair_ptr = [], ptr_from_counts(self.sizes**2)
        start = 0
        for group in self.groups:
            graph = self.graphs[start : start + group.graphs]
            n = self.sizes[graph][:, None, None]
            i = torch.arange(group.width).minimum(n - 1)
            slots.append((pair_ptr[graph][:, None, None] + i.transpose(1, 2) * n + i).flatten())
            start += group.graphs
        row_of_slot = torch.cat(slots) if slots else torch.zeros(0, dtype=torch.long)
        return _layout_from_rows(row_of_slot, int(pair_ptr[-1]))

    def to(self, device: torch.device) -> "Buckets":
        if device.type == "cpu":
            return self
        groups = tuple(
            replace(g, is_node=None if g.is_node is None else g.is_node.to(device, non_blocking=True))
            for g in self.groups
        )
        return replace(self, groups=groups, nodes=self.nodes.to(device))


def split_slots(
    slots: Shaped[Tensor, "slots ..."], groups: Sequence[Bucket], *, axes: int = 1
) -> list[Shaped[Tensor, "graphs width ..."]]:
    """``slots`` bucket by bucket: graphs x width x ..., with two ``axes`` graphs x width x width x ..."""
    shapes = [(group.graphs, *[group.width] * axes) for group in groups]
    parts = slots.split([prod(shape) for shape in shapes])
    return [part.reshape(*shape, *slots.shape[1:]) for shape, part in zip(shapes, parts, strict=True)]


def _layout(sizes: Tensor, width: Tensor, order: Tensor) -> Layout:
    """Nodes of the graphs in ``order``, each graph in its ``width`` slots."""
    start = (sizes.cumsum(0) - sizes)[order]
    wide, n = width[order], sizes[order]
    total = int(wide.sum())
    slot = ragged_arange(torch.zeros_like(wide), wide, total)
    row_of_slot = torch.repeat_interleave(start, wide, output_size=total) + slot.minimum(
        torch.repeat_interleave(n - 1, wide, output_size=total)
    )
    return _layout_from_rows(row_of_slot, int(sizes.sum()))


def _layout_from_rows(row_of_slot: Tensor, rows: int) -> Layout:
    """The layout with these rows; of the slots that repeat a row, the first is the one that holds it."""
    slots = len(row_of_slot)
    slot_of_row = torch.full((rows,), slots).scatter_reduce(0, row_of_slot, torch.arange(slots), "amin")
    return Layout(row_of_slot, slot_of_row, slots == rows and torch.equal(row_of_slot, torch.arange(rows)))


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return rows.index_select(0, layout.row_of_slot)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.unpad(grads[0]), None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, slots: Tensor, layout: Layout) -> Tensor:
        ctx.layout, ctx.slots = layout, slots.shape[0]
        return slots.index_select(0, layout.slot_of_row)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        empty = grad.new_zeros(ctx.slots, *grad.shape[1:])
        return empty.index_copy(0, ctx.layout.slot_of_row, grad), None
