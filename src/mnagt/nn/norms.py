"""Normalisation of the rows of a batch. Norms are called as ``norm(x, graph)``."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.modules import GRAPH_ARGUMENTS, list_graph_arguments
from mnagt.ops import once_differentiable
from mnagt.ops.functional import NumValid, batch_norm, layer_norm

Rows = Literal["nodes", "edges", "graphs"]


class Norm(nn.Module):
    """From (x, graph) to x of the same shape.

    Args:
        dim: columns of x.
        rows: what a row of x belongs to, which tells how many rows of a padded batch are real.
        is_autocast: the output only goes into matrix products. Under autocast on a GPU it then has their dtype.

    >>> class Halved(Norm):
    ...     def forward(self, x, graph=None):
    ...         return x / 2
    >>> Halved(1)(torch.tensor([[3.0]]))
    tensor([[1.5000]])
    """

    def __init__(self, dim: int, *, rows: Rows = "nodes", is_autocast: bool = False) -> None:
        super().__init__()
        self.rows: Rows = rows
        self.is_autocast = is_autocast

    def num_valid(self, graph: GraphBatch | None) -> NumValid:
        """How many rows are real; None where all of them are."""
        return None if graph is None else graph.num_valid(self.rows)

    def forward(self, x: Float[Tensor, "rows dim"], graph: GraphBatch | None = None) -> Float[Tensor, "rows dim"]:
        raise NotImplementedError(f"{type(self).__name__} must define forward")


class BatchNorm(Norm):
    """``torch.nn.BatchNorm1d`` over the real rows of a batch, and ReLU if asked for.

    A single row has no variance: it is normalised as in evaluation. With a ``process_group`` the statistics are over
    the rows of all its ranks; each of them must then call the same norms in the same order.

    Args:
        dim: columns of x.
        affine: whether columns have a learned factor and constant.
        relu: whether ReLU follows.
        momentum: share of a batch in the running statistics.
        rest: ``rows`` and ``is_autocast``, as of ``Norm``.

    >>> BatchNorm(1)(torch.tensor([[1.0], [3.0]])).round(decimals=2).tolist()
    [[-1.0], [1.0]]
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, dim: int, *, affine: bool = True, relu: bool = False, momentum: float = 0.1, **rest: Any
    ) -> None:
        super().__init__(dim, **rest)
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim)) if affine else None
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.relu, self.momentum, self.eps = relu, momentum, 1e-5
        self.process_group: torch.distributed.ProcessGroup | None = None

    def forward(self, x: Float[Tensor, "rows dim"], graph: GraphBatch | None = None) -> Float[Tensor, "rows dim"]:
        affine, statistics = (self.weight, self.bias), (self.running_mean, self.running_var)
        if self.training and self.process_group is None:
            options = {"momentum": self.momentum, "eps": self.eps, "relu": self.relu, "is_autocast": self.is_autocast}
            return batch_norm(x, *affine, *statistics, self.num_valid(graph), **options)
        if self.training:
            y = self._normalise_over_ranks(x, self.num_valid(graph))
        else:
            y = F.batch_norm(x, *statistics, *affine, eps=self.eps)
        return y.relu() if self.relu else y

    def _normalise_over_ranks(self, x: Float[Tensor, "rows dim"], num_valid: NumValid) -> Float[Tensor, "rows dim"]:
        wide = x if x.dtype == torch.float64 else x.float()
        is_valid = None if num_valid is None else (torch.arange(len(x), device=x.device) < num_valid)[:, None]
        y, mean, var, rows = _OverRanks.apply(
            wide, is_valid, self.running_mean, self.running_var, self.eps, self.process_group
        )
        step = torch.where(rows < 2, 0.0, self.momentum).to(mean.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean), step)
        self.running_var.lerp_((var * rows / (rows - 1).clamp(min=1)).to(self.running_var), step)
        y = y if self.weight is None or self.bias is None else y * self.weight + self.bias
        return y.to(x.dtype)


class _OverRanks(torch.autograd.Function):
    """Rows normalised by mean and variance of the valid rows of all ranks; and mean, variance and number of rows.

    Ranks exchange their number of rows, mean and squared deviations, which add up without cancellation; in the backward
    pass, the two sums of ``ops/norm.py``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_valid: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
        running_mean, running_var, eps, group = rest
        valid = x if is_valid is None else torch.where(is_valid, x, 0)
        rows = x.new_full((), len(x)) if is_valid is None else is_valid.sum().to(x)
        mean = valid.sum(dim=0) / rows.clamp(min=1)
        deviation = x - mean if is_valid is None else torch.where(is_valid, x - mean, 0)
        local = torch.cat([rows[None], mean, deviation.square().sum(dim=0)])
        gathered = [torch.empty_like(local) for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather(gathered, local, group=group)
        counts, means, squares = torch.stack(gathered).split([1, x.shape[1], x.shape[1]], dim=1)
        rows = counts.sum()
        mean = (counts * means).sum(dim=0) / rows.clamp(min=1)
        var = (squares + counts * (means - mean).square()).sum(dim=0) / rows.clamp(min=1)
        mean, var = torch.where(rows < 2, running_mean, mean), torch.where(rows < 2, running_var, var)
        scale = (var + eps).rsqrt()
        y = (x - mean) * scale
        ctx.is_valid, ctx.group = is_valid, group
        ctx.save_for_backward(y, scale, torch.where(rows < 2, 0.0, 1 / rows.clamp(min=1)))
        ctx.mark_non_differentiable(mean, var, rows)
        return y, mean, var, rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y, scale, inverse_rows), grad = ctx.saved_tensors, grads[0]
        sums = torch.stack([grad.sum(dim=0), (grad * y).sum(dim=0)])
        torch.distributed.all_reduce(sums, group=ctx.group)
        through_statistics = (sums[0] + y * sums[1]) * inverse_rows
        if ctx.is_valid is not None:
            through_statistics = torch.where(ctx.is_valid, through_statistics, 0)
        return (grad - through_statistics) * scale, *[None] * 5


def synchronise_batch_norms(
    model: nn.Module, group: "torch.distributed.ProcessGroup | None"
) -> AbstractContextManager[None]:
    """Within the block, the norms of ``model`` take their statistics over all ranks of ``group``."""
    return _set_in_norms(model, "process_group", group)


def freeze_running_statistics(model: nn.Module) -> AbstractContextManager[None]:
    """Within the block, the norms of ``model`` normalise as in training and leave their running statistics alone."""
    return _set_in_norms(model, "momentum", 0.0)


@contextmanager
def _set_in_norms(model: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Within the block, attribute ``name`` of each BatchNorm, PyTorch's included, has this value."""
    kinds = (BatchNorm,) if name == "process_group" else (BatchNorm, nn.modules.batchnorm._BatchNorm)
    norms = [(module, getattr(module, name)) for module in model.modules() if isinstance(module, kinds)]
    for norm, _ in norms:
        setattr(norm, name, value)
    try:
        yield
    finally:
        for norm, before in norms:
            setattr(norm, name, before)


class LayerNorm(Norm):
    """``torch.nn.LayerNorm`` over the columns of each row.

    Args:
        dim: columns of x.
        rest: ``rows`` and ``is_autocast``, as of ``Norm``.

    >>> LayerNorm(2)(torch.tensor([[1.0, 3.0]])).detach().round(decimals=2).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, dim: int, **rest: Any) -> None:
        super().__init__(dim, **rest)
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), 1e-5

    def forward(self, x: Float[Tensor, "rows dim"], graph: GraphBatch | None = None) -> Float[Tensor, "rows dim"]:
        return layer_norm(x, self.weight, self.bias, self.eps, is_autocast=self.is_autocast)


class NoNorm(Norm):
    """Leaves x as it is.

    >>> NoNorm(2)(torch.tensor([[1.0, 3.0]]))
    tensor([[1., 3.]])
    """

    def forward(self, x: Float[Tensor, "rows dim"], graph: GraphBatch | None = None) -> Float[Tensor, "rows dim"]:
        return x


class PlainNorm(Norm):
    """A norm that takes x alone, such as ``torch.nn.LayerNorm``, or x and ``batch``, as PyTorch Geometric's do."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__(0)
        self.norm, self.of_graphs = norm, list_graph_arguments(norm)

    def forward(self, x: Float[Tensor, "rows dim"], graph: GraphBatch | None = None) -> Float[Tensor, "rows dim"]:
        return self.norm(x) if graph is None else self.norm(x, **{n: GRAPH_ARGUMENTS[n](graph) for n in self.of_graphs})


def as_graph_norm(norm: nn.Module) -> Norm:
    """``norm`` as a module from (x, graph) to x. Modules that are not a :class:`Norm` are called with x alone."""
    return norm if isinstance(norm, Norm) else PlainNorm(norm)


def pre_norms(norm: type[Norm], dim: int) -> tuple[Norm, Norm]:
    """Norms before attention and feed-forward, whose output only goes into matrix products."""
    return norm(dim, is_autocast=True), norm(dim, is_autocast=True)


NORMS: dict[str, type[Norm]] = {"batch": BatchNorm, "layer": LayerNorm, "none": NoNorm}
"""Norms by name, each built from (dim,)."""
