r"""Attention within each graph of a batch: one function, interchangeable backends.

Every backend computes, for each graph and head, :math:`\mathrm{softmax}(Q K^\top / \sqrt{d} + B)\, V` (eq. 2), with
Q, K and V flat over the nodes of all graphs and B, if any, flat over the pairs of ``GraphBatch.pair_ptr``. Heads may
lie on two axes (kernels, and heads of each), which spares a copy.
"""

from collections.abc import Callable
from itertools import takewhile

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mnagt import ops
from mnagt.attention import cpu_small, cpu_tiled
from mnagt.attention.cpu_tiled import Wide
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.buckets import Buckets, split_slots
from mnagt.registry import lookup

Heads = Float[Tensor, "nodes *heads head_dim"]
FlatHeads = Float[Tensor, "nodes heads head_dim"]
PairBias = Float[Tensor, "pairs heads"]


def attend(
    query: Heads,
    key: Heads,
    value: Heads,
    graph: GraphBatch,
    *,
    bias: PairBias | Float[Tensor, "pairs 1"] | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Heads:
    """Each node's mixture of the values in its graph.

    ``bias`` is added to the scores; minus infinity forbids a pair, and every node must be left one it may attend to.
    ``dropout`` acts whenever it is above zero: pass zero outside training.
    """
    if query.shape[0] != graph.num_nodes:
        raise InputError(f"queries for {query.shape[0]} nodes in a batch of {graph.num_nodes}")
    if bias is not None:
        heads = query.shape[1:-1].numel()
        graph.check_memory_for_pairs(heads * query.element_size())
        bias = bias.to(query.dtype).expand(-1, heads)
    return lookup(BACKENDS, backend, "attention backend")(query, key, value, graph, bias, dropout)


def active_backend(device: torch.device) -> str:
    """What 'auto' takes on this device, and why."""
    if device.type == "cpu":
        return "bucketed: graphs of equal size side by side, small ones by plain products"
    reason = ops.why_not()
    return f"bucketed: fused attention over graphs of like size; {reason}" if reason else "triton: no padding at all"


def auto(q: Heads, k: Heads, v: Heads, graph: GraphBatch, bias: PairBias | None, dropout: float) -> Heads:
    """Triton where its kernels run and know the numbers, buckets elsewhere."""
    has_kernel = ops.is_usable(q.device) and q.dtype in ops.DTYPES and q.shape[-1] <= 256
    backend = triton if has_kernel else attend_in_buckets
    return backend(q, k, v, graph, bias, dropout)


def triton(q: Heads, k: Heads, v: Heads, graph: GraphBatch, bias: PairBias | None, dropout: float) -> Heads:
    """Graphs as they lie, by our own kernels (``ops/attention.py``)."""
    from mnagt.ops.attention import ragged_attention

    return ragged_attention(
        q,
        k,
        v,
        graph.node_ptr,
        graph.max_num_nodes,
        bias=bias,
        pair_ptr=None if bias is None else graph.pair_ptr.to(q.device),
        dropout=dropout,
        seed=torch.randint(2**31, (), device=q.device) if dropout else None,
        precision=ops.precision(),
        tiles=graph.attention_tiles,
    )


def reference(q: Heads, k: Heads, v: Heads, graph: GraphBatch, bias: PairBias | None, dropout: float) -> Heads:
    """One graph at a time, as the equation reads. The other backends answer to it."""
    heads = q.shape[1:]
    q, k, v = (t.flatten(1, -2) for t in (q, k, v))
    out = []
    for g in range(graph.num_graphs):
        weight = F.dropout(attention_of_graph(q, k, graph, g, bias), dropout)
        out.append(torch.einsum("hij,jhd->ihd", weight, v[graph.node_ptr[g] : graph.node_ptr[g + 1]]))
    return torch.cat(out).unflatten(1, heads[:-1]) if out else v.new_zeros(0, *heads)


def attention_of_graph(
    q: FlatHeads, k: FlatHeads, graph: GraphBatch, g: int, bias: PairBias | Float[Tensor, "pairs 1"] | None = None
) -> Float[Tensor, "heads size size"]:
    """Attention weights of graph ``g``: rows attend, columns are attended to."""
    start, end = graph.node_ptr[g : g + 2].tolist()
    score = torch.einsum("ihd,jhd->hij", q[start:end], k[start:end]) / q.shape[-1] ** 0.5
    if bias is not None:
        pairs = bias[graph.pair_ptr[g] : graph.pair_ptr[g + 1]].to(score.dtype)
        score = score + pairs.reshape(end - start, end - start, -1).permute(2, 0, 1)
    return torch.softmax(score, dim=-1)


def attend_in_buckets(q: Heads, k: Heads, v: Heads, graph: GraphBatch, bias: PairBias | None, dropout: float) -> Heads:
    """Graphs of like size side by side: on a CPU small ones by plain products, others by a fused call for each size.

    In a batch whose graphs are in order of size nothing is copied for a fused call: a bucket is a slice. Memory of such
    a call grows with the nodes, not with their pairs, but for a bias, which has a row for each.
    """
    may_be_small, heads = bias is None and not dropout and q.shape == v.shape, q.shape[1:-1]
    is_small = may_be_small and _has_small_attention(q) and graph.max_num_nodes <= cpu_small.LARGEST
    buckets = graph.small_buckets if is_small else graph.buckets
    if not buckets.groups:
        return torch.zeros_like(v)
    if is_small:
        q, k, v = (t.flatten(1, -2) for t in (q, k, v))
        return cpu_small.small_attention(q, k, v, buckets.groups, buckets.nodes).unflatten(1, heads)
    few = _small_buckets(buckets) if may_be_small and _has_small_attention(q) else 0
    groups = buckets.groups[few:]
    cuts = [sum(bucket.slots for bucket in buckets.groups[:few]), *(bucket.slots for bucket in groups)]
    q, k, v = (buckets.nodes.pad(t.flatten(1, -2)) for t in (q, k, v))
    (q, *qs), (k, *ks), (v, *vs) = (t.split(cuts) for t in (q, k, v))
    out = [cpu_small.small_attention(q, k, v, buckets.groups[:few], None)] if few else []
    masks = [None] * len(groups)
    if bias is not None:
        masks = [part.permute(0, 3, 1, 2) for part in split_slots(graph.pair_layout.pad(bias), groups, axes=2)]
    for bucket, part, mask in zip(groups, zip(qs, ks, vs, strict=True), masks, strict=True):
        if bucket.is_node is not None:
            may_attend = bucket.is_node[:, None, None, :]
            mask = may_attend if mask is None else mask.masked_fill(~may_attend, -torch.inf)
        shape = (bucket.graphs, bucket.width, *q.shape[1:])
        wide = [t.reshape(shape).transpose(1, 2) for t in part]
        z = _of_bucket(wide[0], wide[1], wide[2], mask, dropout)
        out.append(z.transpose(1, 2).flatten(0, 1))
    return buckets.nodes.unpad(torch.cat(out)).unflatten(1, heads)


def _has_small_attention(q: Tensor) -> bool:
    """Whether plain products may be taken. A graph that is exported has any size."""
    return q.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()


def _small_buckets(buckets: Buckets) -> int:
    """How many buckets, from the first, plain products are faster for."""
    is_small = (bucket.width <= cpu_small.LARGEST and bucket.is_node is None for bucket in buckets.groups)
    return sum(takewhile(bool, is_small))


def _of_bucket(q: Wide, k: Wide, v: Wide, mask: Tensor | None, dropout: float) -> Wide:
    """Attention of graphs side by side.

    On a CPU, PyTorch's kernel knows neither dropout nor gradients of a mask, and without it all scores are kept,
    several times over. Where they are many we go by tiles.
    """
    is_fused = q.device.type != "cpu" or not (dropout or (mask is not None and mask.requires_grad))
    if is_fused or q.shape[:3].numel() * k.shape[2] <= cpu_tiled.AT_ONCE:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return cpu_tiled.tiled_attention(q, k, v, mask, dropout)


BACKENDS: dict[str, Callable[[Heads, Heads, Heads, GraphBatch, PairBias | None, float], Heads]] = {
    "auto": auto,
    "reference": reference,
    "bucketed": attend_in_buckets,
    "triton": triton,
}
