"""A sum over nodes of rows of a table is a linear model over normalised counts."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches

from mnagt.graphs.weisfeiler_lehman import STRUCTURAL_COLOURS, subtree_colours
from mnagt.nn.wl_counts import WLCounts, colour_keys, count_equal, find_sorted

NORMALISATIONS = {
    "presence": lambda n: torch.ones_like(n),
    "raw": lambda n: n,
    "log": lambda n: (1 + n).log(),
    "l2": lambda n: n / n.norm(),
    "log-l2": lambda n: (1 + n).log() / (1 + n).log().norm(),
}


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@given(batch=batches(node_labels=None, edge_labels=None, is_directed=None), seed=st.integers(0, 99))
def test_outputs_are_weights_times_counts(normalisation, batch, seed):
    initial = STRUCTURAL_COLOURS if batch.node_labels is None else 1
    counts = WLCounts(outputs=3, iterations=2, initial=initial, normalisation=normalisation).double()
    keys = colour_keys(subtree_colours(batch, 2))
    generator = torch.Generator().manual_seed(seed)
    known = keys.unique()
    known = known[torch.rand(len(known), generator=generator) < 0.8]
    counts.key = known
    counts.weight = torch.nn.Parameter(torch.randn(len(known), 3, generator=generator).double())
    counts.bias.data = torch.randn(3, generator=generator).double()
    outputs = counts(*counts.prepare(torch.zeros(batch.num_nodes, 0), batch))
    for g in range(batch.num_graphs):
        found = Counter(keys[batch.graph_of_node == g].flatten().tolist())
        rows = [row for row, key in enumerate(known.tolist()) if found[key]]
        number = torch.tensor([found[known[row].item()] for row in rows]).double()
        expected = NORMALISATIONS[normalisation](number) @ counts.weight[rows] + counts.bias
        torch.testing.assert_close(outputs[g], expected)


@given(st.lists(st.integers(-9, 9)), st.lists(st.integers(-9, 9)))
def test_numbers_are_found_and_counted(values, wanted):
    table = torch.tensor(sorted(set(values)), dtype=torch.long)
    rows = find_sorted(table, torch.tensor(wanted, dtype=torch.long)).tolist()
    assert rows == [sorted(set(values)).index(each) if each in values else -1 for each in wanted]
    counted = count_equal(torch.tensor(values, dtype=torch.long)).tolist()
    assert counted == [values.count(each) for each in values]
