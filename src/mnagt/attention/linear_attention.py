r"""Attention whose cost grows with the nodes and not with their pairs (Katharopoulos et al., 2020).

.. math:: z_i = \frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}, \qquad
          \phi(x) = \mathrm{elu}(x) + 1

within each graph and head, in O(n d²) time and O(n d) memory for n nodes of d columns. It does not approximate softmax
attention, and has no score of a pair to add a bias to or to drop.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mnagt.attention.attend import FlatHeads, Heads
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.buckets import split_slots


def linear_attend(query: Heads, key: Heads, value: Heads, graph: GraphBatch) -> Heads:
    """Each node's mixture of the values in its graph. Sums are in single precision at least."""
    if query.shape[0] != graph.num_nodes:
        raise InputError(f"queries for {query.shape[0]} nodes in a batch of {graph.num_nodes}")
    buckets, heads = graph.buckets, query.shape[1:-1]
    if not buckets.groups:
        return torch.zeros_like(value)
    with torch.autocast(query.device.type, enabled=False):
        wide = [t.flatten(1, -2) if t.dtype == torch.float64 else t.flatten(1, -2).float() for t in (query, key, value)]
        q, k, v = feature_map(wide[0]), feature_map(wide[1]), wide[2]
        parts = zip(*(split_slots(buckets.nodes.pad(t), buckets.groups) for t in (q, k, v)), strict=True)
        out = []
        for bucket, part in zip(buckets.groups, parts, strict=True):
            qs, ks, vs = (t.transpose(1, 2) for t in part)
            if bucket.is_node is not None:
                ks = ks * bucket.is_node[:, None, :, None].to(ks.dtype)
            z = qs @ (ks.mT @ vs) / (qs @ ks.sum(dim=2, keepdim=True).mT)
            out.append(z.transpose(1, 2).flatten(0, 1))
        mixed = buckets.nodes.unpad(torch.cat(out))
    return mixed.to(value.dtype).unflatten(1, heads)


def feature_map(x: Float[Tensor, "*some dim"]) -> Float[Tensor, "*some dim"]:
    r""":math:`\phi`: the feature map of queries and keys, positive so that weights are."""
    return F.elu(x) + 1


def linear_attention_of_graph(
    q: FlatHeads, k: FlatHeads, graph: GraphBatch, g: int
) -> Float[Tensor, "heads size size"]:
    """Attention weights of graph ``g``: rows attend, columns are attended to."""
    nodes = slice(*graph.node_ptr[g : g + 2].tolist())
    alike = torch.einsum("ihd,jhd->hij", feature_map(q[nodes]), feature_map(k[nodes]))
    return alike / alike.sum(dim=2, keepdim=True)
