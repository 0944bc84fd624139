"""Positions of the nodes of small graphs in the plane: edges of one length, rings as regular polygons."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

MAX_RING = 8
"""Atoms of the largest cycle that is drawn as a regular polygon."""


def compute_layout(count: int, edges: Sequence[tuple[int, int]]) -> Float[np.ndarray, "nodes 2"]:
    r"""Positions of ``count`` nodes, edges about 1 long; deterministic.

    Stress majorisation: minimises :math:`\sum_{ij} t_{ij}^{-3} (|x_i - x_j| - t_{ij})^2` from eight starts, where
    :math:`t_{ij}` is the chord of a regular polygon in a small ring and the length of a zigzag of 120° elsewhere.

    >>> compute_layout(2, [(0, 1)]).round(2).tolist()
    [[-0.5, 0.0], [0.5, 0.0]]
    """
    if count < 2:
        return np.zeros((count, 2))
    target = _target_distances(count, edges)
    weight = target**-3
    np.fill_diagonal(weight, 0)
    inverse = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    best, least = np.zeros((count, 2)), math.inf
    for seed in range(8):
        x = _scale_to_plane(target) + 0.3 * np.random.default_rng(seed).normal(size=(count, 2))
        for _ in range(250):
            pull = -weight * target / np.maximum(_distances(x), 1e-9)
            np.fill_diagonal(pull, 0)
            np.fill_diagonal(pull, -pull.sum(axis=1))
            x = inverse @ (pull @ x)
        stress = float((weight * (_distances(x) - target) ** 2).sum())
        if stress < least - 1e-6:
            best, least = x, stress
    return _rotate_upright(best, edges)


def find_smallest_ring(i: int, j: int, neighbours: Sequence[Sequence[int]]) -> list[int]:
    """Nodes of the smallest cycle through the edge i-j, in order; empty if it has more than `MAX_RING`."""
    paths, visited = [[i]], {i}
    while paths and len(paths[0]) < MAX_RING:
        longer = []
        for path in paths:
            for node in neighbours[path[-1]]:
                if node == j and len(path) > 1:
                    return [*path, j]
                if node not in visited and node != j:
                    visited.add(node)
                    longer.append([*path, node])
        paths = longer
    return []


def list_neighbours(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The neighbours of each node."""
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)
    return neighbours


def _distances(x: Float[np.ndarray, "nodes 2"]) -> Float[np.ndarray, "nodes nodes"]:
    return np.hypot(*(x[:, None] - x[None]).T)


def _target_distances(count: int, edges: Sequence[tuple[int, int]]) -> Float[np.ndarray, "nodes nodes"]:
    """Wanted distances between nodes; 1 on the diagonal. Connected components lie apart."""
    steps = np.full((count, count), np.inf)
    np.fill_diagonal(steps, 0)
    for i, j in edges:
        steps[i, j] = steps[j, i] = 1
    for k in range(count):
        steps = np.minimum(steps, steps[:, k, None] + steps[None, k])
    steps[np.isinf(steps)] = steps[np.isfinite(steps)].max() + 1
    target = np.sqrt(0.75 * steps**2 + 0.25 * (steps % 2))
    neighbours = list_neighbours(count, edges)
    for i, j in edges:
        ring = find_smallest_ring(i, j, neighbours)
        for a, first in enumerate(ring):
            for b, second in enumerate(ring):
                target[first, second] = math.sin(math.pi * abs(a - b) / len(ring)) / math.sin(math.pi / len(ring))
    np.fill_diagonal(target, 1)
    return np.maximum(target, 1)


def _scale_to_plane(target: Float[np.ndarray, "nodes nodes"]) -> Float[np.ndarray, "nodes 2"]:
    """Classical multidimensional scaling of the distances."""
    squares = target**2
    np.fill_diagonal(squares, 0)
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1, keepdims=True) + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    return vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))


def _rotate_upright(x: Float[np.ndarray, "nodes 2"], edges: Sequence[tuple[int, int]]) -> Float[np.ndarray, "nodes 2"]:
    """Rotated so that the longer side is horizontal, and edges are at multiples of 30° where they can be."""
    x = x - x.mean(axis=0)
    x = x @ np.linalg.svd(x, full_matrices=False)[2].T
    if edges:
        first, second = np.array(edges).T
        angles = np.arctan2(*(x[second] - x[first]).T[::-1])
        turn = np.angle(np.exp(12j * angles).sum()) / 12
        x = x @ np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    return x
