"""The paper with dense matrices, one graph at a time, in float64: slow and obvious, the oracle of the tests.

Functions are named after what they compute and take the fast model's weights; equation numbers are the paper's.
"""

from copy import deepcopy

import torch
from torch import Tensor

from mnagt.attention.mixers import Adaptive
from mnagt.graphs.adjacency import Norm
from mnagt.graphs.batch import GraphBatch
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import Layer


def adjacency_hat(edges: list[tuple[int, int]], nodes: int, norm: Norm) -> Tensor:
    """Â of a graph with these (source, destination) edges, section 3.1."""
    a = torch.zeros(nodes, nodes, dtype=torch.float64)
    for source, destination in edges:
        a[destination, source] += 1
    a_tilde = a + torch.eye(nodes, dtype=torch.float64)
    d = a_tilde.sum(dim=1)
    return torch.diag(d**-0.5) @ a_tilde @ torch.diag(d**-0.5) if norm == "sym" else torch.diag(1 / d) @ a_tilde


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(Q Kᵀ / √d) V, eq. 2."""
    return torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1) @ v


def multi_head(
    h_q: Tensor, h_k: Tensor, h_v: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int
) -> Tensor:
    """Concat(head_1, ..., head_m) W_O, eqs. 3 and 8."""
    columns = torch.arange(w_q.shape[0]).chunk(heads)
    each = [attention(h_q @ w_q[j].T, h_k @ w_k[j].T, h_v @ w_v[j].T) for j in columns]
    return torch.cat(each, dim=-1) @ w_o.T


def adaptive(z: list[Tensor], w_matrix: Tensor, w_vector: Tensor) -> Tensor:
    """Σ_k α_k z^k with α the softmax over kernels of σ(z^k W) w, eqs. 9 and 10."""
    score = torch.stack([torch.tanh(z_k @ w_matrix.T) @ w_vector for z_k in z])
    alpha = torch.softmax(score, dim=0)
    return sum((alpha[k][:, None] * z[k] for k in range(len(z))), start=torch.zeros_like(z[0]))


def layer(net: Layer, x: Tensor, a_hat: Tensor) -> Tensor:
    """One MNA-GT layer, eqs. 11 and 12."""
    normed = net.norm_attention(x)
    maps = net.attention
    kernels = len(maps.kernels)
    w_q, w_k, w_v, w_o = (
        bank.weight.expand(kernels, -1, -1) for bank in (maps.to_query, maps.to_key, maps.to_value, maps.to_out)
    )
    z = []
    for k in range(kernels):
        h = torch.linalg.matrix_power(a_hat, k) @ normed
        z.append(multi_head(h, h, normed, w_q[k], w_k[k], w_v[k], w_o[k], maps.heads))
    assert isinstance(net.mixer, Adaptive)
    mixed = adaptive(z, net.mixer.project.weight, net.mixer.score.weight[0])
    z_prime = mixed + a_hat @ x
    return net.ffn(net.norm_ffn(z_prime)) + z_prime


def mnagt_paper(model: GraphModel, graph: GraphBatch, norm: Norm = "sym") -> Tensor:
    """The model ``mnagt-paper`` with its default adaptive mixer and mean pooling, for each graph by itself."""
    model = deepcopy(model).double().eval()
    x_all = model.encoder(graph)
    answers = []
    for g in range(graph.num_graphs):
        first, last = int(graph.node_ptr[g]), int(graph.node_ptr[g + 1])
        edges = [(s - first, d - first) for s, d in graph.edge_index.T.tolist() if first <= d < last]
        a_hat = adjacency_hat(edges, last - first, norm)
        x = x_all[first:last]
        for net in model.layers:
            assert isinstance(net, Layer)
            x = layer(net, x, a_hat)
        answers.append(model.head(x.mean(dim=0)))
    return torch.stack(answers)
