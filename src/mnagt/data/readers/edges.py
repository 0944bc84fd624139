"""Edges from the pairs of nodes in a file: self loops go, of equal edges the first stays, other directions are added.

Each edge is one sortable number, its key: the destination in the upper 32 bits, the source in the lower ones.
"""

import logging

import numpy as np
from numpy.typing import NDArray

from mnagt.graphs.edges import log_dropped_edges

_log = logging.getLogger(__name__)


def add_reverse_edges(
    name: str, ends: NDArray[np.integer], is_directed: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sorted keys of the edges, and the row of ``ends`` that each comes from.

    Args:
        name: of the data set, for the log.
        ends: (source, destination) of each edge.
        is_directed: edges that get no other direction; by default all are undirected.
    """
    row = np.flatnonzero(ends[:, 0] != ends[:, 1])
    keys, first = np.unique(_to_keys(ends[row]), return_index=True)
    log_dropped_edges(name, len(ends) - len(row), len(row) - len(keys))
    row, reverse = row[first], reverse_keys(keys)
    is_new = ~np.isin(reverse, keys, assume_unique=True)
    if is_directed is None:
        _log_added(name, int(is_new.sum()))
    else:
        is_new &= ~is_directed[row]
    keys, row = np.concatenate([keys, reverse[is_new]]), np.concatenate([row, row[is_new]])
    order = keys.argsort(kind="stable")
    return keys[order], row[order]


def undirected_keys(name: str, ends: NDArray[np.integer]) -> NDArray[np.int64]:
    """The keys of ``add_reverse_edges`` where edges have no columns, in less time and memory."""
    is_edge = ends[:, 0] != ends[:, 1]
    if loops := len(ends) - int(is_edge.sum()):
        ends = ends[is_edge]
    num_given, keys = len(ends), _to_keys(ends)
    del ends, is_edge
    # Which way round the edges are sorted first does not matter.
    keys = _sort_distinct(reverse_keys(keys))
    reverse = _sort_distinct(reverse_keys(keys))
    distinct = len(keys)
    if not np.array_equal(keys, reverse):
        keys = np.union1d(keys, reverse)
    log_dropped_edges(name, loops, num_given - distinct)
    _log_added(name, len(keys) - distinct)
    return keys


def _log_added(name: str, count: int) -> None:
    if count:
        _log.info("%s: %d missing reverse edges were added", name, count)


def _to_keys(ends: NDArray[np.integer]) -> NDArray[np.int64]:
    return ends[:, 1].astype(np.int64) << 32 | ends[:, 0]


def reverse_keys(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return keys >> 32 | keys << 32


def _sort_distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    if (keys[1:] > keys[:-1]).all():
        return keys
    keys = np.sort(keys, kind="stable")
    is_new = keys[1:] != keys[:-1]
    return keys if is_new.all() else keys[np.concatenate([[True], is_new])]
