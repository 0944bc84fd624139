"""A layer computes its formula from any parts."""

import pytest
import torch
from strategies import generator, random_batch
from torch import Tensor, nn

from mnagt.attention.kernels import Hop
from mnagt.attention.mixers import MIXERS
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.nn.layer import IdentityResidual, Layer, LayerScale, PostNormLayer, PropagatedResidual, feed_forward
from mnagt.nn.norms import BatchNorm, LayerNorm

DIM, KERNELS = 7, 3


def build(layer: type[Layer] = Layer, mixer: str = "adaptive", dropout: float = 0.0, is_scaled: bool = True) -> Layer:
    torch.manual_seed(0)
    return layer(
        MultiKernelAttention(DIM, [Hop(k) for k in range(KERNELS)], heads=2, head_dim=5),
        mixer=MIXERS[mixer](DIM, KERNELS),
        residual=PropagatedResidual(),
        ffn=feed_forward(DIM, 11),
        norms=(LayerNorm(DIM), LayerNorm(DIM)),
        scales=(LayerScale(DIM, 0.3), LayerScale(DIM, 0.2)) if is_scaled else None,
        dropout=dropout,
    ).double()


def nodes(count: int) -> Tensor:
    return torch.randn(count, DIM, generator=generator(1), dtype=torch.float64)


def scaled(scale: LayerScale | None, x: Tensor) -> Tensor:
    return x if scale is None else scale(x)


@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("mixer", MIXERS)
def test_layers_are_their_formulas(mixer, is_scaled):
    graph, x = random_batch([5, 1, 7], 0.4, seed=0), nodes(13)
    layer = build(Layer, mixer, is_scaled=is_scaled)
    z = layer.residual(x, graph) + scaled(layer.scale_attention, layer.mixer(layer.attend(x, graph)))
    expected = z + scaled(layer.scale_ffn, layer.ffn(layer.norm_ffn(z, graph)))
    torch.testing.assert_close(layer(x, graph), expected)

    layer = build(PostNormLayer, mixer, is_scaled=is_scaled)
    z = layer.residual(x, graph) + scaled(layer.scale_attention, layer.mixer(layer.attend(x, graph)))
    z = layer.norm_attention(z, graph)
    expected = layer.norm_ffn(z + scaled(layer.scale_ffn, layer.ffn(z)), graph)
    torch.testing.assert_close(layer(x, graph), expected)


def test_dropout_acts_on_both_branches_in_training_alone():
    graph, x = random_batch([5, 1, 7], 0.4, seed=0), nodes(13)
    plain, dropping = build(), build(dropout=0.999)
    assert not torch.equal(dropping(x, graph), plain(x, graph))
    torch.testing.assert_close(dropping.eval()(x, graph), plain.eval()(x, graph))


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d, nn.Identity, LayerNorm, BatchNorm])
def test_any_module_is_a_norm(norm):
    graph = random_batch([5, 1, 7], 0.4, seed=0)
    layer = Layer(
        MultiKernelAttention(DIM, [Hop(0)], heads=2, head_dim=5),
        mixer=MIXERS["mean"](DIM, 1),
        residual=IdentityResidual(),
        ffn=feed_forward(DIM, 11),
        norms=(norm(DIM), norm(DIM)),
    )
    layer(nodes(13).float(), graph).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
