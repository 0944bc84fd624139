"""One step for all parameters at once is torch's, one by one."""

import pytest
import torch
from strategies import generator
from torch import nn

from mnagt.ops import parameter_copies
from mnagt.ops.adamw import ALIGNED, FlatAdamW

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Embedding(700, 3), nn.Linear(5, 1, bias=False)).to(DEVICE)


def groups(of: nn.Module) -> list[dict]:
    decayed, spared = ([p for p in of.parameters() if (p.ndim > 1) == is_matrix] for is_matrix in (True, False))
    return [{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}]


def fill(of: nn.Module, seed: int) -> None:
    for number, p in enumerate(of.parameters()):
        p.grad = torch.randn(p.shape, generator=generator(31 * seed + number)).to(DEVICE)


def rate(value: float) -> torch.Tensor:
    return torch.tensor(value, device=DEVICE)


@pytest.mark.parametrize("clip", [0.0, 3.0, 1000.0])
def test_steps_are_torchs(clip):
    ours, twin = model(), model()
    flat = FlatAdamW(groups(ours), rate(0.01), clip=clip)
    plain = torch.optim.AdamW(groups(twin), lr=0.01)
    for step in range(5):
        for each in (ours, twin):
            fill(each, step)
        flat.step()
        if clip:
            nn.utils.clip_grad_norm_(twin.parameters(), clip)
        plain.step()
    torch.testing.assert_close(ours.state_dict(), twin.state_dict(), rtol=1e-5, atol=1e-7)
    for p, q in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(flat.state[p], plain.state[q], rtol=1e-4, atol=1e-8, check_device=False)


def test_parameters_lie_side_by_side_and_have_copies_in_half_precision():
    ours = model()
    flat = FlatAdamW(groups(ours), rate(0.01), clip=1.0, copy_dtype=torch.bfloat16)
    fill(ours, 0)
    flat.step()
    for p in ours.parameters():
        assert p.data_ptr() % (4 * ALIGNED) == next(ours.parameters()).data_ptr() % (4 * ALIGNED)
        assert parameter_copies.cast(p, torch.bfloat16) is parameter_copies.cast(p, torch.bfloat16)
        torch.testing.assert_close(parameter_copies.cast(p, torch.bfloat16), p.bfloat16())
    first = next(ours.parameters())
    with torch.no_grad():
        first.fill_(7.0)
    flat.refresh()
    assert (parameter_copies.cast(first, torch.bfloat16) == 7).all()
    parameter_copies.release([first])
    assert parameter_copies.cast(first, torch.bfloat16) is not parameter_copies.cast(first, torch.bfloat16)


def test_memory_is_taken_over():
    ours, other = model(), model()
    first, second = (FlatAdamW(groups(m), rate(0.01), clip=1.0) for m in (ours, other))
    for step in range(2):
        fill(ours, step)
        first.step()
    other.load_state_dict(ours.state_dict())
    second.load_state_dict(first.state_dict())
    for m, optimizer in ((ours, first), (other, second)):
        fill(m, 2)
        optimizer.step()
    torch.testing.assert_close(ours.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_no_gradient_is_a_gradient_of_zeros():
    ours = nn.Linear(3, 1, bias=False).to(DEVICE)
    before = ours.weight.detach().clone()
    FlatAdamW([{"params": [ours.weight], "weight_decay": 0.0}], rate(0.01), clip=1.0).step()
    assert torch.equal(ours.weight, before)
