"""Tensors on disk: safetensors with a note in JSON, never pickle, written atomically."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mnagt.errors import InputError, quote
from mnagt.files import write_atomically


def save_tensors(path: Path, tensors: Mapping[str, Tensor], note: Any = None) -> None:
    """Tensors, and with them a ``note`` that JSON can hold, in one file."""
    owned = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with write_atomically(path) as scratch:
        try:
            save_file(owned, scratch, metadata={"note": json.dumps(note)})
        except SafetensorError as error:
            raise OSError(str(error)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """What ``save_tensors`` wrote."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads((file.metadata() or {}).get("note", "null"))
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: damaged or not a checkpoint ({reason}); restore it or train again") from None


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse the weights of another model: names, shapes and dtypes must be those of ``model``."""
    expected = model.state_dict()
    prefix = f"{path}: of another model, or another version of it"
    for name in sorted(expected.keys() | weights.keys()):
        if name not in weights:
            raise InputError(f"{prefix}: it lacks {quote(name)}; train again, or restore the config it came with")
        if name not in expected:
            raise InputError(f"{prefix}: it has {quote(name)}; train again, or restore the config it came with")
        if expected[name].shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(expected[name].shape)}"
            raise InputError(f"{prefix}: {name!r} has shape {shapes}; restore the config it came with")
        if expected[name].dtype != weights[name].dtype:
            dtypes = f"{weights[name].dtype}, not {expected[name].dtype}"
            raise InputError(f"{prefix}: {name!r} holds {dtypes}; restore the config it came with")


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load ``weights`` into ``model`` after ``check_weights``."""
    check_weights(model, weights, path)
    model.load_state_dict(dict(weights))
