"""A cache of functions of a batch: computed once, shared by all layers."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from mnagt.graphs.batch import GraphBatch

Result = TypeVar("Result")


def cached_per_batch(function: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate ``function(graph, *settings)``: computed once for each batch and settings, freed with the batch.

    It runs without gradients. Its result must not refer to the batch, which would never be freed.
    """
    caches: WeakKeyDictionary[GraphBatch, dict[tuple, Result]] = WeakKeyDictionary()

    @wraps(function)
    def compute_once(graph: GraphBatch, *settings: object) -> Result:
        cache = caches.setdefault(graph, {})
        if settings not in cache:
            with torch.no_grad():
                cache[settings] = function(graph, *settings)
        return cache[settings]

    return compute_once
