"""AdamW with warm-up: which parameters decay, and the learning rate at each step."""

import math

import torch
from torch import Tensor, nn

from mnagt.training.config import TrainConfig


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that spares vectors (norms, biases) from decay."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    spared = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    device = next(model.parameters()).device
    if device.type == "cpu":
        return torch.optim.AdamW(groups, lr=config.lr, fused=True)
    rate = torch.tensor(config.lr, device=device)  # read on the GPU, so that a recorded step can be given another
    return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def memory(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors in which the optimiser remembers past gradients, made now if it has taken no step yet."""
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
    return [tensor for p in parameters for tensor in optimizer.state[p].values()]


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
