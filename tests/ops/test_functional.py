"""The operations choose between kernel and torch themselves, and take inputs that no kernel takes."""

from unittest.mock import patch

import torch
from strategies import generator

from mnagt import ops
from mnagt.ops import functional, layer_norm, mixer, norm, scale


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed))


def call_all(rows: int, dim: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The outputs of all operations on the same numbers."""
    x, z = numbers(rows, dim).to(dtype), numbers(rows, 3, dim, seed=1).to(dtype)
    weight, mean, var = numbers(dim, seed=2).to(dtype), torch.zeros(dim, dtype=dtype), torch.ones(dim, dtype=dtype)
    return {
        "scaled_add": functional.scaled_add(x, weight, x),
        "mix": functional.mix(z, z, weight, weight, x),
        "layer_norm": functional.layer_norm(x, weight, weight, 1e-5),
        "batch_norm": functional.batch_norm(x, weight, weight, mean, var, None, momentum=0.1, eps=1e-5, relu=True),
    }


def test_no_rows_stay_no_rows(monkeypatch):
    monkeypatch.setattr(ops, "is_usable", lambda device: True)
    assert {out.shape for out in call_all(0, 5).values()} == {torch.Size([0, 5])}


def test_double_precision_is_left_to_torch(monkeypatch):
    expected = call_all(13, 5, torch.float64)
    monkeypatch.setattr(ops, "is_usable", lambda device: True)
    torch.testing.assert_close(call_all(13, 5, torch.float64), expected, rtol=0, atol=0)


def test_kernels_are_taken_where_they_can_run(monkeypatch):
    expected = call_all(13, 5)
    with (
        patch.object(scale.ScaledAdd, "apply", wraps=scale.ScaledAdd.apply) as scaled_add,
        patch.object(mixer.Mix, "apply", wraps=mixer.Mix.apply) as mix,
        patch.object(layer_norm.LayerNorm, "apply", wraps=layer_norm.LayerNorm.apply) as by_row,
        patch.object(norm.BatchNorm, "apply", wraps=norm.BatchNorm.apply) as by_column,
    ):
        monkeypatch.setattr(ops, "is_usable", lambda device: True)
        torch.testing.assert_close(call_all(13, 5), expected, rtol=1e-5, atol=1e-5)
    assert all(kernel.called for kernel in (scaled_add, mix, by_row, by_column))


def test_padding_does_not_count_in_batch_norm():
    x, weight = numbers(11, 3), torch.ones(3)

    def normalise(rows: torch.Tensor, num_valid: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        mean = torch.zeros(3)
        count = None if num_valid is None else torch.tensor(num_valid)
        y = functional.batch_norm(rows, weight, None, mean, weight.clone(), count, momentum=0.3, eps=1e-5, relu=False)
        return y[:7], mean

    torch.testing.assert_close(normalise(x, 7), normalise(x[:7], None))
