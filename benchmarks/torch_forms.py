"""What may replace our pointwise and reduction kernels: PyTorch, eager or compiled (see ``pointwise_kernels.py``)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from mnagt.ops import functional, parameter_copies
from mnagt.runs.config import TrainConfig
from mnagt.training.optim import ClippedAdamW, decay_groups

Patch = Callable[[], AbstractContextManager[Any]]
"""A context within which a kernel is replaced."""


def never(*tensors: Tensor) -> bool:
    """No kernel takes these tensors."""
    return False


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return functional.layer_norm(x, weight, bias, eps).to(dtype)


def batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> Tensor:
    mean, var, num_valid, momentum, eps, relu, dtype = rest
    y = functional.batch_norm(x, weight, bias, mean, var, num_valid, momentum=momentum, eps=eps, relu=relu)
    return y.to(dtype)


def mix_by_sums(
    z: Tensor, projected: Tensor, score: Tensor, factor: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """``functional.mix`` with a sum in place of the product with ``score``, which would split what is compiled."""
    y = ((projected.tanh() * score).sum(dim=2, keepdim=True).softmax(dim=1) * z).sum(dim=1)
    y = y if factor is None else factor * y
    return y.to(z.dtype) if residual is None else (y + residual).to(residual.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *copies: Tensor | None) -> Tensor:
    return F.linear(x, weight.flatten(0, -2), bias)


def batched_linears(x: Tensor, copies: list[Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.matmul(x, weight.mT) for weight in weights)


def multiply_over_rows(
    dy: Tensor, x: Tensor, weights: int, weight_type: torch.dtype, bias_type: torch.dtype | None = None
) -> tuple[Tensor, Tensor | None]:
    """As ``ops.linear._multiply_over_rows``, by torch's products, one after another."""
    dweight = torch.stack([torch.mm(g.T, rows) for g, rows in zip(dy, x, strict=True)])
    dweight = dweight if weights > 1 else dweight.sum(dim=0, keepdim=True)
    return dweight.to(weight_type), None if bias_type is None else sum_over_rows(dy[0], bias_type)


def sum_over_rows(dy: Tensor, bias_type: torch.dtype) -> Tensor:
    return dy.sum(dim=0, dtype=torch.float32).to(bias_type)


def update_flat(
    weights: Tensor, grads: Tensor, means: Tensor, squares: Tensor, copies: Tensor | None,
    step: Tensor, seen: Tensor, lr: Tensor, decay: Tensor, clip: float, betas: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    """The two launches of ``FlatAdamW``."""
    step += 1
    norm, t = grads.square().sum().sqrt(), step.double()
    is_fine = (seen[0] == 0) & seen[1].isfinite() & norm.isfinite()
    seen[0].copy_(~is_fine)
    seen[2].copy_(norm)
    g = grads * (clip / (norm + 1e-6)).clamp(max=1) if clip else grads
    mean = means + (1 - betas[0]) * (g - means)
    square = betas[1] * squares + (1 - betas[1]) * g * g
    mean_share, square_share = ((1 - beta**t).float() for beta in betas)
    weight = weights * (1 - lr * decay) - lr / mean_share * mean / (square.sqrt() / square_share.sqrt() + eps)
    for old, new in ((means, mean), (squares, square), (weights, weight)):
        old.copy_(torch.where(is_fine, new, old))
    if copies is not None:
        copies.copy_(weights)


def flat_adamw(model: torch.nn.Module, config: TrainConfig, update: Callable[..., None] = update_flat) -> Any:
    """``FlatAdamW`` that calls ``update`` in place of its launches."""
    from mnagt.ops.adamw import FlatAdamW

    class Flat(FlatAdamW):
        @torch.no_grad()
        def step(self, closure: Callable[[], float] | None = None, *, loss: Tensor | None = None) -> None:  # type: ignore[override]
            if loss is not None:
                self.seen[1].copy_(loss)
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
            torch._foreach_copy_(self._gathered, grads)  # pyright: ignore[reportPrivateImportUsage]
            group = self.param_groups[0]
            update(
                self._weights, self._grads, self._mean, self._square, self.copies, self._step, self.seen,
                group["lr"], decay, self.clip, group["betas"], group["eps"],
            )  # fmt: skip

    p = next(model.parameters())
    copy_dtype = torch.bfloat16 if config.precision == "bf16" else None
    groups, rate = decay_groups(model, config.weight_decay), torch.tensor(config.lr, device=p.device)
    optimizer = Flat(groups, rate, clip=config.clip, copy_dtype=copy_dtype)
    decay = torch.zeros_like(optimizer._weights)
    for group, (first, end) in zip(optimizer.param_groups, optimizer._spans, strict=True):
        decay[first:end] = group["weight_decay"]
    return optimizer


class CopyingAdamW(ClippedAdamW):
    """``ClippedAdamW`` that keeps copies of the parameters in ``dtype``."""

    def __init__(self, groups: list[dict[str, Any]], dtype: torch.dtype, **rest: Any) -> None:
        super().__init__(groups, **rest)
        self._copied = [p.detach().to(dtype) for p in self._parameters]
        for p, copy in zip(self._parameters, self._copied, strict=True):
            parameter_copies.register(p, copy)

    @torch.no_grad()
    def step(self, closure: None = None, *, loss: Tensor | None = None) -> None:  # type: ignore[override]
        super().step(loss=loss)
        torch._foreach_copy_(self._copied, self._parameters)  # pyright: ignore[reportPrivateImportUsage]


def torch_adamw(model: torch.nn.Module, config: TrainConfig, *, has_copies: bool) -> ClippedAdamW:
    p = next(model.parameters())
    rate = torch.tensor(config.lr, device=p.device)
    options: dict[str, Any] = {"lr": rate, "clip": config.clip, "capturable": p.is_cuda}
    groups = decay_groups(model, config.weight_decay)
    return CopyingAdamW(groups, torch.bfloat16, **options) if has_copies else ClippedAdamW(groups, **options)


class Twin:
    """``function``, of the module ``functional``, without its kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        with patch.object(functional, "has_kernel", never):
            return self.function(*args)


class Compiled(Twin):
    """The same through ``torch.compile``; the longest axis of the arguments ``rows`` is dynamic, others are not."""

    backend = "inductor"

    def __init__(self, function: Callable[..., Any], rows: tuple[int, ...] = (0,)) -> None:
        super().__init__(torch.compile(function, backend=self.backend, dynamic=False))
        self.rows = rows

    def __call__(self, *args: Any) -> Any:
        for x in (args[i] for i in self.rows if args[i] is not None):
            torch._dynamo.maybe_mark_dynamic(x, max(range(x.dim()), key=x.shape.__getitem__))
        return super().__call__(*args)


def replace_apply(name: str, kernel: str, function: Callable[..., Any]) -> AbstractContextManager[Any]:
    """The autograd function ``kernel`` of the module ``mnagt.ops.name`` gives way to ``function``."""
    return patch(f"mnagt.ops.{name}.{kernel}.apply", function)


@contextmanager
def replace_linear(one: Twin, several: Twin) -> Iterator[None]:
    """Linear maps by torch, with its own casts of the weights."""
    with (
        replace_apply("linear", "Linear", one),
        replace_apply("linear", "BatchedLinears", several),
        patch.object(parameter_copies, "cast", lambda parameter, dtype: parameter),
    ):
        yield


@contextmanager
def replace_products() -> Iterator[None]:
    """The gradients of linear maps by torch's products."""
    with (
        patch("mnagt.ops.linear._multiply_over_rows", multiply_over_rows),
        patch("mnagt.ops.linear._sum_over_rows", sum_over_rows),
    ):
        yield


def replace_optimizer(make: Callable[..., Any]) -> AbstractContextManager[Any]:
    return patch("mnagt.training.trainer.adamw", make)


def list_forms() -> dict[str, dict[str, Patch]]:
    """The forms that may replace each kernel; a compiled function is made once for all."""
    pairs: dict[str, tuple[str, Twin, Compiled]] = {
        "scale": ("ScaledAdd", Twin(functional.scaled_add), Compiled(functional.scaled_add, (0, 2))),
        "mixer": ("Mix", Twin(functional.mix), Compiled(mix_by_sums, (0, 1, 4))),
        "layer_norm": ("LayerNorm", Twin(layer_norm), Compiled(layer_norm)),
        "norm": ("BatchNorm", Twin(batch_norm), Compiled(batch_norm)),
    }
    forms: dict[str, dict[str, Patch]] = {
        name: {
            "eager": partial(replace_apply, name, kernel, eager),
            "compiled": partial(replace_apply, name, kernel, compiled),
        }
        for name, (kernel, eager, compiled) in pairs.items()
    }
    forms["linear"] = {
        "eager": partial(replace_linear, Twin(linear), Twin(batched_linears)),
        "products": replace_products,
        "compiled": partial(replace_linear, Compiled(linear), Compiled(batched_linears)),
    }
    update = torch.compile(update_flat, backend=Compiled.backend)
    forms["adamw"] = {
        "eager": partial(replace_optimizer, partial(torch_adamw, has_copies=False)),
        "copies": partial(replace_optimizer, partial(torch_adamw, has_copies=True)),
        "flat": partial(replace_optimizer, flat_adamw),
        "flat compiled": partial(replace_optimizer, partial(flat_adamw, update=update)),
    }
    return forms
