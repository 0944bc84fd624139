"""Messages that are never stored sum up to those that are."""

import pytest
import torch
from strategies import generator, random_batch
from torch import Tensor

from mnagt.graphs.batch import GraphBatch
from mnagt.ops import messages
from mnagt.ops.messages import Edges, SumMessages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def edges_of(graph: GraphBatch, kinds: int) -> Edges:
    out = graph.edge_sources.transposed
    kind = torch.randint(kinds, (graph.num_edges,), generator=generator(0), dtype=torch.int32)
    edges = Edges(graph.source, graph.destination, graph.in_ptr, out.index, out.ptr, kind)
    return Edges(*(t.to(DEVICE) for t in edges))


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed)).to(DEVICE)


def twin(x: Tensor, table: Tensor, edges: Edges, with_self: bool) -> Tensor:
    message = (x[edges.source.long()] + table[edges.kind.long()]).relu()
    return (x if with_self else torch.zeros_like(x)).index_add(0, edges.destination.long(), message)


def outcome(function, x: Tensor, table: Tensor, edges: Edges, dy: Tensor, with_self: bool) -> list[Tensor]:
    x, table = x.detach().requires_grad_(), table.detach().requires_grad_()
    y = function(x, table, edges, with_self)
    return [y.detach(), *torch.autograd.grad(y, (x, table), dy)]


def compare(
    graph: GraphBatch, dim: int, kinds: int, dtype: torch.dtype = torch.float32, *, with_self: bool = False
) -> None:
    edges = edges_of(graph, kinds)
    x, table = numbers(graph.num_nodes, dim, seed=1).to(dtype), numbers(kinds, dim, seed=2).to(dtype).float()
    dy = numbers(graph.num_nodes, dim, seed=3).to(dtype)
    got = outcome(SumMessages.apply, x, table, edges, dy, with_self)
    right = outcome(twin, x.double(), table.double(), edges, dy.double(), with_self)
    for mine, value, like in zip(got, right, (x, x, table), strict=True):
        assert (mine.shape, mine.dtype) == (value.shape, like.dtype)
        close = 1e-2 if dtype != torch.float32 else 1e-3 if like is table else 1e-6
        assert (mine - value).norm() <= close * value.norm() + 1e-6


@pytest.mark.parametrize(
    ("dim", "kinds", "with_self"), [(1, 5, False), (1, 1, True), (16, 126, True), (67, 5, True), (67, 1, False)]
)
def test_sums_and_gradients_are_the_twins(dim, kinds, with_self):
    compare(random_batch([5, 1, 9, 23], 0.3, seed=0), dim, kinds, with_self=with_self)


def test_directed_graphs_with_a_hub():
    hub = torch.stack([torch.arange(1, 41), torch.zeros(40, dtype=torch.long)])
    compare(GraphBatch.from_edges(hub, [41, 3]), 7, 3)


def test_what_is_not_a_number_is_not_hidden():
    graph = random_batch([5, 4], 0.9, seed=0)
    x = numbers(9, 3, seed=0)
    x[int(graph.source[0])] = torch.nan
    edges = edges_of(graph, 2)
    for sums in (SumMessages.apply, twin):
        assert sums(x, numbers(2, 3, seed=1), edges, False)[int(graph.destination[0])].isnan().all()


def test_edges_are_shared_among_few_programs(monkeypatch):
    monkeypatch.setattr(messages, "PROGRAMS", 2)
    compare(random_batch([40, 30], 0.4, seed=1), 5, 7)


def test_half_precision_is_rounded_at_the_end():
    compare(random_batch([5, 9, 23], 0.3, seed=0), 37, 5, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_sums_come_in_its_type_and_gradients_in_that_of_the_input(dtype):
    graph = random_batch([5, 9, 23], 0.3, seed=0)
    edges, x, table = edges_of(graph, 5), numbers(37, 19, seed=1).to(dtype), numbers(5, 19, seed=2)
    dy = numbers(37, 19, seed=3).bfloat16()
    with torch.autocast(DEVICE, torch.bfloat16):
        got = outcome(SumMessages.apply, x, table, edges, dy, with_self=True)
    used = table.to(dtype).double()
    right = outcome(twin, x.double(), used, edges, dy.double(), with_self=True)
    for mine, value, kind in zip(got, right, (torch.bfloat16, dtype, torch.float32), strict=True):
        assert mine.dtype == kind
        assert (mine - value).norm() <= 1e-2 * value.norm()
