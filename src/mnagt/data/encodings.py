"""Node encodings of a whole data set, computed once."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from mnagt.data.memmap import GrowingRows
from mnagt.data.packed import PackedDataset
from mnagt.graphs.encodings import ENCODINGS
from mnagt.registry import lookup

_CHUNK = 1024


def with_encodings(dataset: PackedDataset, sizes: Mapping[str, int]) -> PackedDataset:
    """The data set with the encodings of these names (of ``ENCODINGS``) and sizes.

    They are kept in ``dataset.encoding_cache``, so that trials on the same data set share them.
    """
    if not sizes:
        return dataset
    cache = dataset.encoding_cache
    missing = {key: GrowingRows(int(dataset.node_ptr[-1])) for key in sizes.items() - cache.keys()}
    for chunk in torch.arange(len(dataset)).split(_CHUNK) if missing else ():
        batch = dataset.batch(chunk)
        for (name, size), rows in missing.items():
            rows.append(lookup(ENCODINGS, name, "encoding")(batch, size))
    cache.update({key: rows.concatenate() for key, rows in missing.items()})
    return replace(dataset, encodings={name: cache[name, size] for name, size in sizes.items()})
