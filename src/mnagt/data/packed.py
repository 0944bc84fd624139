"""All graphs of a data set as a few flat tensors, and batches of them by index arithmetic."""

import ctypes
import mmap
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from mnagt.data.graph_rows import HostRows, rows_on_device
from mnagt.errors import InputError
from mnagt.graphs.batch import EDGE_COLUMNS, NODE_COLUMNS, GraphBatch, map_tensors
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.memory import free_memory
from mnagt.tasks import Task

WINDOW = 256
"""Blocks that are shuffled together."""
ENCODING = "encodings/"
"""Prefix of the names of encodings among the tensors of a file."""


@dataclass(frozen=True, eq=False, repr=False)
class PackedDataset:
    """Graphs end to end in flat tensors. There is no Python object per graph.

    Edges are sorted by (destination, source) within each graph. ``dataset.batch(indices)`` costs a handful of
    vectorised operations, whatever the number of graphs, on the device where the tensors are.

    >>> import torch
    >>> from mnagt import load_dataset
    >>> dataset = load_dataset("MUTAG")
    >>> dataset
    PackedDataset MUTAG: 188 graphs with 10 to 28 nodes, 3,371 nodes, 7,442 edges, 0.1 MB on cpu
      nodes: categories (7); edges: categories (4)
      task: single-label (-1, 1)
    >>> dataset.batch(torch.tensor([3, 14])).num_graphs
    2
    """

    name: str
    """What messages and model cards call it."""
    task: Task
    """What is predicted."""
    node_ptr: Int[Tensor, "graphs_and_end"]
    """Graph g owns the nodes ``node_ptr[g]:node_ptr[g + 1]``. On the CPU."""
    edge_ptr: Int[Tensor, "graphs_and_end"]
    """Graph g owns the edges ``edge_ptr[g]:edge_ptr[g + 1]``. On the CPU."""
    source: Int[Tensor, "edges"]
    """Where each edge comes from, counted from its graph's first node (int32)."""
    in_degree: Int[Tensor, "nodes"]
    """Edges into each node (int32)."""
    targets: Tensor
    """One row a graph, as the task has it."""
    is_symmetric: bool = True
    """Every edge of every graph runs both ways."""
    label_counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Categories of each column of ``node_labels`` and ``edge_labels``."""
    node_labels: Int[Tensor, "nodes _"] | None = None
    """Categorical node columns; -1 is 'none'."""
    node_values: Float[Tensor, "nodes _"] | None = None
    """Continuous node columns."""
    edge_labels: Int[Tensor, "edges _"] | None = None
    """Categorical edge columns, likewise."""
    edge_values: Float[Tensor, "edges _"] | None = None
    """Continuous edge columns."""
    edge_numbers: Int[Tensor, "edges"] | None = None
    """Where each edge stands in the source, where edges have targets (``with_bond_numbers``)."""
    encodings: Mapping[str, Shaped[Tensor, "nodes _"]] = field(default_factory=dict)
    """Structural encodings that were computed before, by name."""
    vocabularies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the categories, where the source gives any, by column: 'node_labels/0', ..."""
    official: Int[Tensor, "graphs"] | None = None
    """The part of each graph in the split that the data set brings: 0 train, 1 valid, 2 test, -1 none."""
    texts: UInt8[Tensor, "bytes"] | None = None
    """What each graph was made from, as UTF-8, a line each: its SMILES."""
    groups: Int[Tensor, "graphs"] | None = None
    """Graphs of the same number stay together in a split by groups; a split by time sorts the numbers."""
    same_as: Int[Tensor, "graphs"] | None = None
    """The first graph that is the same molecule as each, where the source was searched for duplicates."""
    row_weights: Float[Tensor, "graphs"] | None = None
    """How often each graph is drawn in training, relative to the others; the same for all where there are none."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the columns are called, where the source says, by kind: 'node_labels', ..."""
    block: int = 0
    """Graphs that lie together, and stay together when a data set larger than memory is shuffled; 0 for none."""

    def __len__(self) -> int:
        return len(self.node_ptr) - 1

    def __repr__(self) -> str:
        sizes, features = self.sizes, self.features
        nodes = f" with {int(sizes.min()):,} to {int(sizes.max()):,} nodes" if len(self) else ""
        counts = f"{int(self.node_ptr[-1]):,} nodes, {len(self.source):,} edges, {self.nbytes / 1e6:,.1f} MB"
        return (
            f"PackedDataset {self.name}: {len(self):,} graphs{nodes}, {counts} on {self.device}\n"
            f"  nodes: {features.nodes}; edges: {features.edges}\n"
            f"  task: {self.task.describe()}"
        )

    @cached_property
    def sizes(self) -> Int[Tensor, "graphs"]:
        """Nodes of each graph."""
        return self.node_ptr.diff()

    @cached_property
    def encoding_cache(self) -> dict[tuple[str, int], Shaped[Tensor, "nodes _"]]:
        """Encodings by name and size that were computed for these graphs (``with_encodings``)."""
        return {}

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self.targets.device

    @property
    def is_resident(self) -> bool:
        """Whether the graphs are on the device of the batches; otherwise each batch is sent there."""
        return self.source.device == self.device

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.nbytes for tensor in self.named_tensors.values())

    @property
    def named_tensors(self) -> dict[str, Tensor]:
        """The tensors by the names that they have in files: their fields, or ``ENCODING`` and the encoding."""
        tensors = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        return tensors | {ENCODING + name: encoding for name, encoding in self.encodings.items()}

    @cached_property
    def node_columns(self) -> dict[str, Any]:
        """Those of ``node_labels`` and ``node_values`` that there are."""
        return {name: column for name in NODE_COLUMNS if (column := getattr(self, name)) is not None}

    @cached_property
    def edge_columns(self) -> dict[str, Any]:
        """Those of ``EDGE_COLUMNS`` that there are."""
        return {name: column for name in EDGE_COLUMNS if (column := getattr(self, name)) is not None}

    @cached_property
    def features(self) -> Features:
        """The columns of nodes and edges."""
        nodes, edges = (
            Columns(self.label_counts.get(labels, ()), 0 if values is None else values.shape[1])
            for labels, values in (("node_labels", self.node_values), ("edge_labels", self.edge_values))
        )
        return Features(nodes, edges)

    def batch(self, indices: Int[Tensor, "batch"]) -> GraphBatch:
        """The graphs ``indices``, in that order, as one batch."""
        indices = torch.as_tensor(indices, dtype=torch.long).cpu()
        graphs = indices.numpy()
        if len(graphs) and graphs.view(np.uint64).max() >= len(self):  # numbers below zero read as huge ones
            raise InputError(f"{self.name} has graphs 0 to {len(self) - 1}; got {graphs.min()} to {graphs.max()}")
        nodes, edges = HostRows(self.node_ptr, graphs), HostRows(self.edge_ptr, graphs)
        sizes, node_ptr = torch.from_numpy(nodes.counts), torch.from_numpy(nodes.ptr)
        if self.source.device.type != "cpu":
            nodes, edges, node_ptr = rows_on_device(nodes, edges, self.device)
        columns: dict[str, Any] = {name: nodes.take(column) for name, column in self.node_columns.items()}
        columns |= {name: edges.take(column) for name, column in self.edge_columns.items()}
        batch = GraphBatch(
            sizes=sizes,
            node_ptr=node_ptr,
            in_ptr=nodes.take_ptr(self.in_degree),
            source=edges.take_shifted(self.source, node_ptr[:-1]),
            is_symmetric=self.is_symmetric,
            targets=self.targets.index_select(0, indices.to(self.device, non_blocking=True)),
            encodings={name: nodes.take(column) for name, column in self.encodings.items()},
            label_counts=self.label_counts,
            **columns,
        )
        return batch if self.is_resident else _send_batch(batch, self.device)

    def select(self, indices: Int[Tensor, "some"]) -> "PackedDataset":
        """The data set of the graphs ``indices``, in that order."""
        texts = self.texts
        if texts is not None:
            lines = texts.cpu().numpy().tobytes().split(b"\n")
            content = b"\n".join(lines[graph] for graph in indices.tolist())
            texts = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
        return PackedDataset.from_batch(
            self.name,
            self.task,
            self.batch(indices),
            label_counts=self.label_counts,
            vocabularies=self.vocabularies,
            columns=self.columns,
            texts=texts,
            official=None if self.official is None else self.official[indices],
            groups=None if self.groups is None else self.groups[indices],
            same_as=None if self.same_as is None else _renumber_first(self.same_as[indices]),
            row_weights=None if self.row_weights is None else self.row_weights[indices],
        )

    def select_encoding(
        self, name: str, some: Int[Tensor, "some"]
    ) -> tuple[Shaped[Tensor, "nodes _"], Int[Tensor, "nodes"]]:
        """The rows of an encoding for the nodes of the graphs ``some``, and the graph of each node."""
        graph = torch.repeat_interleave(torch.arange(len(self)), self.node_ptr.diff())
        is_meant = torch.zeros(len(self), dtype=torch.bool).index_fill_(0, some, True)[graph]
        return self.encodings[name][is_meant], graph[is_meant]

    def batches(
        self, indices: Int[Tensor, "some"], batch_size: int, generator: torch.Generator | None = None, start: int = 0
    ) -> Iterator[tuple[Int[Tensor, "batch"], GraphBatch]]:
        """``indices`` in batches, each with the graphs it holds."""
        for graphs in self.batch_indices(indices, batch_size, generator, start):
            yield graphs, self.batch(graphs)

    def batch_indices(
        self, indices: Int[Tensor, "some"], batch_size: int, generator: torch.Generator | None = None, start: int = 0
    ) -> Iterator[Int[Tensor, "batch"]]:
        """The graphs of each batch.

        With a ``generator`` the graphs are drawn by their ``row_weights``, if there are any, and shuffled; without one
        they are sorted by size, so that a batch has graphs of similar size. Within a batch graphs are always sorted by
        size, which attention buckets need. The first ``start`` batches are skipped.

        A data set of blocks is read in windows of ``WINDOW`` blocks: random ones, or without a generator neighbouring
        ones. Within a window the order is as above. The next window is prefetched.
        """
        sizes, order = self.sizes.numpy(), indices.cpu().numpy()
        starts, coming = np.zeros(1, np.int64), []
        if generator is None:
            order = order[sizes[order].argsort(kind="stable")]
        else:
            if self.row_weights is not None:
                order = order[draw_evenly(self.row_weights[indices].cpu(), generator).numpy()]
            order = order[torch.randperm(len(order), generator=generator).numpy()]
        if self.block:
            block = order // self.block
            if generator is not None:
                block = torch.randperm(len(self) // self.block + 1, generator=generator).numpy()[block]
            window = block // WINDOW
            by_window = window.argsort(kind="stable")
            order, starts = order[by_window], np.flatnonzero(np.diff(window[by_window], prepend=-1))
            coming = np.split(order, starts[1:])
        for at in range(start * batch_size, len(order), batch_size):
            while coming and at >= starts[max(0, len(starts) - len(coming) - 1)]:
                self._prefetch(coming.pop(0))
            chunk = order[at : at + batch_size]
            yield torch.from_numpy(chunk[sizes[chunk].argsort(kind="stable")])

    def _prefetch(self, graphs: np.ndarray) -> None:
        """Ask the system to read the blocks of these graphs from disk."""
        blocks = np.unique(graphs // self.block)
        ends = np.flatnonzero(np.diff(blocks, prepend=-2, append=len(self) + 1) > 1)
        for first, last in zip(blocks[ends[:-1]].tolist(), blocks[ends[1:] - 1].tolist(), strict=True):
            run = [first * self.block, min((last + 1) * self.block, len(self))]
            for columns, ptr in (
                ((self.in_degree, *self.node_columns.values(), *self.encodings.values()), self.node_ptr),
                ((self.source, *self.edge_columns.values()), self.edge_ptr),
            ):
                rows = ptr[run].tolist()
                for column in columns:
                    if column.device.type == "cpu":
                        prefetch_rows(column, *rows)

    def to(self, device: torch.device | str, *, resident: bool | None = None) -> "PackedDataset":
        """The same data set with its flat tensors on ``device``; the pointers stay on the CPU.

        If not ``resident`` only the targets go there, and each batch is sent when it is made. The default is resident
        unless the data set takes more than half of the free memory of a GPU.
        """
        device = torch.device(device)
        if resident is None:
            resident = device.type != "cuda" or self.nbytes <= free_memory(device) // 2
        if not resident:
            return replace(self, targets=self.targets.to(device))
        return map_tensors(self, lambda tensor: tensor.to(device), except_for=("node_ptr", "edge_ptr"))

    @classmethod
    def from_batch(
        cls,
        name: str,
        task: Task,
        batch: GraphBatch,
        *,
        label_counts: Mapping[str, tuple[int, ...]] | None = None,
        **others: Any,
    ) -> "PackedDataset":
        """The graphs of ``batch``, and ``others`` of the fields that it lacks.

        ``label_counts`` are those of its labels if they are not given.
        """
        if batch.targets is None or len(batch.targets) != batch.num_graphs:
            has = "no" if batch.targets is None else len(batch.targets)
            raise InputError(f"{name}: {has} targets for {batch.num_graphs} graphs; give one a graph")
        counts = _label_counts(name, batch, dict(label_counts or {}))
        columns = {each: getattr(batch, each) for each in (*NODE_COLUMNS, *EDGE_COLUMNS)}
        for kind in ("node_values", "edge_values"):
            if columns[kind] is not None and not columns[kind].isfinite().all():
                raise InputError(f"{name}: {kind} holds values that are not finite; fill in or remove them")
        first = batch.node_ptr[:-1][batch.graph_of_node]
        return cls(
            name=name,
            task=task,
            node_ptr=batch.node_ptr.cpu(),
            edge_ptr=batch.in_ptr[batch.node_ptr].long().cpu(),
            source=(batch.source - first[batch.destination]).int(),
            in_degree=batch.in_degree.int(),
            targets=batch.targets,
            is_symmetric=batch.is_symmetric,
            label_counts=counts,
            encodings=batch.encodings,
            **columns,
            **others,
        )


def _label_counts(name: str, batch: GraphBatch, given: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The number of categories of each column: as given, or else found; an error where a label exceeds it."""
    for kind in ("node_labels", "edge_labels"):
        labels = getattr(batch, kind)
        if labels is None:
            continue
        if labels.numel() and int(labels.min()) < -1:
            raise InputError(f"{name}: {kind} holds {int(labels.min())}; categories count from 0, and -1 is none")
        counted = tuple(int(column.max()) + 1 if len(column) else 0 for column in labels.unbind(dim=1))
        counts = given.setdefault(kind, counted)
        if len(counts) != len(counted) or any(f > c for f, c in zip(counted, counts, strict=True)):
            raise InputError(f"{name}: {kind} has {counted} categories, and label_counts says {counts}")
    return given


def draw_evenly(weights: Float[Tensor, "some"], generator: torch.Generator) -> Int[Tensor, "some"]:
    """As many indices as there are weights, each as often as its share of all says, rounded up or down at random.

    >>> draw_evenly(torch.tensor([1.0, 1.0, 4.0]), torch.Generator()).tolist().count(2)
    2
    """
    ends = weights.double().cumsum(dim=0) * len(weights) / weights.double().sum()
    points = torch.arange(len(weights)) + torch.rand(1, generator=generator, dtype=torch.double)
    return torch.searchsorted(ends, points, right=True).clamp(max=len(weights) - 1)


def _renumber_first(same_as: Int[Tensor, "some"]) -> Int[Tensor, "some"]:
    """The index of the first entry equal to each."""
    _, first, inverse = np.unique(same_as.cpu().numpy(), return_index=True, return_inverse=True)
    return torch.from_numpy(first[inverse])


def _send_batch(batch: GraphBatch, device: torch.device) -> GraphBatch:
    """The batch on ``device``, but for its sizes; to a GPU from memory that it can read while others work."""

    def send(tensor: Tensor) -> Tensor:
        if device.type == "cuda" and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    return map_tensors(batch, send, except_for=("sizes",))


def prefetch_rows(column: Tensor, first: int, last: int) -> None:
    """Have the system bring in these rows of a column that may be mapped from a file, and do not wait for it."""
    advise = _madvise()
    if advise is None or first >= last or not column.numel():
        return
    row = column.stride(0) * column.element_size()
    start, end = column.data_ptr() + first * row, column.data_ptr() + last * row
    start -= start % mmap.PAGESIZE
    advise(start, end - start, mmap.MADV_WILLNEED)


@cache
def _madvise() -> Any:
    """The system's call; None where there is none such."""
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return call
