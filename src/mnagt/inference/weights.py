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
    """Write tensors, and a ``note`` that JSON can hold, into one file."""
    owned = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with write_atomically(path) as scratch:
        try:
            save_file(owned, scratch, metadata={"note": json.dumps(note)})
        except SafetensorError as error:
            raise OSError(str(error)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors and the note that ``save_tensors`` wrote."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads((file.metadata() or {}).get("note", "null"))
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: damaged or not a checkpoint ({reason}); restore it or train again") from None


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names that begin with ``prefix``."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that ``add_prefix`` put under ``prefix``."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_weights(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse the weights of another model: names, shapes and dtypes must be those of ``expected``."""
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


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load ``weights`` into ``model`` after ``check_weights``."""
    check_weights(model.state_dict(), weights, path)
    model.load_state_dict(dict(weights))
