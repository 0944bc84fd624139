"""A cache of parsed data sets: a safetensors file each, whose name is the hash of the source files."""

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.files import clear_scratch, write_atomically
from mnagt.tasks import task_from_dict, task_to_dict

VERSION = 1
"""Changes with the layout of the file."""

_HEADER = "mnagt"
ENCODING = "encodings/"
"""Prefix of the names of encodings among the tensors of a file."""
_BLOCK = 1 << 22

_log = logging.getLogger(__name__)


def cache_root() -> Path:
    """The folder of the cache: ``MNAGT_CACHE``, or else ``~/.cache/mnagt``."""
    return Path(os.environ.get("MNAGT_CACHE") or "~/.cache/mnagt").expanduser()


def load_or_build(*parts: str | Path, build: Callable[[], PackedDataset]) -> PackedDataset:
    """The result of ``build``, cached under the hash of ``parts``: texts, and files, whose content counts.

    Without a cache folder that can be written, the data set is built each time.
    """
    path = cache_root() / "packed" / f"{_digest(parts)}.safetensors"
    clear_scratch(path.parent)
    if os.path.exists(path):  # unlike Path.exists, False for a folder that may not be entered
        try:
            return load_packed(path)
        except InputError as error:
            _log.warning("%s; reading the source again", error)
    dataset = build()
    try:
        save_packed(dataset, path)
    except InputError as error:
        _log.warning("%s: continuing without a cache (%s); MNAGT_CACHE names its folder", dataset.name, error)
    return dataset


def save_packed(dataset: PackedDataset, path: Path) -> None:
    """Write the data set as one file, atomically."""
    tensors = {f.name: value for f in fields(dataset) if isinstance(value := getattr(dataset, f.name), Tensor)}
    tensors |= {ENCODING + name: encoding for name, encoding in dataset.encodings.items()}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    header = {
        "version": VERSION,
        "name": dataset.name,
        "task": task_to_dict(dataset.task),
        "is_symmetric": dataset.is_symmetric,
        "label_counts": {name: list(counts) for name, counts in dataset.label_counts.items()},
        "vocabularies": {name: list(words) for name, words in dataset.vocabularies.items()},
        "columns": {kind: list(names) for kind, names in dataset.columns.items()},
        "checksums": {name: _checksum(tensor) for name, tensor in tensors.items()},
    }
    try:
        with write_atomically(path) as scratch:
            save_file(tensors, scratch, {_HEADER: json.dumps(header)})
    except SafetensorError as error:
        raise InputError(f"cannot write {path}: {error}") from error


def load_packed(path: Path) -> PackedDataset:
    """The data set that ``save_packed`` wrote; its tensors are mapped from the file."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header["version"] != VERSION:
            raise InputError(f"{path}: written by another version of mnagt")
        for name, tensor in tensors.items():
            if _checksum(tensor) != header["checksums"][name]:
                raise InputError(f"{path}: {name} is damaged")
        return from_header(header, tensors)
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: not a packed data set, or damaged ({reason})") from error


def from_header(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> PackedDataset:
    """The data set with these tensors and the description in the header of its file."""
    fields = ("label_counts", "vocabularies", "columns")
    described: dict[str, Any] = {name: t for name, t in tensors.items() if not name.startswith(ENCODING)}
    described |= {field: {name: tuple(values) for name, values in header.get(field, {}).items()} for field in fields}
    return PackedDataset(
        name=header["name"],
        task=task_from_dict(header["task"]),
        is_symmetric=header["is_symmetric"],
        block=int(header.get("block", 0)),
        encodings={name.removeprefix(ENCODING): t for name, t in tensors.items() if name.startswith(ENCODING)},
        **described,
    )


def _digest(parts: tuple[str | Path, ...]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        content = hashlib.blake2b(part.encode() if isinstance(part, str) else b"")
        for block in _read_blocks(part) if isinstance(part, Path) else ():
            content.update(block)
        digest.update(content.digest())
    return digest.hexdigest()


def _read_blocks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.numpy().data.cast("B")) if tensor.numel() else 0
