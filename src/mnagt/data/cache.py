"""A cache of parsed data sets: a safetensors file each, whose name is the hash of the source files."""

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mnagt.data.packed import ENCODING, PackedDataset
from mnagt.errors import InputError
from mnagt.files import add_digest, check_digest, clear_scratch, write_atomically
from mnagt.tasks import task_from_dict, task_to_dict

VERSION = 1
"""Changes with the layout of the file."""

_HEADER = "mnagt"
_DESCRIPTIONS = ("label_counts", "vocabularies", "columns")

_DAMAGED = (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError)

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
    tensors = {name: tensor.cpu().contiguous() for name, tensor in dataset.named_tensors.items()}
    header = to_header(dataset, checksums={name: checksum(tensor) for name, tensor in tensors.items()})
    try:
        with write_atomically(path) as scratch:
            save_file(tensors, scratch, {_HEADER: json.dumps(add_digest(header))})
    except SafetensorError as error:
        raise InputError(f"cannot write {path}: {error}") from error


def load_packed(path: Path) -> PackedDataset:
    """The data set that ``save_packed`` wrote; its tensors are mapped from the file."""
    with packed_errors(path):
        with safe_open(path, framework="pt") as file:
            header = check_digest(json.loads(file.metadata()[_HEADER]), path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header["version"] != VERSION:
            raise InputError(f"{path}: written by another version of mnagt")
        for name, tensor in tensors.items():
            if checksum(tensor) != header["checksums"][name]:
                raise InputError(f"{path}: {name} is damaged")
        return from_header(header, tensors)


@contextmanager
def packed_errors(path: Path, remedy: str = "") -> Iterator[None]:
    """Turn the errors of reading a damaged file or folder into ``InputError``, which names it and the remedy."""
    try:
        yield
    except InputError as error:
        where = "" if str(error).startswith(str(path)) else f"{path}: "
        raise InputError(f"{where}{error}{remedy}") from None
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: not a packed data set, or damaged ({reason}){remedy}") from error


def to_header(dataset: PackedDataset, **others: Any) -> dict[str, Any]:
    """What describes a data set besides its tensors, and ``others``, as the header of its file."""
    described = {name: dict(getattr(dataset, name)) for name in _DESCRIPTIONS}
    task, is_symmetric = task_to_dict(dataset.task), dataset.is_symmetric
    return {"version": VERSION, "name": dataset.name, "task": task, "is_symmetric": is_symmetric, **described, **others}


def from_header(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> PackedDataset:
    """The data set with these tensors and the description in the header of its file."""
    values: dict[str, Any] = {name: t for name, t in tensors.items() if not name.startswith(ENCODING)}
    for field in _DESCRIPTIONS:
        values[field] = {name: tuple(entries) for name, entries in header.get(field, {}).items()}
    return PackedDataset(
        name=header["name"],
        task=task_from_dict(header["task"]),
        is_symmetric=header["is_symmetric"],
        block=int(header.get("block", 0)),
        encodings={name.removeprefix(ENCODING): t for name, t in tensors.items() if name.startswith(ENCODING)},
        **values,
    )


def _digest(parts: tuple[str | Path, ...]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        if isinstance(part, str):
            content = hashlib.blake2b(part.encode())
        else:
            try:
                with part.open("rb") as file:
                    content = hashlib.file_digest(file, hashlib.blake2b)
            except OSError as error:
                raise InputError(f"{part}: cannot be read ({error.strerror or error})") from error
        digest.update(content.digest())
    return digest.hexdigest()


def checksum(tensor: Tensor) -> int:
    """CRC-32 of what a tensor holds."""
    return zlib.crc32(tensor.numpy().data.cast("B")) if tensor.numel() else 0
