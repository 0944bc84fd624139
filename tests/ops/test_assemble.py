"""Batches cut by Triton are those that torch cuts."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import batches

from mnagt.data.packed import PackedDataset
from mnagt.data.padded_batches import NO_GRAPH, Layout, PaddedBatches
from mnagt.graphs.padding import PADDING_GRAPH_SIZE, Shape
from mnagt.ops.assemble import assemble
from mnagt.tasks import Regression

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@settings(max_examples=30, deadline=None)
@given(batch=batches(is_directed=None, targets=True), data=st.data())
def test_the_layout_is_the_twins(batch, data):
    dataset = PackedDataset.from_batch("toys", Regression(("t",) * batch.targets.shape[1]), batch).to(DEVICE)
    graphs = data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=6))
    slots = torch.tensor(graphs + [NO_GRAPH] * data.draw(st.integers(0, 4)), device=DEVICE)
    fixed = PaddedBatches(dataset)
    needed = fixed.shape_of(slots.cpu())
    spare_edges = data.draw(st.integers(0, 300)) if len(dataset.source) else 0
    shape = Shape(len(slots), needed.nodes + data.draw(st.integers(1, 400)), needed.edges + spare_edges)
    got = Layout(*assemble(slots, *fixed._ptrs, dataset.source, shape.nodes, shape.edges, PADDING_GRAPH_SIZE))
    for name, mine, right in zip(Layout._fields, got, fixed._layout(slots, shape), strict=True):
        torch.testing.assert_close(mine, right, rtol=0, atol=0, msg=name)
