"""How a node merges what its kernels saw."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt import fused
from mnagt.linear import Linear


class Mixer(nn.Module):
    """From what each kernel brings to a node to one vector."""

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__()

    def merge(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        raise NotImplementedError(f"{type(self).__name__} must say how it merges")

    def forward(
        self,
        z: Float[Tensor, "nodes kernels dim"],
        factor: Float[Tensor, "dim"] | None = None,
        residual: Float[Tensor, "nodes dim"] | None = None,
    ) -> Float[Tensor, "nodes dim"]:
        """What ``merge`` says, times ``factor``, plus ``residual``."""
        out = self.merge(z)
        out = out if factor is None else factor * out
        return out if residual is None else out + residual


class Adaptive(Mixer):
    r"""Each node weighs its own kernels, eqs. 9 and 10.

    .. math:: z_v = \sum_k \alpha_k z_v^k, \qquad \alpha = \mathrm{softmax}_k(\sigma(z_v^k W)\, w^\top)

    The paper leaves :math:`\sigma` open; we take tanh.
    """

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__(dim, kernels)
        self.project = Linear(dim, dim, bias=False)  # W
        self.score = nn.Linear(dim, 1, bias=False)  # w

    def weights(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes kernels 1"]:
        return self.score(torch.tanh(self.project(z))).softmax(dim=1)

    def merge(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        return (self.weights(z) * z).sum(dim=1)

    def forward(
        self,
        z: Float[Tensor, "nodes kernels dim"],
        factor: Float[Tensor, "dim"] | None = None,
        residual: Float[Tensor, "nodes dim"] | None = None,
    ) -> Float[Tensor, "nodes dim"]:
        if fused.is_usable(z.device) and z.dtype != torch.float64:
            from mnagt.fused.mixer import mix

            seen = self.project(z.transpose(0, 1)).transpose(0, 1)  # as they lie in memory: kernel by kernel
            return mix(z, seen, self.score.weight[0], factor, residual)
        return super().forward(z, factor, residual)


class Mean(Mixer):
    """All kernels count the same."""

    def merge(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        return z.mean(dim=1)


class Sum(Mixer):
    """All kernels added up."""

    def merge(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        return z.sum(dim=1)


class Concat(Mixer):
    """Kernels side by side, brought back to one width by a linear map."""

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__(dim, kernels)
        self.project = Linear(kernels * dim, dim)

    def merge(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        return self.project(z.flatten(1))


MIXERS: dict[str, type[Mixer]] = {"adaptive": Adaptive, "mean": Mean, "sum": Sum, "concat": Concat}
