"""The state of a training as tensors by name: optimiser and random generators."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mnagt.inference.weights import select_prefix
from mnagt.migrations import parameters_of_0_1, rename_weights
from mnagt.training.distributed import Ranks


def model_weights(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a network under ``prefix``. (0.1 kept a forest beside it, which was not yet grown.)"""
    weights = rename_weights(select_prefix(prefix, tensors))
    return {name: tensor for name, tensor in weights.items() if not name.startswith("forest.")}


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state, flat: name of the parameter / name of the quantity."""
    names = _parameter_names(optimizer, model)
    state = optimizer.state_dict()["state"]
    return {f"{names[i]}/{key}": torch.as_tensor(value) for i, each in state.items() for key, value in each.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set the optimiser's state to what ``optimizer_tensors`` gave."""
    names, parameters = _parameter_names(optimizer, model), dict(model.named_parameters())
    of_0_1 = parameters_of_0_1({name: p.ndim for name, p in parameters.items()})
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, quantity = key.rsplit("/", 1)
        name = of_0_1[int(name)] if name.isdigit() else name
        like = parameters[name]
        if tensor.ndim and (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            raise ValueError(f"the optimiser's state of {name} has another shape or dtype")
        state.setdefault(names.index(name), {})[quantity] = tensor
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _parameter_names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """The names of the optimiser's parameters, in its order."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def random_states(device: torch.device, ranks: Ranks) -> dict[str, Tensor]:
    """The state of the generators that dropout draws from, a row for each rank."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: torch.stack(ranks.gather(state)) for name, state in states.items()}


def set_random_states(states: Mapping[str, Tensor], device: torch.device, ranks: Ranks) -> bool:
    """Set the generators; whether that could be done: there must be as many ranks as when the states were saved."""
    rows = {name: torch.atleast_2d(state) for name, state in states.items()}  # of a single process, in early versions
    if len(rows["cpu"]) != ranks.world_size:
        return False
    torch.set_rng_state(rows["cpu"][ranks.rank].clone())  # torch reads a view from its beginning
    if device.type == "cuda" and "cuda" in rows:
        torch.cuda.set_rng_state(rows["cuda"][ranks.rank].clone(), device)
    return True
