"""Node encodings of a whole data set, computed once."""

import hashlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mnagt.data.cache import cache_root, checksum
from mnagt.data.memmap import as_tensor
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.files import make_folder, write_atomically
from mnagt.graphs.encodings import ENCODINGS
from mnagt.graphs.molecules import TABLE_DESCRIPTORS
from mnagt.registry import lookup

IN_MEMORY = 1 << 30
"""Bytes up to which encodings are kept in memory."""

_CHUNK = 256
_OF_EDGES = ("adjacency-spectrum", "laplacian", "random-walk", "spectrum")
"""Encodings that depend on edges alone and take long to compute: kept in the cache folder if they took ``_LONG``."""
_LONG = 2.0
"""Seconds."""


def with_encodings(dataset: PackedDataset, sizes: Mapping[str, int]) -> PackedDataset:
    """The data set with the encodings of these names (of ``ENCODINGS``) and sizes.

    They are kept in ``dataset.encoding_cache``, so that trials on the same data set share them.
    """
    if not sizes:
        return dataset
    table_columns = {name: rows for name, rows in dataset.encodings.items() if name == TABLE_DESCRIPTORS}
    sizes = {name: size for name, size in sizes.items() if name != TABLE_DESCRIPTORS}  # which cannot be computed
    cache = dataset.encoding_cache
    for name, size in sizes.items() - cache.keys():
        cache[name, size] = _load_or_compute(dataset, name, size)
    return replace(dataset, encodings={name: cache[name, size] for name, size in sizes.items()} | table_columns)


def _load_or_compute(dataset: PackedDataset, name: str, size: int) -> Tensor:
    path = cache_root() / "encodings" / f"{_digest(dataset, name, size)}.safetensors" if name in _OF_EDGES else None
    if path is not None and (cached := _load(path, name)) is not None:
        return cached
    start = time.monotonic()
    encoding = concatenate_rows(_compute_chunks(dataset, name, size), int(dataset.node_ptr[-1]))
    if path is not None and encoding.nbytes <= IN_MEMORY and time.monotonic() - start >= _LONG:
        with suppress(InputError), write_atomically(path) as scratch:  # without a folder to write to there is no cache
            save_file({name: encoding.contiguous()}, scratch, {"checksum": str(checksum(encoding))})
    return encoding


def _compute_chunks(dataset: PackedDataset, name: str, size: int) -> Iterator[Tensor]:
    """The encoding, some graphs at a time; those of edges side by side in as many threads as torch has, each of one.

    Products and eigenvectors of matrices this small are not faster with more threads, and often much slower.
    """
    encode, threads = lookup(ENCODINGS, name, "encoding"), torch.get_num_threads()
    chunks = torch.arange(len(dataset)).split(_CHUNK)
    if name not in _OF_EDGES or threads == 1 or len(chunks) == 1 or dataset.device.type != "cpu":
        yield from (encode(dataset.batch(chunk), size) for chunk in chunks)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for first in range(0, len(chunks), 4 * threads):  # no more than these wait to be collected
                some = chunks[first : first + 4 * threads]
                yield from pool.map(lambda chunk: encode(dataset.batch(chunk), size), some)
    finally:
        torch.set_num_threads(threads)  # that of a thread is also that of the process


def _load(path: Path, name: str) -> Tensor | None:
    """The encoding in the file; None where there is no file or it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            encoding = file.get_tensor(name)
            return encoding if checksum(encoding) == int(file.metadata()["checksum"]) else None
    except (SafetensorError, OSError, LookupError, TypeError, ValueError):
        return None


def _digest(dataset: PackedDataset, *parts: object) -> str:
    """Of the edges, and of ``parts``."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=20)
    for tensor in (dataset.node_ptr, dataset.edge_ptr, dataset.source):
        for chunk in tensor.split(2**22):
            digest.update(chunk.to("cpu", torch.int64).contiguous().numpy().data)
    return digest.hexdigest()


def concatenate_rows(parts: Iterator[Tensor], rows: int) -> Tensor:
    """All ``rows`` rows of these parts: in memory, or in a mapped file if they take over ``IN_MEMORY`` bytes.

    The file is a temporary one in the cache folder, and is removed with the rows.
    """
    first = next(parts)
    parts = chain([first], parts)
    if first[:1].nbytes * rows <= IN_MEMORY:
        return torch.cat(list(parts))
    make_folder(cache_root())
    with tempfile.TemporaryFile(dir=cache_root()) as file:
        for part in parts:
            file.write(part.contiguous().numpy().reshape(-1).view(np.uint8).data)
        file.flush()
        return as_tensor(np.memmap(file, first.numpy().dtype, mode="r", shape=(rows, *first.shape[1:])))
