"""Names tell apart what Weisfeiler and Leman tell apart, and nothing else."""

from dataclasses import replace

import networkx
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, order_within, random_batch, renamed

from mnagt.graphs.convert import from_networkx
from mnagt.graphs.ego_statistics import count_ego_networks
from mnagt.graphs.weisfeiler_lehman import fragment_colours, wl_colours


@given(batches(is_directed=None, node_labels=None, edge_labels=None), st.integers(0, 99))
def test_renaming_nodes_renames_their_names(batch, seed):
    order = order_within(batch, seed)
    assert torch.equal(wl_colours(renamed(batch, order), 4), wl_colours(batch, 4)[order])


@given(batches(is_directed=None, node_labels=None, edge_labels=None))
def test_two_nodes_share_a_name_exactly_when_their_surroundings_look_alike(batch):
    """Against the slow way: names are the nested tuples themselves."""

    def labels(columns, i):
        return () if columns is None else tuple(columns[i].tolist())

    seen = [labels(batch.node_labels, v) for v in range(batch.num_nodes)]
    for r, names in enumerate(wl_colours(batch, 3).unbind(dim=1)):
        into = [[] for _ in seen]
        for e, (u, v) in enumerate(batch.edge_index.T.tolist()):
            into[v].append((seen[u], labels(batch.edge_labels, e)))
        seen = [(own, tuple(sorted(around))) for own, around in zip(seen, into, strict=True)]
        if r == 0 and batch.node_labels is None:
            seen = list(zip(seen, map(tuple, count_ego_networks(batch, 1)[:, 0, :2].tolist()), strict=True))
        is_same = [[one == other for one in seen] for other in seen]
        assert (names[:, None] == names).tolist() == is_same


def test_without_labels_the_first_round_names_degrees_and_edges_among_neighbours():
    star, ring, clique = map(
        from_networkx, (networkx.star_graph(5), networkx.cycle_graph(6), networkx.complete_graph(3))
    )
    (names,) = wl_colours(star, 1).T.tolist()
    assert len(set(names[1:])) == 1
    assert names[0] != names[1]
    assert int(wl_colours(ring, 1)[0]) != int(wl_colours(clique, 1)[0])


def test_labels_in_other_columns_are_other_labels():
    batch = random_batch([2], 0.0, seed=0)
    names = wl_colours(replace(batch, node_labels=torch.tensor([[0, 1], [1, 0]])), 1)
    assert names[0] != names[1]


def test_names_are_whole_numbers_that_a_table_can_be_cut_from():
    names = wl_colours(random_batch([31, 7], 0.2, seed=0, node_labels=True), 5)
    assert names.dtype == torch.int32
    assert int(names.min()) >= 0


@given(batches(is_directed=None, node_labels=True, edge_labels=True))
def test_coarse_pieces_see_the_first_labels_alone_and_fine_ones_all(batch):
    coarse, fine = fragment_colours(batch, 3).split([4, 3], dim=1)
    first = replace(batch, node_labels=batch.node_labels[:, :1], edge_labels=batch.edge_labels[:, :1])
    assert torch.equal(coarse[:, 1:], wl_colours(first, 3))
    assert torch.equal(fine[:, 1:], wl_colours(batch, 2))
    for names, labels in ((coarse, first.node_labels), (fine, batch.node_labels)):
        is_same = (labels[:, None] == labels).all(dim=2)
        assert torch.equal(names[:, None, 0] == names[:, 0], is_same)
