import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import generator

from mnagt.graphs.buckets import Buckets

sizes = st.lists(st.integers(0, 11), max_size=9).map(lambda each: torch.tensor(each, dtype=torch.long))
steps = st.sampled_from([1, 4])


def masks(buckets: Buckets) -> list[torch.Tensor]:
    """Whether each slot holds a node, bucket by bucket."""
    return [
        torch.ones(bucket.graphs, bucket.width, dtype=torch.bool) if bucket.is_node is None else bucket.is_node
        for bucket in buckets.groups
    ]


def filled(buckets: Buckets) -> torch.Tensor:
    """Whether each node slot holds a node, all buckets end to end."""
    return torch.cat([torch.zeros(0, dtype=torch.bool), *(mask.flatten() for mask in masks(buckets))])


def filled_pairs(buckets: Buckets) -> torch.Tensor:
    """Whether each pair slot holds a pair of nodes, all buckets end to end."""
    pairs = [(mask[:, :, None] & mask[:, None, :]).flatten() for mask in masks(buckets)]
    return torch.cat([torch.zeros(0, dtype=torch.bool), *pairs])


@given(sizes, steps)
def test_every_graph_with_nodes_is_in_one_bucket_wide_enough(sizes, step):
    buckets = Buckets.plan(sizes, step=step)
    widths = [bucket.width for bucket in buckets.groups for _ in range(bucket.graphs)]
    assert sorted(buckets.graphs.tolist()) == sizes.nonzero()[:, 0].tolist()
    assert all(0 <= width - n < step for width, n in zip(widths, sizes[buckets.graphs].tolist(), strict=True))
    assert [bucket.width for bucket in buckets.groups] == sorted({bucket.width for bucket in buckets.groups})


@given(sizes)
def test_graphs_of_equal_size_need_no_mask(sizes):
    assert all(bucket.is_node is None for bucket in Buckets.plan(sizes, step=1).groups)


@given(sizes, steps)
def test_filled_slots_hold_each_node_once_in_order(sizes, step):
    buckets = Buckets.plan(sizes, step=step)
    is_node = filled(buckets)
    row_of_slot, slot_of_row = buckets.nodes.row_of_slot, buckets.nodes.slot_of_row
    first = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).tolist()
    expected = [v for g in buckets.graphs.tolist() for v in range(first[g], first[g + 1])]
    assert row_of_slot[is_node].tolist() == expected
    assert bool(is_node[slot_of_row].all())
    assert row_of_slot[slot_of_row].equal(torch.arange(int(sizes.sum())))


@given(sizes, steps)
def test_filled_slots_hold_each_pair_once(sizes, step):
    buckets = Buckets.plan(sizes, step=step)
    layout, rows, is_pair = buckets.pairs(), int((sizes**2).sum()), filled_pairs(buckets)
    assert layout.row_of_slot[is_pair].sort().values.equal(torch.arange(rows))
    assert bool(is_pair[layout.slot_of_row].all())
    assert layout.row_of_slot[layout.slot_of_row].equal(torch.arange(rows))


def test_pairs_run_row_by_row():
    assert Buckets.plan(torch.tensor([3, 2]), step=1).pairs().row_of_slot.tolist() == [
        9,
        10,
        11,
        12,
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
    ]


def test_layouts_are_the_same_with_many_threads():
    """Padding repeats rows; with several threads, which of the equal slots won used to be a race."""
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for seed in range(5):
            buckets = Buckets.plan(torch.randint(1, 60, (512,), generator=generator(seed)), step=16)
            assert bool(filled_pairs(buckets)[buckets.pairs().slot_of_row].all())
    finally:
        torch.set_num_threads(threads)


@given(sizes, steps)
def test_a_layout_is_the_identity_when_slots_are_rows(sizes, step):
    nodes = Buckets.plan(sizes, step=step).nodes
    assert nodes.is_identity == (nodes.row_of_slot.tolist() == list(range(int(sizes.sum()))))


@given(sizes, steps)
def test_collecting_undoes_spreading(sizes, step):
    nodes = Buckets.plan(sizes, step=step).nodes
    rows = torch.randn(int(sizes.sum()), 3, generator=generator(0))
    torch.testing.assert_close(nodes.unpad(nodes.pad(rows)), rows)


@pytest.mark.parametrize("step", [1, 4])
def test_only_filled_slots_pass_gradients(step):
    buckets = Buckets.plan(torch.tensor([3, 5, 1, 3]), step=step)
    nodes, is_node = buckets.nodes, filled(buckets)
    rows = torch.randn(12, 2, dtype=torch.double, generator=generator(0), requires_grad=True)
    weight = torch.randn(len(is_node), 2, dtype=torch.double, generator=generator(1))
    (padded,) = torch.autograd.grad((nodes.pad(rows) * weight).sum(), rows)
    torch.testing.assert_close(padded, weight[nodes.slot_of_row])

    slots = torch.randn(len(is_node), 2, dtype=torch.double, generator=generator(2), requires_grad=True)
    (unpadded,) = torch.autograd.grad(nodes.unpad(slots).sum(), slots)
    torch.testing.assert_close(unpadded, is_node.double()[:, None].expand(-1, 2))
