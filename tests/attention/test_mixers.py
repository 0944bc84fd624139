"""Mixers merge what kernels bring, node by node."""

import pytest
import torch

from mnagt.attention.mixers import MIXERS, Adaptive, Concat, Mean, Sum

NODES, KERNELS, DIM = 5, 3, 7


@pytest.mark.parametrize("name", ["adaptive", "mean", "sum"])
def test_one_kernel_needs_no_mixing(name):
    z = torch.randn(NODES, 1, DIM)
    torch.testing.assert_close(MIXERS[name](DIM, 1)(z), z[:, 0])


@pytest.mark.parametrize("name", MIXERS)
def test_a_node_is_mixed_by_itself(name):
    torch.manual_seed(0)
    mixer, z = MIXERS[name](DIM, KERNELS), torch.randn(NODES, KERNELS, DIM)
    torch.testing.assert_close(mixer(z)[2:3], mixer(z[2:3]))


def test_adaptive_weights_add_up_to_one_and_differ_between_nodes():
    torch.manual_seed(0)
    weights = Adaptive(DIM, KERNELS).weights(torch.randn(NODES, KERNELS, DIM))
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(NODES, 1))
    assert weights[:, 0].std() > 0


def test_adaptive_follows_its_scores():
    mixer, z = Adaptive(DIM, 2), torch.zeros(1, 2, DIM)
    z[0, 1] = 5.0
    with torch.no_grad():
        mixer.project.weight.copy_(torch.eye(DIM))
        mixer.score.weight.fill_(100.0)
    torch.testing.assert_close(mixer(z), z[:, 1])


def test_mean_and_sum_are_what_they_say():
    z = torch.randn(NODES, KERNELS, DIM)
    torch.testing.assert_close(Mean(DIM, KERNELS)(z) * KERNELS, Sum(DIM, KERNELS)(z))


def test_concat_can_pick_one_kernel():
    mixer, z = Concat(DIM, KERNELS), torch.randn(NODES, KERNELS, DIM)
    with torch.no_grad():
        mixer.project.weight.copy_(torch.eye(KERNELS * DIM)[DIM : 2 * DIM])
        mixer.project.bias.zero_()
    torch.testing.assert_close(mixer(z), z[:, 1])
