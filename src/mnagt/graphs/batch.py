"""A batch of graphs as flat tensors: the one shape in which graphs travel through the library."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.buckets import Buckets, Layout
from mnagt.graphs.features import Columns
from mnagt.graphs.room import free_memory, in_words
from mnagt.graphs.sparse import Incidence, pointer, pointer_of_counts

CHECKED = 2**28
"""Bytes from which it is asked whether there is room for them."""


class Filled(NamedTuple):
    """How much is real of a batch that was filled up to a fixed shape; what is real comes first."""

    graphs: Int[Tensor, ""]
    """These counts lie on the batch's device: nobody waits for them."""
    nodes: Int[Tensor, ""]
    edges: Int[Tensor, ""]
    largest: int
    """No graph has more nodes."""


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Disjoint union of graphs. Node ids run over the whole batch; edges are sorted by destination.

    Edges are kept as each node's list of in-neighbours (CSR). What can be worked out from these fields is worked
    out at first use and shared by all layers.
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
    filled: Filled | None = None
    """Set in a batch of fixed shape (``data/fixed.py``): its last graphs are only there to fill it up."""

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
        node_ptr = pointer_of_counts(sizes).to(device)
        graph_of_node = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
        if edge_index.shape[1] >= 2**31:
            raise InputError(f"{edge_index.shape[1]} edges in one batch; at most {2**31 - 1} can be counted")
        source, destination = edge_index.long()
        across = (graph_of_node[source] != graph_of_node[destination]).nonzero()
        if len(across):
            raise InputError(f"edge {int(across[0])} joins two graphs; check that sizes add up")
        given = {"node_labels": node_labels, "node_values": node_values, "edge_labels": edge_labels}
        for name, column in (given | {"edge_values": edge_values}).items():
            rows = nodes if name.startswith("node") else edge_index.shape[1]
            if column is not None and len(column) != rows:
                raise InputError(f"{name} has {len(column)} rows for {rows} {name[:4]}s; give one row a {name[:4]}")
        key = destination * nodes + source
        order = key.argsort(stable=True)
        return cls(
            sizes=sizes,
            node_ptr=node_ptr,
            in_ptr=pointer(destination, nodes).int(),
            source=source[order].int(),
            is_symmetric=torch.equal(key[order], (source * nodes + destination).sort().values),
            node_labels=node_labels,
            node_values=node_values,
            edge_labels=None if edge_labels is None else edge_labels[order],
            edge_values=None if edge_values is None else edge_values[order],
            targets=targets,
        )

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
    def largest(self) -> int:
        """Nodes of the largest graph, or a bound."""
        if self.filled is not None:
            return self.filled.largest
        return int(self.sizes.max()) if len(self.sizes) else 0

    @property
    def real_graphs(self) -> Int[Tensor, ""] | None:
        """How many graphs, from the first, are real; None where all are."""
        return None if self.filled is None else self.filled.graphs

    @property
    def real_nodes(self) -> Int[Tensor, ""] | None:
        """How many nodes, from the first, are real; None where all are."""
        return None if self.filled is None else self.filled.nodes

    @property
    def real_edges(self) -> Int[Tensor, ""] | None:
        """How many edges, from the first, are real; None where all are."""
        return None if self.filled is None else self.filled.edges

    @cached_property
    def in_degree(self) -> Int[Tensor, "nodes"]:
        """Edges into each node."""
        return self.in_ptr.diff()

    @cached_property
    def degree_root(self) -> Float[Tensor, "nodes"]:
        """One over the root of each node's degree, itself counted: the scale of a symmetric normalisation.

        In double precision on a CPU; on a GPU, where it is read for every edge, in single.
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
        ends = Incidence(self.destination.to(self.source.dtype), self._counted(self.num_edges + 1), self.num_nodes)
        return Incidence(self._counted(self.num_edges), self.in_ptr, self.num_edges, transposed=ends)

    @cached_property
    def edge_sources(self) -> Incidence:
        """Row e holds the node that edge e comes from."""
        return Incidence(self.source, self._counted(self.num_edges + 1), self.num_nodes)

    def _counted(self, number: int) -> Int[Tensor, "number"]:
        """0, 1, 2, ... as edges are counted."""
        return torch.arange(number, device=self.device, dtype=self.source.dtype)

    @cached_property
    def nodes_of(self) -> Incidence:
        """Row g holds the nodes of graph g."""
        nodes = torch.arange(self.num_nodes + 1, device=self.device)
        homes = Incidence(self.graph_of_node, nodes, self.num_graphs)
        return Incidence(nodes[:-1], self.node_ptr, self.num_nodes, transposed=homes)

    @cached_property
    def graph_of(self) -> Incidence:
        """Row v holds the graph that node v belongs to."""
        nodes = torch.arange(self.num_nodes + 1, device=self.device)
        own = Incidence(nodes[:-1], self.node_ptr, self.num_nodes)
        return Incidence(self.graph_of_node, nodes, self.num_graphs, transposed=own)

    @cached_property
    def pair_ptr(self) -> Int[Tensor, "graphs_and_end"]:
        """The pairs (i, j) of graph g are ``pair_ptr[g]:pair_ptr[g + 1]``, j running fastest. On the CPU.

        Who asks is about to say something of every pair: refused where not even a number for each would fit.
        """
        self.check_room_for_pairs(4)
        return pointer_of_counts(self.sizes**2)

    def check_room_for_pairs(self, each: int) -> None:
        """Refuse what takes ``each`` bytes for every pair of nodes, before it is made, if it would not fit."""
        need = each * int((self.sizes**2).sum())
        if need < CHECKED or need <= (free := free_memory(self.device)):
            return
        graph, nodes = int(self.sizes.argmax()), int(self.sizes.max())
        raise InputError(
            f"graph {graph} of a batch of {self.num_graphs} has {nodes:,} nodes; what this model says of pairs of "
            f"nodes needs {in_words(each * nodes**2)} for that graph and {in_words(need)} for the batch, and "
            f"{in_words(free)} are free on {self.device}: take smaller batches, leave the graph out, or take a model "
            "without terms of pairs (mnagt, gps, sat)"
        )

    @cached_property
    def buckets(self) -> Buckets:
        """How attention lays out graphs of like size side by side."""
        return Buckets.plan(self.sizes, step=1 if self.device.type == "cpu" else 64).to(self.device)

    @cached_property
    def pair_layout(self) -> Layout:
        """How pairs of nodes lie in the buckets."""
        return self.buckets.pairs().to(self.device)

    @cached_property
    def attention_tiles(self) -> Int[Tensor, "tiles _"]:
        """How the Triton kernels cut the batch."""
        from mnagt.fused.attention import tile_list

        return tile_list(self.node_ptr, self.num_nodes)

    def columns_missing(self, kind: str, columns: Columns) -> str | None:
        """What ``columns`` ask of this batch's ``kind`` ('node' or 'edge') that it does not carry, in words."""
        labels, values = getattr(self, f"{kind}_labels"), getattr(self, f"{kind}_values")
        has = (0 if labels is None else labels.shape[1], 0 if values is None else values.shape[1])
        asked = (len(columns.labels), columns.values)
        if any(h < a for h, a in zip(has, asked, strict=True)):
            return f"{asked[0]} categorical and {asked[1]} continuous {kind} columns; these carry {has[0]} and {has[1]}"
        return None

    def to(self, device: torch.device | str) -> "GraphBatch":
        """The same batch on ``device``; ``sizes`` stays on the CPU."""
        moved = {
            f.name: value.to(device)
            for f in fields(self)
            if f.name != "sizes" and isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved, encodings={name: t.to(device) for name, t in self.encodings.items()})
