"""A batch of graphs as flat tensors: the one shape in which graphs travel through the library."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.buckets import Buckets, Layout
from mnagt.graphs.edges import sort_edges
from mnagt.graphs.features import Columns
from mnagt.graphs.memory import format_bytes, free_memory
from mnagt.graphs.sparse import Incidence, ptr_from_counts, ptr_from_index

Result = TypeVar("Result")
NODE_COLUMNS, EDGE_COLUMNS = ("node_labels", "node_values"), ("edge_labels", "edge_values", "edge_numbers")
CHECKED_FROM = 2**28
"""Bytes from which ``check_memory_for_pairs`` compares with the free memory."""


class Padding(NamedTuple):
    """How many graphs, nodes and edges of a batch of fixed shape are valid; they come first, padding after them."""

    graphs: Int[Tensor, ""]
    """The counts are tensors on the batch's device, so that reading them needs no synchronisation."""
    nodes: Int[Tensor, ""]
    edges: Int[Tensor, ""]
    max_num_nodes: int
    """An upper bound on the nodes of a graph."""


class _Structural(cached_property):
    """A cached property that follows from the structure: copies with other columns (``with_edge_attr``) share it."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        shared = instance._shared
        if self.attrname not in shared:
            shared[self.attrname] = self.func(instance)
        value = instance.__dict__[self.attrname] = shared[self.attrname]
        return value


structural_property = cached_property if TYPE_CHECKING else _Structural


@dataclass(frozen=True, eq=False, repr=False)
class GraphBatch:
    """A disjoint union of graphs. Node indices run over the whole batch; edges are sorted by destination.

    Edges are stored as each node's in-neighbours (CSR). What follows from the fields (degrees, sparse matrices, the
    layout of attention) is computed at first use and shared by all layers.

    >>> import torch
    >>> from mnagt import load_dataset
    >>> batch = load_dataset("MUTAG").batch(torch.tensor([0, 1]))
    >>> batch
    GraphBatch: 2 graphs, 30 nodes, 66 edges, on cpu
      node_labels [30, 1], edge_labels [66, 1], targets [2]
      every edge runs both ways
    """

    sizes: Int[Tensor, "graphs"]
    """Nodes of each graph; on the CPU, to be read without waiting. Of a batch of fixed shape on a GPU, on 'meta'."""
    node_ptr: Int[Tensor, "graphs_and_end"]
    """Graph g owns the nodes ``node_ptr[g]:node_ptr[g + 1]``."""
    in_ptr: Int[Tensor, "nodes_and_end"]
    """The edges into node v are ``in_ptr[v]:in_ptr[v + 1]``. With ``source``, the bulk of a batch: both int32."""
    source: Int[Tensor, "edges"]
    """Where each edge comes from (int32)."""
    is_symmetric: bool
    """Every edge runs both ways."""
    node_labels: Int[Tensor, "nodes _"] | None = None
    """Categorical node columns; -1 is 'none'."""
    node_values: Float[Tensor, "nodes _"] | None = None
    """Continuous node columns."""
    edge_labels: Int[Tensor, "edges _"] | None = None
    """Categorical edge columns, likewise."""
    edge_values: Float[Tensor, "edges _"] | None = None
    """Continuous edge columns."""
    edge_numbers: Int[Tensor, "edges"] | None = None
    """The place of each edge among those of its graph in the source, both directions alike."""
    targets: Tensor | None = None
    """One row a graph."""
    encodings: Mapping[str, Shaped[Tensor, "nodes _"]] = field(default_factory=dict)
    """Structural encodings that were computed before, by name."""
    padding: Padding | None = None
    """Set in a batch of fixed shape (``data/padded_batches.py``), whose last graphs are padding."""
    label_counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Categories of each column of labels, at most, where known: a model compares them without waiting for a GPU."""
    edge_order: Int[Tensor, "edges"] | None = field(default=None, init=False, repr=False)
    """Where each edge stood in the ``edge_index`` that the batch was made from (int32), for ``with_edge_attr``."""
    _shared: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """What follows from the structure, by name."""

    def __repr__(self) -> str:
        columns = {name: getattr(self, name) for name in (*NODE_COLUMNS, *EDGE_COLUMNS, "targets")} | {**self.encodings}
        shapes = ", ".join(f"{name} {list(column.shape)}" for name, column in columns.items() if column is not None)
        counts = f"{self.num_graphs:,} graphs, {self.num_nodes:,} nodes, {self.num_edges:,} edges, on {self.device}"
        ways = "every edge runs both ways" if self.is_symmetric else "some edges run one way"
        return f"GraphBatch: {counts}\n  {shapes or 'no columns'}\n  {ways}"

    @classmethod
    def from_edges(
        cls,
        edge_index: Int[Tensor, "2 edges"],
        sizes: list[int] | Int[Tensor, "graphs"] | None = None,
        *,
        batch: Int[Tensor, "nodes"] | None = None,
        num_graphs: int | None = None,
        node_labels: Int[Tensor, "nodes _"] | None = None,
        node_values: Float[Tensor, "nodes _"] | None = None,
        edge_labels: Int[Tensor, "edges _"] | None = None,
        edge_values: Float[Tensor, "edges _"] | None = None,
        targets: Tensor | None = None,
    ) -> "GraphBatch":
        """A batch from (source, destination) pairs in any order.

        Args:
            edge_index: source and destination of each edge; nodes are counted through all graphs.
            sizes: nodes of each graph.
            batch: the graph of each node in ascending order, as PyTorch Geometric has it, in place of ``sizes``. A
                number that is left out is a graph without nodes.
            num_graphs: how many graphs ``batch`` is of, where the last have no nodes.
            node_labels: categorical node columns, from 0; -1 is none. Likewise ``edge_labels``.
            node_values: continuous node columns. Likewise ``edge_values``.
            targets: one row a graph. All is checked, with one transfer if ``edge_index`` is on a GPU.

        >>> edge_index = torch.tensor([[0, 1, 2], [1, 0, 3]])
        >>> GraphBatch.from_edges(edge_index, batch=torch.tensor([0, 0, 1, 1])).sizes
        tensor([2, 2])
        """
        if (sizes is None) == (batch is None):
            raise InputError("from_edges takes sizes, the nodes of each graph, or batch, the graph of each node")
        if sizes is not None:
            sizes = torch.as_tensor(sizes, dtype=torch.long).cpu()
        labels = {"node_labels": node_labels, "edge_labels": edge_labels}
        edges = sort_edges(edge_index, sizes, batch, num_graphs, labels)
        nodes = int(edges.sizes.sum())
        columns = {"node_labels": node_labels, "node_values": node_values, "edge_labels": edge_labels}
        for name, column in (columns | {"edge_values": edge_values}).items():
            rows = nodes if name.startswith("node") else edge_index.shape[1]
            if column is not None and len(column) != rows:
                raise InputError(f"{name} has {len(column)} rows for {rows} {name[:4]}s; give one row a {name[:4]}")
        made = cls(
            sizes=edges.sizes,
            node_ptr=ptr_from_counts(edges.sizes).to(edge_index.device),
            in_ptr=ptr_from_index(edges.destination, nodes).int(),
            source=edges.source.int(),
            is_symmetric=edges.is_symmetric,
            node_labels=node_labels,
            node_values=node_values,
            edge_labels=None if edge_labels is None else edge_labels[edges.order],
            edge_values=None if edge_values is None else edge_values[edges.order],
            targets=targets,
            label_counts=edges.label_counts,
        )
        object.__setattr__(made, "edge_order", edges.order.int())
        return made

    def with_edge_attr(self, edge_attr: Shaped[Tensor, "some_edges *columns"]) -> "GraphBatch":
        """The same graphs with these edge columns, in the order of the edges that ``from_edges`` was given.

        Integers become ``edge_labels``, other numbers ``edge_values``. What was computed of the structure is shared.

        >>> graph = GraphBatch.from_edges(torch.tensor([[1, 0], [0, 1]]), [2])
        >>> graph.with_edge_attr(torch.tensor([[1.0], [2.0]])).edge_values
        tensor([[1.],
                [2.]])
        """
        if edge_attr.shape[0] != self.num_edges:
            raise InputError(f"edge_attr has {len(edge_attr)} rows for {self.num_edges} edges; give one row an edge")
        edge_attr = edge_attr[:, None] if edge_attr.dim() == 1 else edge_attr
        columns = edge_attr if self.edge_order is None else self._edge_layout.pad(edge_attr)
        is_values, view = edge_attr.is_floating_point(), copy.copy(self)
        counts = {kind: count for kind, count in self.label_counts.items() if kind != "edge_labels"}
        changed = {"edge_labels": None if is_values else columns, "edge_values": columns if is_values else None}
        for name, value in (changed | {"label_counts": counts}).items():
            object.__setattr__(view, name, value)
        view.__dict__.pop("cache", None)  # which may hold what follows from edge columns
        return view

    @structural_property
    def _edge_layout(self) -> Layout:
        """From the edges as they were given to those of the batch."""
        assert self.edge_order is not None
        return Layout(self.edge_order, self.edge_order.argsort(), is_identity=False)

    @cached_property
    def cache(self) -> dict[tuple, Any]:
        """What ``cached_per_batch`` keeps."""
        return {}

    @property
    def num_graphs(self) -> int:
        return self.sizes.shape[0]

    @property
    def num_nodes(self) -> int:
        return self.in_ptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        return self.source.shape[0]

    @property
    def device(self) -> torch.device:
        return self.source.device

    @structural_property
    def max_num_nodes(self) -> int:
        """Nodes of the largest graph, or a bound."""
        if self.padding is not None:
            return self.padding.max_num_nodes
        return int(self.sizes.max()) if len(self.sizes) else 0

    def num_valid(self, rows: Literal["graphs", "nodes", "edges"]) -> Int[Tensor, ""] | None:
        """How many graphs, nodes or edges, from the first, are no padding; None where all are."""
        return None if self.padding is None else getattr(self.padding, rows)

    @structural_property
    def in_degree(self) -> Int[Tensor, "nodes"]:
        """Edges into each node."""
        return self.in_ptr.diff()

    @structural_property
    def inv_sqrt_degree(self) -> Float[Tensor, "nodes"]:
        """``(in_degree + 1) ** -0.5``, the scale of the symmetric normalisation with self loops.

        In double precision on a CPU; in single on a GPU, where it is read for every edge.
        """
        root = (self.in_degree + 1).double().rsqrt()
        return root if self.device.type == "cpu" else root.float()

    @structural_property
    def graph_of_node(self) -> Int[Tensor, "nodes"]:
        return torch.repeat_interleave(self.node_ptr.diff(), output_size=self.num_nodes)

    @structural_property
    def destination(self) -> Int[Tensor, "edges"]:
        return torch.repeat_interleave(self.in_degree, output_size=self.num_edges)

    @structural_property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """(source, destination) of each edge, as PyTorch Geometric has it."""
        return torch.stack([self.source.long(), self.destination])

    @structural_property
    def neighbours(self) -> Incidence:
        """The adjacency matrix: row v holds the nodes with an edge into v."""
        return Incidence(self.source, self.in_ptr, self.num_nodes, is_symmetric=self.is_symmetric)

    @structural_property
    def edges_into(self) -> Incidence:
        """Row v holds the edges into node v."""
        ends = Incidence(self.destination.to(self.source.dtype), self._arange(self.num_edges + 1), self.num_nodes)
        return Incidence(self._arange(self.num_edges), self.in_ptr, self.num_edges, transposed=ends)

    @structural_property
    def edge_sources(self) -> Incidence:
        """Row e holds the node that edge e comes from."""
        return Incidence(self.source, self._arange(self.num_edges + 1), self.num_nodes)

    def _arange(self, number: int) -> Int[Tensor, "number"]:
        """``torch.arange`` on the batch's device, with the dtype of ``source``."""
        return torch.arange(number, device=self.device, dtype=self.source.dtype)

    @structural_property
    def nodes_of(self) -> Incidence:
        """Row g holds the nodes of graph g."""
        nodes = torch.arange(self.num_nodes + 1, device=self.device)
        transposed = Incidence(self.graph_of_node, nodes, self.num_graphs)
        return Incidence(nodes[:-1], self.node_ptr, self.num_nodes, transposed=transposed)

    @structural_property
    def graph_of(self) -> Incidence:
        """Row v holds the graph that node v belongs to."""
        nodes = torch.arange(self.num_nodes + 1, device=self.device)
        transposed = Incidence(nodes[:-1], self.node_ptr, self.num_nodes)
        return Incidence(self.graph_of_node, nodes, self.num_graphs, transposed=transposed)

    @structural_property
    def pair_ptr(self) -> Int[Tensor, "graphs_and_end"]:
        """The pairs (i, j) of graph g are ``pair_ptr[g]:pair_ptr[g + 1]``, j running fastest. On the CPU.

        Raises ``InputError`` where not even one number for each pair fits into memory.
        """
        self.check_memory_for_pairs(4)
        return ptr_from_counts(self.sizes**2)

    def check_memory_for_pairs(self, each: int) -> None:
        """Raise ``InputError`` if ``each`` bytes for every pair of nodes do not fit into the free memory."""
        need = each * int((self.sizes**2).sum())
        if need < CHECKED_FROM or need <= (free := free_memory(self.device)):
            return
        graph, nodes = int(self.sizes.argmax()), int(self.sizes.max())
        raise InputError(
            f"graph {graph} of a batch of {self.num_graphs} has {nodes:,} nodes; this model's terms for pairs of "
            f"nodes need {format_bytes(each * nodes**2)} for that graph and {format_bytes(need)} for the batch, and "
            f"{format_bytes(free)} are free on {self.device}: take smaller batches, leave the graph out, or take a "
            "model without terms for pairs (mnagt, gps, sat)"
        )

    @structural_property
    def buckets(self) -> Buckets:
        """Graphs of similar size, padded to a common width for dense attention."""
        return Buckets.plan(self.sizes, step=1 if self.device.type == "cpu" else 64).to(self.device)

    @structural_property
    def small_buckets(self) -> Buckets:
        """Those of ``attention/cpu_small.py``, wider by up to three slots where nodes are copied anyway.

        Fewer products with some padding take up to 30 % less time (docs/log.md).
        """
        is_sorted = bool((self.sizes.diff() >= 0).all())
        return self.buckets if is_sorted else Buckets.plan(self.sizes, step=4)

    @structural_property
    def pair_layout(self) -> Layout:
        """How pairs of nodes lie in the buckets."""
        return self.buckets.pairs().to(self.device)

    @structural_property
    def attention_tiles(self) -> Int[Tensor, "tiles _"]:
        """The tiles that the Triton attention kernels work on."""
        from mnagt.ops.attention import tile_list

        return tile_list(self.node_ptr, self.num_nodes)

    def describe_missing_columns(self, kind: str, columns: Columns) -> str | None:
        """A message on the columns of ``kind`` ('node' or 'edge') that this batch lacks; None if it has all."""
        labels, values = getattr(self, f"{kind}_labels"), getattr(self, f"{kind}_values")
        num_labels = 0 if labels is None else labels.shape[1]
        num_values = 0 if values is None else values.shape[1]
        if num_labels >= len(columns.labels) and num_values >= columns.values:
            return None
        return (
            f"{len(columns.labels)} categorical and {columns.values} continuous {kind} columns; "
            f"these carry {num_labels} and {num_values}"
        )

    def check_categories(self, kind: str, columns: Columns) -> None:
        """Raise ``InputError`` if a label of ``kind`` ('node' or 'edge') is none of the categories of ``columns``.

        On a GPU labels are read only where ``label_counts`` does not rule that out.
        """
        labels = getattr(self, f"{kind}_labels")
        if labels is None or not columns.labels or not labels.numel() or torch.compiler.is_compiling():
            return
        if labels.is_cuda:
            most = self.label_counts.get(f"{kind}_labels", ())
            is_known = bool(most) and all(count <= limit for count, limit in zip(most, columns.labels, strict=False))
            if is_known or torch.cuda.is_current_stream_capturing():
                return
        lowest, highest = torch.stack(labels.aminmax(dim=0)).tolist()
        for at, (low, high, limit) in enumerate(zip(lowest, highest, columns.labels, strict=False)):
            if low < -1 or high >= limit:
                row = int(((labels[:, at] < -1) | (labels[:, at] >= limit)).nonzero()[0])
                number = row if kind == "node" or self.edge_order is None else int(self.edge_order[row])
                raise InputError(
                    f"{kind} {number} has category {int(labels[row, at])} in column {at} of {kind}_labels; the model "
                    f"knows 0 to {limit - 1}, and -1 for none"
                )

    def to(self, device: torch.device | str) -> "GraphBatch":
        """The same batch on ``device``; ``sizes`` stays on the CPU."""
        moved = map_tensors(self, lambda tensor: tensor.to(device), except_for=("sizes",))
        if self.edge_order is not None:
            object.__setattr__(moved, "edge_order", self.edge_order.to(device))
        return moved


def cached_per_batch(function: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate ``function(graph, *settings)``: computed once for each batch and settings, without gradients.

    The result must not refer to the batch, which would then be freed late.
    """

    @wraps(function)
    def compute_once(graph: GraphBatch, *settings: object) -> Result:
        key = (function, *settings)
        if key not in graph.cache:
            with torch.no_grad():
                graph.cache[key] = function(graph, *settings)
        return graph.cache[key]

    return compute_once


def map_tensors(owner: Any, function: Callable[[Tensor], Tensor], except_for: tuple[str, ...]) -> Any:
    """A copy of a batch or data set with ``function`` of its tensors, but for the fields ``except_for``."""
    names = (each.name for each in fields(owner) if each.init and each.name not in except_for)
    tensors = {name: function(value) for name in names if isinstance(value := getattr(owner, name), Tensor)}
    return replace(owner, **tensors, encodings={name: function(t) for name, t in owner.encodings.items()})
