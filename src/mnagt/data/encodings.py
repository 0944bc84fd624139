"""Node encodings of a whole data set, computed once."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from mnagt.data.cache import cache_root
from mnagt.data.memmap import as_tensor
from mnagt.data.packed import PackedDataset
from mnagt.files import make_folder
from mnagt.graphs.encodings import ENCODINGS
from mnagt.graphs.molecules import TABLE_DESCRIPTORS
from mnagt.registry import lookup

IN_MEMORY = 1 << 30
"""Bytes up to which encodings are kept in memory."""

_CHUNK = 1024


def with_encodings(dataset: PackedDataset, sizes: Mapping[str, int]) -> PackedDataset:
    """The data set with the encodings of these names (of ``ENCODINGS``) and sizes.

    They are kept in ``dataset.encoding_cache``, so that trials on the same data set share them.
    """
    if not sizes:
        return dataset
    given = {name: rows for name, rows in dataset.encodings.items() if name == TABLE_DESCRIPTORS}
    sizes = {name: size for name, size in sizes.items() if name != TABLE_DESCRIPTORS}  # which cannot be computed
    cache = dataset.encoding_cache
    missing = {key: GrowingRows(int(dataset.node_ptr[-1])) for key in sizes.items() - cache.keys()}
    for chunk in torch.arange(len(dataset)).split(_CHUNK) if missing else ():
        batch = dataset.batch(chunk)
        for (name, size), rows in missing.items():
            rows.append(lookup(ENCODINGS, name, "encoding")(batch, size))
    cache.update({key: rows.concatenate() for key, rows in missing.items()})
    return replace(dataset, encodings={name: cache[name, size] for name, size in sizes.items()} | given)


class GrowingRows:
    """Collects ``rows`` rows part by part: in memory, or in a mapped file if they take over ``IN_MEMORY`` bytes.

    The file is a temporary one in the cache folder, and is removed with the rows.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self._parts = rows, []
        self._file: BinaryIO | None = None

    def append(self, part: Tensor) -> None:
        if not self._parts and part[:1].nbytes * self._rows > IN_MEMORY:
            folder = cache_root()
            make_folder(folder)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        if self._file is not None:
            self._file.write(part.contiguous().numpy().reshape(-1).view(np.uint8).data)
            part = part[:0]
        self._parts.append(part)

    def concatenate(self) -> Tensor:
        """All rows."""
        if self._file is None:
            return torch.cat(self._parts)
        like = self._parts[0].numpy()
        with self._file as file:
            file.flush()
            return as_tensor(np.memmap(file, like.dtype, mode="r", shape=(self._rows, *like.shape[1:])))
