"""A batch of graphs as flat tensors: the one shape in which graphs travel through the library."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.buckets import Buckets, Layout
from mnagt.graphs.features import Columns
from mnagt.graphs.memory import format_bytes, free_memory
from mnagt.graphs.sparse import Incidence, ptr_from_counts, ptr_from_index

Result = TypeVar("Result")

NODE_COLUMNS = ("node_labels", "node_values")
EDGE_COLUMNS = ("edge_labels", "edge_values")
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


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """A disjoint union of graphs. Node indices run over the whole batch; edges are sorted by destination.

    Edges are stored as each node's in-neighbours (CSR). What follows from the fields (degrees, sparse matrices, the
    layout of attention) is computed at first use and shared by all layers.

    >>> import torch
    >>> from mnagt import load_dataset
    >>> batch = load_dataset("MUTAG").batch(torch.tensor([0, 1]))
    >>> batch.num_graphs, batch.num_nodes, batch.sizes.tolist()
    (2, 30, [17, 13])
    """

    sizes: Int[Tensor, "graphs"]
    """Nodes of each graph. Always on the CPU, whatever the device: who plans the work reads it without waiting. For a
    batch of fixed shape on a GPU that would be to wait, and reading them fails (a tensor on 'meta')."""
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
    edge_values: Float[Tensor, "edges _"] | None = None
    targets: Tensor | None = None
    """One row a graph."""
    encodings: Mapping[str, Shaped[Tensor, "nodes _"]] = field(default_factory=dict)
    """Structural encodings worked out beforehand, by name."""
    padding: Padding | None = None
    """Set in a batch of fixed shape (``data/padded_batches.py``), whose last graphs are padding."""

    @classmethod
    def from_edges(
        cls,
        edge_index: Int[Tensor, "2 edges"],
        sizes: list[int] | Int[Tensor, "graphs"],
        *,
        node_labels: Int[Tensor, "nodes _"] | None = None,
        node_values: Float[Tensor, "nodes _"] | None = None,
        edge_labels: Int[Tensor, "edges _"] | None = None,
        edge_values: Float[Tensor, "edges _"] | None = None,
        targets: Tensor | None = None,
    ) -> "GraphBatch":
        """A batch from (source, destination) pairs in any order."""
        sizes = torch.as_tensor(sizes, dtype=torch.long).cpu()
        device, nodes = edge_index.device, int(sizes.sum())
        if edge_index.numel() and not (0 <= int(edge_index.min()) and int(edge_index.max()) < nodes):
            raise InputError(f"edge_index names node {int(edge_index.max())} or below 0; nodes are 0 to {nodes - 1}")
        node_ptr = ptr_from_counts(sizes).to(device)
        graph_of_node = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
        if edge_index.shape[1] >= 2**31:
            raise InputError(f"{edge_index.shape[1]} edges in one batch; at most {2**31 - 1} can be counted")
        source, destination = edge_index.long()
        across = (graph_of_node[source] != graph_of_node[destination]).nonzero()
        if len(across):
            raise InputError(f"edge {int(across[0])} joins two graphs; check that sizes add up")
        key = destination * nodes + source
        order = key.argsort(stable=True)
        columns: dict[str, Any] = {"node_labels": node_labels, "node_values": node_values}
        columns |= {"edge_labels": edge_labels, "edge_values": edge_values}
        for name, column in columns.items():
            kind, rows = ("node", nodes) if name in NODE_COLUMNS else ("edge", len(source))
            if column is not None and len(column) != rows:
                raise InputError(f"{name} has {len(column)} rows for {rows} {kind}s; give one row a {kind}")
            columns[name] = column if column is None or kind == "node" else column[order]
        return cls(
            sizes=sizes,
            node_ptr=node_ptr,
            in_ptr=ptr_from_index(destination, nodes).int(),
            source=source[order].int(),
            is_symmetric=torch.equal(key[order], (source * nodes + destination).sort().values),
            targets=targets,
            **columns,
        )

    @cached_property
    def cache(self) -> dict[tuple, Any]:
        """What ``cached_per_batch`` keeps."""
        return {}

    @property
    def num_graphs(self) -> int:
        return len(self.sizes)

    @property
    def num_nodes(self) -> int:
        return len(self.in_ptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.source)

    @property
    def device(self) -> torch.device:
        return self.source.device

    @cached_property
    def max_num_nodes(self) -> int:
        """Nodes of the largest graph, or a bound."""
        if self.padding is not None:
            return self.padding.max_num_nodes
        return int(self.sizes.max()) if len(self.sizes) else 0

    def num_valid(self, rows: Literal["graphs", "nodes", "edges"]) -> Int[Tensor, ""] | None:
        """How many graphs, nodes or edges, from the first, are no padding; None where all are."""
        return None if self.padding is None else getattr(self.padding, rows)

    @cached_property
    def in_degree(self) -> Int[Tensor, "nodes"]:
        """Edges into each node."""
        return self.in_ptr.diff()

    @cached_property
    def inv_sqrt_degree(self) -> Float[Tensor, "nodes"]:
        """``(in_degree + 1) ** -0.5``, the scale of the symmetric normalisation with self loops.

        In double precision on a CPU; in single on a GPU, where it is read for every edge.
        """
        root = (self.in_degree + 1).double().rsqrt()
        return root if self.device.type == "cpu" else root.float()

    @cached_property
    def graph_of_node(self) -> Int[Tensor, "nodes"]:
        return torch.repeat_interleave(self.node_ptr.diff(), output_size=self.num_nodes)

    @cached_property
    def destination(self) -> Int[Tensor, "edges"]:
        return torch.repeat_interleave(self.in_degree, output_size=self.num_edges)

    @cached_property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """(source, destination) of each edge, as PyTorch Geometric has it."""
        return torch.stack([self.source.long(), self.destination])

    @cached_property
    def neighbours(self) -> Incidence:
        """The adjacency matrix: row v holds the nodes with an edge into v."""
        return Incidence(self.source, self.in_ptr, self.num_nodes, is_symmetric=self.is_symmetric)

    @cached_property
    def edges_into(self) -> Incidence:
        """Row v holds the edges into node v."""
        ends = Incidence(self.destination.to(self.source.dtype), self._arange(self.num_edges + 1), self.num_nodes)
        return Incidence(self._arange(self.num_edges), self.in_ptr, self.num_edges, transposed=ends)

    @cached_property
    def edge_sources(self) -> Incidence:
        """Row e holds the node that edge e comes from."""
        return Incidence(self.source, self._arange(self.num_edges + 1), self.num_nodes)

    def _arange(self, number: int) -> Int[Tensor, "number"]:
        """``torch.arange`` on the batch's device, with the dtype of ``source``."""
        return torch.arange(number, device=self.device, dtype=self.source.dtype)

    @cached_property
    def nodes_of(self) -> Incidence:
        """Row g holds the nodes of graph g."""
        nodes = torch.arange(self.num_nodes + 1, device=self.device)
        transposed = Incidence(self.graph_of_node, nodes, self.num_graphs)
        return Incidence(nodes[:-1], self.node_ptr, self.num_nodes, transposed=transposed)

    @cached_property
    def graph_of(self) -> Incidence:
        """Row v holds the graph that node v belongs to."""
        nodes = torch.arange(self.num_nodes + 1, device=self.device)
        transposed = Incidence(nodes[:-1], self.node_ptr, self.num_nodes)
        return Incidence(self.graph_of_node, nodes, self.num_graphs, transposed=transposed)

    @cached_property
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

    @cached_property
    def buckets(self) -> Buckets:
        """Graphs of similar size, padded to a common width for dense attention."""
        return Buckets.plan(self.sizes, step=1 if self.device.type == "cpu" else 64).to(self.device)

    @cached_property
    def pair_layout(self) -> Layout:
        """How pairs of nodes lie in the buckets."""
        return self.buckets.pairs().to(self.device)

    @cached_property
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

    def to(self, device: torch.device | str) -> "GraphBatch":
        """The same batch on ``device``; ``sizes`` stays on the CPU."""
        return map_tensors(self, lambda tensor: tensor.to(device), except_for=("sizes",))


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
    names = (each.name for each in fields(owner) if each.name not in except_for)
    tensors = {name: function(value) for name in names if isinstance(value := getattr(owner, name), Tensor)}
    return replace(owner, **tensors, encodings={name: function(t) for name, t in owner.encodings.items()})
