"""Work on a batch that several layers ask for."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from mnagt.graphs.batch import GraphBatch

Told = TypeVar("Told")


def once_a_batch(work: Callable[..., Told]) -> Callable[..., Told]:
    """``work(graph, *settings)``, done once for a batch, shared by all layers and forgotten with the batch.

    What it returns must not hold the batch, and takes part in no gradient.
    """
    kept: WeakKeyDictionary[GraphBatch, dict[tuple, Told]] = WeakKeyDictionary()

    @wraps(work)
    def remembered(graph: GraphBatch, *settings: object) -> Told:
        known = kept.setdefault(graph, {})
        if settings not in known:
            with torch.no_grad():
                known[settings] = work(graph, *settings)
        return known[settings]

    return remembered
