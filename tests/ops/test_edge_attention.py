"""Attention along edges answers to its twin in float64."""

import pytest
import torch
import torch.nn.functional as F
from strategies import generator, random_batch
from torch import Tensor

from mnagt import ops
from mnagt.graphs.batch import GraphBatch
from mnagt.models.gt import EdgeAttention
from mnagt.nn.convolutions import GAT, along_edges
from mnagt.ops import edge_attention as module
from mnagt.ops.edge_attention import AttendAlongEdges, Ends, Score

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CUT, LEAKY = Score("cut", 1.5, 1e-3), Score("leaky", 0.2)


def ends_of(graph: GraphBatch) -> Ends:
    out = graph.neighbours.transposed
    return Ends(*(t.to(DEVICE) for t in (graph.source, graph.in_ptr, out.index, out.ptr)))


def numbers(graph: GraphBatch, heads: int, width: int, value_width: int) -> list[Tensor]:
    widths = (width, width, value_width, value_width)
    return [
        torch.randn(graph.num_nodes, heads, each, generator=generator(seed)).to(DEVICE)
        for seed, each in enumerate(widths)
    ]


def twin(q: Tensor, k: Tensor, v: Tensor, ends: Ends, score: Score, scale: float, with_self: bool) -> Tensor:
    """The equation, edge by edge, with the derivative left to autograd."""
    j, i = ends.source.long(), torch.repeat_interleave(ends.in_ptr.diff().long())
    if with_self:
        nodes = torch.arange(len(q), device=q.device)
        i, j = torch.cat([i, nodes]), torch.cat([j, nodes])
    s = scale * (q[i] * k[j]).sum(dim=2)
    w = (s.clamp(-score.at, score.at) if score.kind == "cut" else F.leaky_relu(s, score.at)).exp()
    total = w.new_zeros(q.shape[:2]).index_add(0, i, w) + score.eps
    z = torch.zeros_like(v).index_add(0, i, w[:, :, None] * v[j])
    return z / torch.where(total > 0, total, 1.0)[:, :, None]


def outcome(function, tensors: list[Tensor], dz: Tensor, *rest: object) -> list[Tensor]:
    tensors = [t.detach().requires_grad_() for t in tensors]
    z = function(*tensors, *rest)
    return [z.detach(), *torch.autograd.grad(z, tensors, dz)]


def compare(graph: GraphBatch, heads=2, width=4, value_width=3, *, score=CUT, with_self=False, dtype=torch.float32):
    ends, tensors = ends_of(graph), [t.to(dtype) for t in numbers(graph, heads, width, value_width)]
    rest = (ends, score, 0.7, with_self)
    got = outcome(AttendAlongEdges.apply, tensors[:3], tensors[3], *rest)
    exact = [t.double() for t in tensors]
    right = outcome(twin, exact[:3], exact[3], *rest)
    for mine, value in zip(got, right, strict=True):
        assert (mine.shape, mine.dtype) == (value.shape, dtype)
        assert (mine - value).norm() <= (1e-5 if dtype == torch.float32 else 1e-2) * value.norm() + 1e-6


@pytest.mark.parametrize(
    ("heads", "width", "value_width", "score", "with_self"),
    [
        (1, 1, 1, CUT, True),
        (3, 2, 5, CUT, False),
        (3, 2, 5, LEAKY, True),
        (8, 8, 8, LEAKY, False),
        (2, 100, 70, CUT, True),
    ],
)
def test_values_and_gradients_are_the_twins(heads, width, value_width, score, with_self):
    graph = random_batch([5, 1, 9], 0.6, seed=0)
    compare(graph, heads, width, value_width, score=score, with_self=with_self)


@pytest.mark.parametrize("with_self", [False, True])
def test_directed_graphs_with_a_hub(monkeypatch, with_self):
    monkeypatch.setattr(module, "TILE", 64)
    hub = torch.stack([torch.arange(1, 41), torch.zeros(40, dtype=torch.long)])
    compare(GraphBatch.from_edges(hub, [41, 3]), with_self=with_self)


def test_heads_are_shared_among_programs(monkeypatch):
    monkeypatch.setattr(module, "COLUMNS", 4)
    compare(random_batch([5, 9], 0.5, seed=1), heads=3)


def test_half_precision_is_rounded_at_the_end():
    compare(random_batch([5, 9, 17], 0.5, seed=2), dtype=torch.bfloat16)


def test_twice_the_same_bits():
    graph = random_batch([30, 60] if DEVICE == "cuda" else [7, 11], 0.5, seed=3)
    *tensors, dz = numbers(graph, 4, 16, 16)
    one, other = (outcome(AttendAlongEdges.apply, tensors, dz, ends_of(graph), CUT, 1.0, False) for _ in range(2))
    assert all(map(torch.equal, one, other))


def test_large_scores_overflow_nowhere():
    graph = random_batch([6], 1.0, seed=0)
    q, k, v, _ = numbers(graph, 2, 4, 3)
    z = AttendAlongEdges.apply(1e3 * q, k, v, ends_of(graph), LEAKY, 1.0, False)
    assert z.isfinite().all()


class OfNeighbours(torch.nn.Module):
    """GT's attention, as a module from (X, graph) to X."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = EdgeAttention(8, 4, reads_edges=False)

    def forward(self, x: Tensor, graph: GraphBatch) -> Tensor:
        return self.attention(x, None, graph)[0]


@pytest.mark.parametrize("build", [lambda: GAT(8, heads=2), OfNeighbours])
def test_layers_say_the_same_with_it_and_without(monkeypatch, build):
    torch.manual_seed(0)
    layer, graph = build().to(DEVICE), random_batch([14, 12], 0.9, seed=0).to(DEVICE)
    x, dy = (torch.randn(26, 8, generator=generator(seed)).to(DEVICE) for seed in (0, 1))
    found = []
    for is_usable in (True, False):
        monkeypatch.setattr(ops, "is_usable", lambda device, told=is_usable: told)
        assert along_edges(x, graph) == is_usable
        x = x.detach().requires_grad_()
        y = layer(x, graph)
        found.append([y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], dy)])
    for mine, value in zip(*found, strict=True):
        assert (mine - value).norm() <= 1e-5 * value.norm() + 1e-6


def test_graphs_of_few_edges_go_the_plain_way(monkeypatch):
    monkeypatch.setattr(ops, "is_usable", lambda device: True)
    assert not along_edges(torch.zeros(9, 1), random_batch([9], 0.2, seed=0))
