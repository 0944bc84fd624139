"""Tensors on disk, and what a model folder may hold: safetensors and JSON, never pickle, written atomically."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mnagt.errors import InputError, join_names, one_line, quote
from mnagt.files import SCRATCH, write_atomically

CONFIG, WEIGHTS, CALIBRATION, CARD = "config.json", "model.safetensors", "calibration.json", "README.md"
DOMAIN = "domain.safetensors"
KNOWN = (CONFIG, WEIGHTS, CALIBRATION, DOMAIN, CARD, "LICENSE")
"""All that a model folder holds."""
MAX_WEIGHT = 1e30
"""Weights are smaller: their squares would overflow."""
_IGNORED = (".git", ".gitattributes", ".cache")
"""What git and ``huggingface_hub`` leave beside it. Nothing of this is read."""

_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".dill")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], note: Any = None) -> None:
    """Write tensors, and a ``note`` that JSON can hold, into one file, with a digest of both."""
    owned = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with write_atomically(path) as scratch:
        try:
            text = json.dumps(note)
            save_file(owned, scratch, metadata={"note": text, "digest": _digest_tensors(owned, text)})
        except SafetensorError as error:
            raise OSError(str(error)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors and the note that ``save_tensors`` wrote. Files of 0.1 have no digest."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        if metadata.keys() - {"note", "digest", "format"}:
            raise ValueError(f"unknown metadata {join_names(sorted(metadata))}")
        text = metadata.get("note", "null")
        note = json.loads(text)
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{path}: damaged or not a checkpoint ({one_line(error)}); restore it or train again"
        ) from None
    if "digest" in metadata and metadata["digest"] != _digest_tensors(tensors, text):
        raise InputError(f"{path}: changed since it was saved (its digest is another); restore it or train again")
    return tensors, note


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names that begin with ``prefix``."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that ``add_prefix`` put under ``prefix``."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_weights(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse the weights of another model: names, shapes and dtypes must be those of ``expected``. Refuse numbers that
    are not finite, or so large that they come from damage."""
    problem, remedy = "", "restore the config it came with"
    for name in sorted(expected.keys() | weights.keys()):
        if name not in weights or name not in expected:
            problem, remedy = f"it {'has' if name in weights else 'lacks'} {quote(name)}", f"train again, or {remedy}"
        elif expected[name].shape != weights[name].shape:
            problem = f"{name!r} has shape {tuple(weights[name].shape)}, not {tuple(expected[name].shape)}"
        elif expected[name].dtype != weights[name].dtype:
            problem = f"{name!r} holds {weights[name].dtype}, not {expected[name].dtype}"
        if problem:
            raise InputError(f"{path}: of another model, or another version of it: {problem}; {remedy}")
        if weights[name].is_floating_point() and weights[name].numel():
            largest = float(weights[name].detach().abs().max())
            if not largest < MAX_WEIGHT:
                raise InputError(f"{path}: {name!r} holds {largest:g}; it is damaged: restore it or train again")


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load ``weights`` into ``model`` after ``check_weights``."""
    check_weights(model.state_dict(), weights, path)
    model.load_state_dict(dict(weights))


def check_files(folder: Path) -> None:
    """Refuse pickles, and what else is not of a model; the folder of a run may hold more."""
    is_run = any((folder / name).exists() for name in ("run.json", "last.safetensors"))
    for path in sorted(folder.iterdir()):
        if path.name.endswith(SCRATCH) or path.name in _IGNORED:  # being written, or left by a writer that was killed
            continue
        if path.name in KNOWN:
            if not path.is_file():
                raise InputError(f"{path}: not a file; restore it or train again")
        elif _is_pickle(path):
            raise InputError(
                f"{path}: a pickle, which can run anything when it is read, and no model of mnagt has one; remove it "
                "if you put it there, else do not trust the folder"
            )
        elif not is_run:
            raise InputError(f"{path}: not of a model, whose folder holds {', '.join(KNOWN)}; move it elsewhere")


def _is_pickle(path: Path) -> bool:
    if path.name.lower().endswith(_PICKLES):
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4096)
    is_plain = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return is_plain or (head.startswith(b"PK") and b".pkl" in head)  # torch.save writes a zip


def fingerprints(config: Path, weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Digests of the config file and of the weights."""
    return {"config": hashlib.sha256(config.read_bytes()).hexdigest(), "weights": _digest_tensors(weights)}


def _digest_tensors(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of names, types, shapes and numbers, and of ``text``."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    digest.update(text.encode())
    return digest.hexdigest()


def check_fingerprints(folder: Path, weights: Mapping[str, Tensor], note: Any) -> None:
    """Refuse a config or weights that are not as they were saved. ``note`` came with the weights."""
    if not isinstance(note, dict):
        raise InputError(
            f"{folder / WEIGHTS}: no fingerprints in it, so not written by mnagt; restore it or train again"
        )
    current = fingerprints(folder / CONFIG, weights)
    for what, file in (("config", CONFIG), ("weights", WEIGHTS)):
        if note.get(what) != current[what]:
            raise InputError(f"{folder / file}: changed since the model was saved; restore it or train again")
