"""Molecules look like molecules."""

import numpy as np
import pytest

from mnagt.reports.graph_drawing import compute_layout, find_smallest_rings

BENZENE = [(i, (i + 1) % 6) for i in range(6)]
NAPHTHALENE = [*BENZENE, (0, 6), (6, 7), (7, 8), (8, 9), (9, 1)]


def test_the_same_molecule_is_laid_out_the_same():
    np.testing.assert_array_equal(compute_layout(10, NAPHTHALENE), compute_layout(10, NAPHTHALENE))


def test_rings_look_like_rings():
    hexagon = compute_layout(6, BENZENE)
    np.testing.assert_allclose(np.hypot(*(hexagon - hexagon.mean(axis=0)).T), 1, atol=0.01)
    fused = compute_layout(10, NAPHTHALENE)
    lengths = [np.hypot(*(fused[i] - fused[j])) for i, j in NAPHTHALENE]
    np.testing.assert_allclose(lengths, 1, atol=0.05)


def test_a_nitro_group_keeps_its_oxygens_apart():
    positions = compute_layout(9, [*BENZENE, (0, 6), (6, 7), (6, 8)])
    assert np.hypot(*(positions[7] - positions[8])) > 1.3


@pytest.mark.parametrize("count", [1, 2, 5])
def test_nodes_without_edges_lie_apart(count):
    positions = compute_layout(count, [])
    apart = np.hypot(*(positions[:, None] - positions[None]).T) + np.eye(count)
    assert apart.min() > 0.7


def test_the_smallest_ring_of_a_bond():
    rings = dict(zip(NAPHTHALENE, find_smallest_rings(10, NAPHTHALENE), strict=True))
    assert sorted(rings[2, 3]) == [0, 1, 2, 3, 4, 5]
    assert sorted(rings[7, 8]) == [0, 1, 6, 7, 8, 9]
    assert find_smallest_rings(3, [(0, 1), (1, 2)]) == [[], []]
