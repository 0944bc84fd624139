"""AdamW with warm-up: which parameters decay, and the learning rate at each step."""

import math

import torch
from torch import nn

from mnagt.training.config import TrainConfig


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that spares vectors (norms, biases) from decay."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    spared = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, fused=True)


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
