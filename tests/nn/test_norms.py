"""BatchNorm is torch's, in what it computes and in what it remembers."""

import pytest
import torch
from torch import nn

from mnagt.nn.norms import BatchNorm


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_torchs_over_several_batches(affine):
    ours, theirs = BatchNorm(5, affine=affine), nn.BatchNorm1d(5, affine=affine)
    for rows in (7, 11, 3):
        x = 3 + 2 * torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
    x = torch.randn(2, 5)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
