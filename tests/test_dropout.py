"""Our dropout on a CPU is torch's, drawn otherwise."""

import pytest
import torch
from torch import nn

from mnagt.dropout import LEVELS, Dropout

SIZES = 300, 401


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.6, 0.9])
def test_as_many_are_dropped_as_torch_drops_and_the_others_are_scaled_alike(p):
    torch.manual_seed(0)
    x = torch.rand(SIZES, dtype=torch.float64) + 1
    dropped = []
    for dropout in (Dropout(p), nn.Dropout(p)):
        out = dropout(x)
        kept = out != 0
        torch.testing.assert_close(out[kept], x[kept] / (1 - p), rtol=1 / LEVELS / (1 - p), atol=0)
        dropped.append(1 - kept.double().mean().item())
    spread = (p * (1 - p) / x.numel()) ** 0.5
    assert dropped == pytest.approx([p, p], abs=4 * spread)


def test_each_place_is_drawn_by_itself():
    torch.manual_seed(0)
    kept = torch.stack([Dropout(0.5)(torch.ones(64)) != 0 for _ in range(4000)]).double()
    assert torch.corrcoef(kept.T).fill_diagonal_(0).abs().max() < 0.08


def test_gradients_go_where_numbers_went():
    x = torch.ones(SIZES, requires_grad=True)
    out = Dropout(0.3)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_a_seed_gives_the_same_again_with_any_number_of_threads():
    threads, outs = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        torch.manual_seed(3)
        outs.append(Dropout(0.4)(torch.ones(SIZES)))
    torch.set_num_threads(threads)
    assert torch.equal(*outs)


@pytest.mark.parametrize(("p", "mean"), [(1e-9, 1.0), (0.99999, 1.0)])
def test_shares_near_nothing_and_all_are_finite(p, mean):
    torch.manual_seed(0)
    out = Dropout(p)(torch.ones(2_000_000))
    assert out.isfinite().all()
    assert out.mean().item() == pytest.approx(mean, abs=0.9)


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (3, 0), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_shape_and_type_stays_what_it_is(shape, dtype):
    out = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert (out.shape, out.dtype) == (torch.Size(shape), dtype)


def test_in_evaluation_and_for_nothing_it_does_nothing():
    x = torch.rand(7)
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(Dropout(0.0)(x), x)
