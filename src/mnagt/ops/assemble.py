"""Where the nodes and edges of a batch of fixed shape come from, three launches; twin: ``mnagt.data.padded_batches``.

One program adds up the sizes of the graphs; then every node and every edge looks up, by halving, which graph it is of.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Int
from torch import Tensor

BLOCK = 256
"""Nodes or edges of a program."""


def assemble(
    graphs: Int[Tensor, "slots"],
    node_ptr: Int[Tensor, "graphs_and_end"],
    edge_ptr: Int[Tensor, "graphs_and_end"],
    in_ptr: Int[Tensor, "nodes_and_end"],
    source: Int[Tensor, "edges"],
    nodes: int,
    edges: int,
    filling: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of the batch: pointers of graphs and of nodes, sources, the data set's node and edge for each, and how many
    graphs, nodes and edges are real.

    The first five describe a data set: first node and first edge of each graph, first edge into each node, sources
    counted from a graph's first node. A slot below 0 holds no graph.
    """
    slots, fillings = len(graphs), triton.cdiv(nodes, filling)
    new = graphs.new_empty
    batch_node_ptr, batch_edge_ptr = new(slots + fillings + 1), new(slots + 1)
    shifts, counts = new(2, slots), new(3)
    batch_in_ptr, batch_source = (new(n, dtype=torch.int32) for n in (nodes + 1, edges))
    node_row, edge_row = new(nodes), new(edges)
    width = triton.next_power_of_2(slots)
    with torch.cuda.device_of(graphs):
        _plan[(1,)](
            graphs, node_ptr, edge_ptr, batch_node_ptr, batch_edge_ptr, shifts, counts,
            slots, nodes, fillings, filling, width, triton.next_power_of_2(fillings),
        )  # fmt: skip
        _nodes[(triton.cdiv(nodes, BLOCK),)](
            batch_node_ptr, shifts, counts, in_ptr, batch_in_ptr, node_row, slots, nodes, edges, width, BLOCK,
        )  # fmt: skip
        if edges:
            _edges[(triton.cdiv(edges, BLOCK),)](
                batch_node_ptr, batch_edge_ptr, shifts, counts, source, batch_source, edge_row,
                slots, nodes, edges, width, BLOCK,
            )  # fmt: skip
    return batch_node_ptr, batch_in_ptr, batch_source, node_row, edge_row, counts


@triton.jit
def _plan(
    graphs, node_ptr, edge_ptr, batch_node_ptr, batch_edge_ptr, shifts, counts, slots, nodes, fillings,
    filling: tl.constexpr, width: tl.constexpr, fill_width: tl.constexpr,
):  # fmt: skip
    """Running totals of the graphs' sizes, and how far each graph's nodes and edges move."""
    slot = tl.arange(0, width)
    is_slot = slot < slots
    graph = tl.load(graphs + slot, mask=is_slot, other=-1)
    is_graph = graph >= 0
    node = tl.load(node_ptr + graph, mask=is_graph, other=0)
    edge = tl.load(edge_ptr + graph, mask=is_graph, other=0)
    size = tl.load(node_ptr + graph + 1, mask=is_graph, other=0) - node
    degree = tl.load(edge_ptr + graph + 1, mask=is_graph, other=0) - edge
    node_end, edge_end = tl.cumsum(size, 0), tl.cumsum(degree, 0)
    num_valid_nodes, num_valid_edges = tl.sum(size, 0), tl.sum(degree, 0)
    tl.store(batch_node_ptr, 0)
    tl.store(batch_edge_ptr, 0)
    tl.store(batch_node_ptr + 1 + slot, node_end, mask=is_slot)
    tl.store(batch_edge_ptr + 1 + slot, edge_end, mask=is_slot)
    tl.store(shifts + slot, node - (node_end - size), mask=is_slot)
    tl.store(shifts + slots + slot, edge - (edge_end - degree), mask=is_slot)
    tl.store(counts, tl.sum(is_graph.to(tl.int64), 0))
    tl.store(counts + 1, num_valid_nodes)
    tl.store(counts + 2, num_valid_edges)
    fill = tl.arange(0, fill_width)
    end = tl.minimum(num_valid_nodes + (fill + 1) * filling, nodes)
    tl.store(batch_node_ptr + slots + 1 + fill, end, mask=fill < fillings)


@triton.jit
def _nodes(
    batch_node_ptr, shifts, counts, in_ptr, batch_in_ptr, node_row, slots, nodes, edges,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Some nodes: where they come from, and where the edges into them begin."""
    node = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_there = node < nodes
    num_valid_nodes, num_valid_edges = tl.load(counts + 1), tl.load(counts + 2)
    is_real = node < num_valid_nodes
    found_slot = _find_slot(batch_node_ptr, node, is_real, slots, width)
    row = node + tl.load(shifts + found_slot, mask=is_real, other=0)
    into = tl.load(in_ptr + row, mask=is_real, other=0) - tl.load(shifts + slots + found_slot, mask=is_real, other=0)
    spare_nodes = tl.maximum(nodes - num_valid_nodes, 1)
    loops = ((node - num_valid_nodes) * (edges - num_valid_edges) + spare_nodes - 1) // spare_nodes
    tl.store(batch_in_ptr + node, tl.where(is_real, into, num_valid_edges + loops).to(tl.int32), mask=is_there)
    tl.store(batch_in_ptr + nodes, edges)
    tl.store(node_row + node, tl.where(is_real, row, 0), mask=is_there)


@triton.jit
def _edges(
    batch_node_ptr, batch_edge_ptr, shifts, counts, source, batch_source, edge_row, slots, nodes, edges,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Some edges: where they come from, and from which node they lead. Those that fill up are loops, evenly spread."""
    edge = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_there = edge < edges
    num_valid_nodes, num_valid_edges = tl.load(counts + 1), tl.load(counts + 2)
    is_real = edge < num_valid_edges
    found_slot = _find_slot(batch_edge_ptr, edge, is_real, slots, width)
    row = edge + tl.load(shifts + slots + found_slot, mask=is_real, other=0)
    node = tl.load(source + row, mask=is_real, other=0) + tl.load(batch_node_ptr + found_slot, mask=is_real, other=0)
    loop = num_valid_nodes + (edge - num_valid_edges) * (nodes - num_valid_nodes) // tl.maximum(
        edges - num_valid_edges, 1
    )
    tl.store(batch_source + edge, tl.where(is_real, node, loop).to(tl.int32), mask=is_there)
    tl.store(edge_row + edge, tl.where(is_real, row, 0), mask=is_there)


@triton.jit
def _find_slot(ptr, at, is_real, slots, width: tl.constexpr):
    """The slot of which each place is: how many slots end at it or before."""
    found_slot = tl.zeros_like(at)
    for halving in tl.static_range(0, 32):
        if (width >> halving) > 0:
            further = found_slot + (width >> halving)
            is_before = tl.load(ptr + further, mask=is_real & (further <= slots), other=2**62) <= at
            found_slot = tl.where(is_before, further, found_slot)
    return found_slot
