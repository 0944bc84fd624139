"""The Triton attention answers to the equation in float64, graph by graph."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.sparse import ptr_from_counts
from mnagt.ops import attention
from mnagt.ops.attention import Launch, ragged_attention, tile_list

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = 2
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
MIXES = {
    "small": [5, 1, 3],
    "empty and single": [0, 1, 0, 0, 7, 1, 0],
    "many small": [2] * 11 + [31, 32],
    "one tile": [33, 64, 2],
    "many tiles": [65, 1, 97],
}


def pointer(sizes: list[int]) -> Tensor:
    return ptr_from_counts(torch.tensor(sizes, dtype=torch.long)).to(DEVICE)


def pair_pointer(sizes: list[int]) -> Tensor:
    return pointer([n * n for n in sizes])


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return made.to(DEVICE, dtype)


def qkv(
    sizes: list[int], heads: int, head_dim: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (numbers(sum(sizes), heads, head_dim, seed=s, dtype=dtype).requires_grad_() for s in range(3))
    return q, k, v


def equation(
    q: Tensor, k: Tensor, v: Tensor, sizes: list[int], bias: Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """One graph at a time; ``weight`` multiplies what each node attends to, by its place in the graph."""
    out, start, pair = [], 0, 0
    for n in sizes:
        own = slice(start, start + n)
        score = torch.einsum("ihd,jhd->hij", q[own], k[own]) / q.shape[-1] ** 0.5
        if bias is not None:
            score = score + bias[pair : pair + n * n].reshape(n, n, q.shape[1]).permute(2, 0, 1)
        p = score.softmax(dim=-1)
        if weight is not None:
            p = p * weight[own, :, :n].transpose(0, 1)
        out.append(torch.einsum("hij,jhd->ihd", p, v[own]))
        start, pair = start + n, pair + n * n
    return torch.cat(out) if out else torch.zeros_like(q)


def check(
    fast: Tensor, inputs: Sequence[Tensor], slow: Callable[..., Tensor], dtype: torch.dtype = torch.float32
) -> None:
    """Output and gradients are those of ``slow`` in float64."""
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    right = slow(*doubles)
    grad = numbers(*fast.shape, seed=7).to(dtype)
    gradients = torch.autograd.grad(fast, inputs, grad)
    rights = torch.autograd.grad(right, doubles, grad.double().reshape(right.shape))
    for a, b in zip([fast, *gradients], [right, *rights], strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double().reshape(b.shape), b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", MIXES.values(), ids=MIXES)
def test_forward_and_backward_are_the_equation(sizes, dtype):
    inputs = qkv(sizes, HEADS, 20, dtype=dtype)
    out = ragged_attention(*inputs, pointer(sizes), max(sizes))
    check(out, inputs, lambda q, k, v: equation(q, k, v, sizes), dtype)


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [(1, torch.float32), (42, torch.float16), (100, torch.float32), (100, torch.float16), (129, torch.float16)],
)
def test_any_head_dim(head_dim, dtype):
    sizes = [3, 67]
    inputs = qkv(sizes, 1, head_dim, dtype=dtype)
    out = ragged_attention(*inputs, pointer(sizes), max(sizes))
    check(out, inputs, lambda q, k, v: equation(q, k, v, sizes), dtype)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_precision_of_float32(precision):
    sizes = [3, 67]
    q, k, v = qkv(sizes, 2, 16)
    out = ragged_attention(q, k, v, pointer(sizes), max(sizes), precision=precision)
    right = equation(q.double(), k.double(), v.double(), sizes)
    assert (out - right).norm() / right.norm() < (3e-3 if precision == "tf32" else 1e-6)


def test_heads_on_two_axes_in_any_order():
    sizes = [4, 34]
    kernels, heads, head_dim = 2, 3, 5
    stored = [numbers(kernels, sum(sizes), 2, heads, head_dim, seed=s).requires_grad_() for s in range(3)]
    q, k, v = (t[:, :, 1].transpose(0, 1) for t in stored)
    out = ragged_attention(q, k, v, pointer(sizes), 34)
    assert out.shape == (sum(sizes), kernels, heads, head_dim)

    def flat(t: Tensor) -> Tensor:
        return t[:, :, 1].transpose(0, 1).flatten(1, 2)

    check(out, stored, lambda q, k, v: equation(flat(q), flat(k), flat(v), sizes))


@pytest.mark.parametrize("axes", [(2, 0, 1), (1, 0, 2), (0, 2, 1)], ids=str)
def test_one_axis_of_heads_in_any_order(axes):
    sizes = [4, 34]
    shape = torch.empty(sum(sizes), HEADS, 9).permute([axes.index(a) for a in range(3)]).shape
    stored = [numbers(*shape, seed=s).requires_grad_() for s in range(3)]
    q, k, v = (t.permute(axes) for t in stored)
    out = ragged_attention(q, k, v, pointer(sizes), 34)
    check(out, stored, lambda q, k, v: equation(q.permute(axes), k.permute(axes), v.permute(axes), sizes))


def test_an_expanded_gradient_will_do():
    q, k, v = qkv([4, 34], HEADS, 9)
    (gradient,) = torch.autograd.grad(ragged_attention(q, k, v, pointer([4, 34]), 34).sum(), v)
    torch.testing.assert_close(gradient.sum(dim=0), torch.full((HEADS, 9), 38.0, device=DEVICE))


@pytest.mark.parametrize("mix", ["empty and single", "many tiles"])
def test_bias_and_its_gradient(mix):
    sizes = MIXES[mix]
    q, k, v = qkv(sizes, HEADS, 11)
    bias = numbers(sum(n * n for n in sizes), HEADS, seed=5).requires_grad_()
    out = ragged_attention(q, k, v, pointer(sizes), max(sizes), bias=bias, pair_ptr=pair_pointer(sizes))
    check(out, [q, k, v, bias], lambda q, k, v, b: equation(q, k, v, sizes, b))


def test_one_bias_for_all_heads():
    sizes = [5, 37]
    q, k, v = qkv(sizes, HEADS, 11)
    bias = numbers(25 + 37 * 37, 1, seed=5).requires_grad_()
    out = ragged_attention(q, k, v, pointer(sizes), 37, bias=bias.expand(-1, HEADS), pair_ptr=pair_pointer(sizes))
    check(out, [q, k, v, bias], lambda q, k, v, b: equation(q, k, v, sizes, b.expand(-1, HEADS)))


@pytest.mark.parametrize("n", [9, 40, 100])
def test_a_forbidden_pair_is_not_attended(n):
    """Each node sees itself alone, so that whole blocks of keys are forbidden to it."""
    only_self = torch.full((n, n), -torch.inf, device=DEVICE).fill_diagonal_(0.0).reshape(-1, 1).expand(-1, HEADS)
    q, k, v = qkv([n], HEADS, 5)
    out = ragged_attention(q, k, v, pointer([n]), n, bias=only_self, pair_ptr=pair_pointer([n]))
    torch.testing.assert_close(out, v)
    for gradient, right in zip(torch.autograd.grad(out.sum(), [q, k, v]), [0.0, 0.0, 1.0], strict=True):
        torch.testing.assert_close(gradient, torch.full_like(gradient, right), atol=1e-5, rtol=0.0)


def kept_pairs(sizes: list[int], rate: float, seed: int) -> Tensor:
    """Which pairs dropout keeps: equal scores, and values that say of which key they are."""
    nodes, largest = sum(sizes), max(sizes)
    same = torch.zeros(nodes, HEADS, largest, device=DEVICE)
    which = torch.cat([torch.eye(n, largest, device=DEVICE) for n in sizes])
    which = which[:, None].expand(-1, HEADS, -1)
    out = ragged_attention(
        same, same, which, pointer(sizes), largest, dropout=rate, seed=torch.tensor(seed, device=DEVICE)
    )
    return out > 0


@pytest.mark.parametrize("sizes", [[6, 32, 1], [40], [70, 3]], ids=str)
def test_dropout_forward_and_backward_drop_the_same_pairs(sizes):
    rate, seed = 0.4, torch.tensor(2**40 + 3, device=DEVICE)
    inputs = qkv(sizes, HEADS, 8)
    out = ragged_attention(*inputs, pointer(sizes), max(sizes), dropout=rate, seed=seed)
    weight = kept_pairs(sizes, rate, int(seed)) / (1 - rate)
    check(out, inputs, lambda q, k, v: equation(q, k, v, sizes, weight=weight))


def test_dropout_is_fair():
    """So many are kept in all, in each row, in each column, and of pairs that lie side by side."""
    n, rate = 130, 0.3
    kept = kept_pairs([n], rate, seed=11).double()
    assert abs(kept.mean() - 0.7) < 0.01
    for average in (kept.mean(dim=2), kept.mean(dim=0)):
        assert (average - 0.7).abs().max() < 5 * (0.21 / n) ** 0.5
        assert abs(average.var() / (0.21 / n) - 1) < 0.25
    for a, b in [(kept[1:], kept[:-1]), (kept[..., 1:], kept[..., :-1]), (kept[:, 1:], kept[:, :-1])]:
        assert abs((a * b).mean() - 0.49) < 0.01
    other = kept_pairs([n], rate, seed=12).double()
    assert abs((kept * other).mean() - 0.49) < 0.01


def test_dropout_repeats_with_its_seed_in_any_tiles(monkeypatch):
    sizes = [20, 66]
    before = kept_pairs(sizes, 0.5, seed=3)
    assert kept_pairs(sizes, 0.5, seed=3).equal(before)
    assert not kept_pairs(sizes, 0.5, seed=4).equal(before)
    for key in attention.FORWARD:
        monkeypatch.setitem(attention.FORWARD, key, (4, Launch(32, 16, 4, 1)))
    assert kept_pairs(sizes, 0.5, seed=3).equal(before)


@pytest.mark.parametrize("launch", [Launch(64, 64, 4, 2), Launch(64, 32, 4, 3), Launch(32, 16, 4, 1)], ids=str)
def test_tiles_do_not_matter(launch, monkeypatch):
    for table in (attention.FORWARD, attention.BACKWARD):
        for key in table:
            monkeypatch.setitem(table, key, (4, launch))
    sizes = [65, 3, 40]
    inputs = qkv(sizes, 2, 16, dtype=torch.float16)
    out = ragged_attention(*inputs, pointer(sizes), 65)
    check(out, inputs, lambda q, k, v: equation(q, k, v, sizes), torch.float16)


def test_rows_after_the_last_graph_are_zero():
    sizes, spare = [3, 70], torch.full((100, HEADS, 6), torch.nan, device=DEVICE)
    q, k, v = (torch.cat([t.detach(), spare]).requires_grad_() for t in qkv(sizes, HEADS, 6))
    out = ragged_attention(q, k, v, pointer(sizes), 70)
    right = equation(q[:73].double(), k[:73].double(), v[:73].double(), sizes)
    torch.testing.assert_close(out[:73].double(), right, rtol=1e-5, atol=1e-5)
    for t in (out, *torch.autograd.grad(out.sum(), [q, k, v])):
        assert (t[73:] == 0).all()


@pytest.mark.parametrize("shape", [(0, 2, 4), (5, 0, 4), (5, 2, 0)], ids=str)
def test_nothing_in_nothing_out(shape):
    q = torch.zeros(shape, device=DEVICE, requires_grad=True)
    out = ragged_attention(q, q, q, pointer([shape[0]]), shape[0])
    assert out.shape == shape
    out.sum().backward()
    assert q.grad is not None


def test_no_graphs():
    q = torch.zeros(0, 2, 4, device=DEVICE)
    assert ragged_attention(q, q, q, pointer([]), 0).shape == (0, 2, 4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_tiles_cover_every_row_once_and_large_graphs_come_first(dtype):
    sizes = [7, 65, 0, 200, 32, 33, 128]
    first, start, end, graph = tile_list(pointer(sizes).to(dtype), 480).cpu().T
    used = end > start
    spans = zip(first[used].tolist(), end[used].tolist(), strict=True)
    assert sorted(row for f, e in spans for row in range(f, min(f + 64, e))) == list(range(480))
    in_order = graph[used].tolist()
    assert in_order == [3, 3, 3, 3, 6, 6, 1, 1, 5, -1, 0, 4]
    assert end[used][in_order.index(-1)] == 480
    assert start[used][in_order.index(-1)] == sum(sizes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(5, 2, 257), "key": torch.zeros(5, 2, 257), "value": torch.zeros(5, 2, 257)}, "257"),
        ({"key": torch.zeros(5, 2, 3)}, "shapes differ"),
        ({"key": torch.zeros(5, 2, 4, dtype=torch.half)}, "dtypes differ"),
        ({"query": torch.zeros(5, 4)}, "one or two axes"),
        (dict.fromkeys(["query", "key", "value"], torch.zeros(5, 2, 4, dtype=torch.double)), "float64"),
        ({"dropout": 1.0}, "below 1"),
    ],
)
def test_bad_input_is_refused(change, message):
    good = dict.fromkeys(["query", "key", "value"], torch.zeros(5, 2, 4))
    arguments = {**good, "ptr": torch.tensor([0, 5]), "largest": 5, **change}
    with pytest.raises(InputError, match=message):
        ragged_attention(**arguments)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_captured_call_follows_its_batch():
    """Replayed with other graphs, another seed and other numbers, it computes what a fresh call would."""
    batches = [[70, 5, 40], [5, 100, 10]]
    inputs = qkv(batches[0], HEADS, 16)
    grad = numbers(115, HEADS, 16, seed=9)
    ptr, seed = pointer(batches[0]), torch.tensor(1, device=DEVICE)

    def call() -> list[Tensor]:
        out = ragged_attention(*inputs, ptr, 100, dropout=0.2, seed=seed)
        return [out, *torch.autograd.grad(out, inputs, grad)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    ptr.copy_(pointer(batches[1]))
    seed.fill_(2)
    with torch.no_grad():
        inputs[0].copy_(numbers(115, HEADS, 16, seed=20))
    graph.replay()
    for a, b in zip(captured, call(), strict=True):
        assert a.equal(b)
