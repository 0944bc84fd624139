"""The fast model is the paper's: equations 1 to 12, dense matrices, one graph at a time, float64."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import batches

from mnagt.graphs.features import Features
from mnagt.models.registry import build_model
from mnagt.reference.paper import mnagt_paper


@settings(max_examples=30)
@given(batches(is_directed=None), st.sampled_from(["sym", "row"]), st.sampled_from(["separate", "shared"]))
def test_fast_equals_reference(graph, norm, projections):
    torch.manual_seed(0)
    chosen = {"adjacency": norm, "projections": projections, "max_hop": 3, "heads": 3, "head_dim": 5, "dim": 11}
    model = build_model("mnagt-paper", chosen, Features(), outputs=2).eval()
    expected = mnagt_paper(model, graph, norm)
    torch.testing.assert_close(model(graph), expected.float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.double()(graph), expected)
