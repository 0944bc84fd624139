"""Normalisation of vectors.

``counted`` says how many rows, from the first, are real; None means all. ``rounded`` says that the outcome only goes
into products of matrices: under autocast on a GPU it then comes in the narrow type that they are taken in.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from mnagt import fused
from mnagt.models.recompute import is_second_time

Counted = Int[Tensor, ""] | None


class BatchNorm(nn.Module):
    """Over the counted rows of the batch, then ReLU if asked for.

    A lone row has no spread of its own: it is normalised as in evaluation. ``is_over_ranks`` takes the rows of all
    processes that train together for one batch; each of them must then call the same norms in the same order.
    """

    is_over_ranks = False

    running_mean: Tensor
    running_var: Tensor
    momentum, eps = 0.1, 1e-5

    def __init__(self, dim: int, *, affine: bool = True, relu: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim)) if affine else None
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.relu = relu

    def forward(
        self, input: Float[Tensor, "rows dim"], counted: Counted = None, *, rounded: bool = False
    ) -> Float[Tensor, "rows dim"]:
        if self.training and self.is_over_ranks:
            out = self._over_ranks(input, counted)
            return out.relu() if self.relu else out
        if self.training and fused.is_usable(input.device) and input.dtype != torch.float64:
            from mnagt.fused.norm import batch_norm

            return batch_norm(
                input,
                self.weight,
                self.bias,
                self.running_mean,
                self.running_var,
                counted,
                momentum=0.0 if is_second_time() else self.momentum,
                eps=self.eps,
                relu=self.relu,
                out_type=fused.autocast_type(input.device) if rounded else None,
            )
        if self.training and counted is not None:
            out = self._over_counted(input, counted)
        else:
            of_batch = self.training and input.shape[0] >= 2
            share = self.momentum if of_batch and not is_second_time() else 0.0
            out = F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, of_batch, share, self.eps
            )
        return out.relu() if self.relu else out

    def _over_counted(self, x: Float[Tensor, "rows dim"], counted: Int[Tensor, ""]) -> Float[Tensor, "rows dim"]:
        is_counted = (torch.arange(len(x), device=x.device) < counted)[:, None]
        mean = torch.where(is_counted, x, 0).sum(dim=0) / counted
        var = torch.where(is_counted, (x - mean).square(), 0).sum(dim=0) / counted
        is_lone = counted < 2
        mean, var = torch.where(is_lone, self.running_mean, mean), torch.where(is_lone, self.running_var, var)
        with torch.no_grad():
            share = torch.where(is_lone, 0.0, 0.0 if is_second_time() else self.momentum)
            self.running_mean.lerp_(mean.detach().to(self.running_mean), share)
            unbiased = var.detach() * counted / (counted - 1).clamp(min=1)
            self.running_var.lerp_(unbiased.to(self.running_var), share)
        out = (x - mean) * (var + self.eps).rsqrt()
        return out if self.weight is None or self.bias is None else out * self.weight + self.bias

    def _over_ranks(self, x: Float[Tensor, "rows dim"], counted: Counted) -> Float[Tensor, "rows dim"]:
        wide = x if x.dtype == torch.float64 else x.float()
        is_counted = None if counted is None else (torch.arange(len(x), device=x.device) < counted)[:, None]
        out, mean, var, rows = _OverRanks.apply(wide, is_counted, self.running_mean, self.running_var, self.eps)
        share = torch.where(rows < 2, 0.0, 0.0 if is_second_time() else self.momentum).to(mean.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_((var * rows / (rows - 1).clamp(min=1)).to(self.running_var), share)
        out = out if self.weight is None or self.bias is None else out * self.weight + self.bias
        return out.to(x.dtype)


class _OverRanks(torch.autograd.Function):
    """Rows less the mean, over the deviation, of the counted rows of all ranks; and mean, variance and their number.

    Each rank tells its number of rows, their mean and their squared deviations, which add up without cancelling; and,
    on the way back, the two sums of ``fused/norm.py``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_counted: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
        running_mean, running_var, eps = rest
        own = x if is_counted is None else torch.where(is_counted, x, 0)
        rows = x.new_full((), len(x)) if is_counted is None else is_counted.sum().to(x)
        mean = own.sum(dim=0) / rows.clamp(min=1)
        apart = x - mean if is_counted is None else torch.where(is_counted, x - mean, 0)
        mine = torch.cat([rows[None], mean, apart.square().sum(dim=0)])
        told = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(told, mine)
        each, means, squares = torch.stack(told).split([1, x.shape[1], x.shape[1]], dim=1)
        rows = each.sum()
        mean = (each * means).sum(dim=0) / rows.clamp(min=1)
        var = (squares + each * (means - mean).square()).sum(dim=0) / rows.clamp(min=1)
        mean, var = torch.where(rows < 2, running_mean, mean), torch.where(rows < 2, running_var, var)
        scale = (var + eps).rsqrt()
        out = (x - mean) * scale
        ctx.is_counted = is_counted
        ctx.save_for_backward(out, scale, torch.where(rows < 2, 0.0, 1 / rows.clamp(min=1)))
        ctx.mark_non_differentiable(mean, var, rows)
        return out, mean, var, rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (out, scale, share), grad = ctx.saved_tensors, grads[0]
        sums = torch.stack([grad.sum(dim=0), (grad * out).sum(dim=0)])
        torch.distributed.all_reduce(sums)
        through = (sums[0] + out * sums[1]) * share
        if ctx.is_counted is not None:
            through = torch.where(ctx.is_counted, through, 0)
        return (grad - through) * scale, None, None, None, None


class LayerNorm(nn.LayerNorm):
    """Over the columns of each row."""

    def forward(
        self, input: Float[Tensor, "rows dim"], counted: Counted = None, *, rounded: bool = False
    ) -> Float[Tensor, "rows dim"]:
        if fused.is_usable(input.device) and input.dtype != torch.float64:
            from mnagt.fused.layer_norm import layer_norm

            out_type = fused.autocast_type(input.device) if rounded else None
            return layer_norm(input, self.weight, self.bias, self.eps, out_type)
        return super().forward(input)


class NoNorm(nn.Identity):
    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(
        self, input: Float[Tensor, "rows dim"], counted: Counted = None, *, rounded: bool = False
    ) -> Float[Tensor, "rows dim"]:
        return input


NORMS: dict[str, type[nn.Module]] = {"batch": BatchNorm, "layer": LayerNorm, "none": NoNorm}
