"""AdamW with warm-up: which parameters decay, its state for a checkpoint, and the learning rate at each step."""

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mnagt import ops
from mnagt.errors import InputError
from mnagt.migrations import parameters_of_0_1
from mnagt.nn.graph_model import GraphModel
from mnagt.runs.config import TrainConfig

if TYPE_CHECKING:
    from mnagt.ops.adamw import FlatAdamW


def adamw(model: nn.Module, config: TrainConfig) -> "ClippedAdamW | FlatAdamW":
    """AdamW that clips, and spares vectors (norms, biases) from decay."""
    groups = decay_groups(model, config.weight_decay)
    p = next(model.parameters())
    if p.device.type == "cpu":
        return ClippedAdamW(groups, lr=config.lr, clip=config.clip)
    rate = torch.tensor(config.lr, device=p.device)  # read on the GPU, so that a captured step can be given another
    if ops.is_usable(p.device) and p.dtype == torch.float32:
        from mnagt.ops.adamw import FlatAdamW

        copy_dtype = torch.bfloat16 if config.precision == "bf16" else None
        return FlatAdamW(groups, rate, clip=config.clip, copy_dtype=copy_dtype)
    return ClippedAdamW(groups, lr=rate, clip=config.clip, capturable=True)


def decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """The model's parameters as an optimiser takes them: matrices, which decay, and vectors, which do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    decayed, spared = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def freeze_encoder(model: nn.Module) -> nn.ModuleList:
    """Leave only the head of ``model`` to be trained; returns the other parts, which belong in evaluation mode."""
    if not isinstance(model, GraphModel):
        raise InputError("only a model with an encoder and a head can be frozen in part; leave out freeze")
    frozen = nn.ModuleList(part for name, part in model.named_children() if name != "head")
    return frozen.requires_grad_(False)


class ClippedAdamW(torch.optim.AdamW):
    """AdamW that first clips the gradients of all parameters together to the norm ``clip``, unless that is 0.

    From the first loss or norm that is not finite the parameters stay as they are. ``seen`` holds whether that has
    happened, the loss of the last step, and the norm of its gradient.
    """

    copies = None
    """Of the parameters in another dtype, which ``FlatAdamW`` has."""
    # without torch's wrappers, which import its compiler: over a second and 120 MB
    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    state_dict = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.AdamW.load_state_dict)

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float | Tensor, clip: float, capturable: bool = False
    ) -> None:
        super().__init__(groups, lr=lr, fused=True, capturable=capturable)
        self.clip, self._parameters = clip, [p for group in self.param_groups for p in group["params"]]
        self.seen = torch.zeros(3, device=self._parameters[0].device)
        if self.seen.is_cuda:
            self.found_inf = self.seen[0]  # torch's own kernel then leaves everything as it is

    def step(self, closure: None = None, *, loss: Tensor | None = None) -> None:  # type: ignore[override]
        norm = nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        if loss is not None:
            self.seen[1].copy_(loss)
        self.seen[2].copy_(norm)
        self.seen[0].copy_(torch.maximum(self.seen[0], (~self.seen[1:].isfinite()).any().float()))
        if not self.seen.is_cuda and self.seen[0]:
            return
        if self.clip:
            nn.utils.clip_grads_with_norm_(self._parameters, self.clip, norm)
        with torch.no_grad():
            inspect.unwrap(torch.optim.AdamW.step)(self)

    def refresh(self) -> None:
        """To be called when the parameters were changed from outside: ``FlatAdamW`` then updates its copies."""


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimizer_state(optimizer: "ClippedAdamW | FlatAdamW") -> list[Tensor]:
    """The tensors that a step changes beside the parameters; made now if none has been taken yet."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not optimizer.state:
        for p in parameters:
            p.grad = torch.zeros_like(p)
        rate = float(optimizer.param_groups[0]["lr"])
        set_rate(optimizer, 0.0)
        optimizer.step()
        optimizer.zero_grad()
        set_rate(optimizer, rate)
        for state in optimizer.state.values():
            state["step"].zero_()
    copies = [] if optimizer.copies is None else [optimizer.copies]
    return [tensor for p in parameters for tensor in optimizer.state[p].values()] + copies


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


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """The rate of step ``step`` (from 0) of ``steps``: a linear rise, then the schedule."""
    warm = math.ceil(config.warmup * steps)
    if step < warm:
        return config.lr * (step + 1) / warm
    match config.schedule:
        case "constant":
            return config.lr
        case "inverse-sqrt":
            return config.lr * math.sqrt(max(warm, 1) / (step + 1))
        case "cosine":
            return config.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
