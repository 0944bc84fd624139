"""Settings of ``mnagt`` that the conformance tests do not reach."""

import pytest
import torch
from strategies import CATEGORIES, NODE_LABELS, random_batch

from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.models.mnagt import MnagtConfig, mnagt

LABELLED = Features(Columns((CATEGORIES,) * NODE_LABELS))


@pytest.mark.parametrize("residual", ["block", "skip-block"])
def test_dropout_of_message_passing_acts_in_training_alone(residual):
    settings = {"attention": "none", "residual": residual, "dropout": 0.0, "wl_iterations": 0, "depth": 1}
    torch.manual_seed(3)
    model = mnagt(MnagtConfig(**settings, conv_dropout=0.5), LABELLED, outputs=2)
    torch.manual_seed(3)
    twin = mnagt(MnagtConfig(**settings), LABELLED, outputs=2)
    batch = random_batch([5, 3], 0.5, seed=1, node_labels=True)
    model.eval()
    twin.eval()
    torch.testing.assert_close(model(batch), twin(batch))
    model.train()
    twin.train()
    assert not torch.equal(model(batch), twin(batch))


@pytest.mark.parametrize("settings", [{"conv": "gated"}, {"conv": "none"}, {"residual": "conv"}])
def test_dropout_of_message_passing_is_refused_where_it_would_do_nothing(settings):
    with pytest.raises(InputError, match="conv_dropout"):
        MnagtConfig(conv_dropout=0.1, **settings)
