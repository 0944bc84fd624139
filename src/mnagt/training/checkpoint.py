"""Weights and training state on disk: safetensors and JSON, never pickle, always whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mnagt.errors import InputError, shown
from mnagt.files import written_atomically
from mnagt.training.ranks import Ranks


def save_tensors(path: Path, tensors: Mapping[str, Tensor], note: Any = None) -> None:
    """Tensors, and with them a ``note`` that JSON can hold, in one file."""
    owned = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with written_atomically(path) as scratch:
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
    """Refuse the weights of another model, saying what does not fit."""
    own = model.state_dict()
    said = f"{path}: of another model, or another version of it"
    for name in sorted(own.keys() | weights.keys()):
        if name not in weights:
            raise InputError(f"{said}: it lacks {shown(name)}; train again, or restore the config it came with")
        if name not in own:
            raise InputError(f"{said}: it has {shown(name)}; train again, or restore the config it came with")
        if own[name].shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(own[name].shape)}"
            raise InputError(f"{said}: {name!r} has shape {shapes}; restore the config it came with")
        if own[name].dtype != weights[name].dtype:
            kinds = f"{weights[name].dtype}, not {own[name].dtype}"
            raise InputError(f"{said}: {name!r} holds {kinds}; restore the config it came with")


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put ``weights`` into ``model``, if they are its."""
    check_weights(model, weights, path)
    model.load_state_dict(dict(weights))


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that ``prefixed`` put under ``prefix``."""
    return {name.removeprefix(f"{prefix}/"): t for name, t in tensors.items() if name.startswith(f"{prefix}/")}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's memory, flat: parameter number / name of the quantity."""
    state = optimizer.state_dict()["state"]
    return {f"{i}/{key}": torch.as_tensor(value) for i, each in state.items() for key, value in each.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split("/", 1)
        state.setdefault(int(number), {})[key] = tensor
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, each in state.items():
        if any(tensor.ndim and tensor.shape != weights[number].shape for tensor in each.values()):
            raise ValueError(f"the optimiser's memory of weight {number} has another shape")
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def random_states(device: torch.device, ranks: Ranks) -> dict[str, Tensor]:
    """The state of the generators that dropout draws from, a row for each rank."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: ranks.stacked(state) for name, state in states.items()}


def set_random_states(states: Mapping[str, Tensor], device: torch.device, ranks: Ranks) -> bool:
    """Whether they could be set: they are of as many ranks as there are now."""
    rows = {name: torch.atleast_2d(state) for name, state in states.items()}  # once there was but one
    if len(rows["cpu"]) != ranks.count:
        return False
    torch.set_rng_state(rows["cpu"][ranks.rank].clone())  # torch reads a view from its beginning
    if device.type == "cuda" and "cuda" in rows:
        torch.cuda.set_rng_state(rows["cuda"][ranks.rank].clone(), device)
    return True
