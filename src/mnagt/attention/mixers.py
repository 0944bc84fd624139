"""How a node merges what its kernels saw."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Adaptive(nn.Module):
    r"""Each node weighs its own kernels, eqs. 9 and 10.

    .. math:: z_v = \sum_k \alpha_k z_v^k, \qquad \alpha = \mathrm{softmax}_k(\sigma(z_v^k W)\, w^\top)

    The paper leaves :math:`\sigma` open; we take tanh.
    """

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, dim, bias=False)  # W
        self.score = nn.Linear(dim, 1, bias=False)  # w

    def weights(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes kernels 1"]:
        return self.score(torch.tanh(self.project(z))).softmax(dim=1)

    def forward(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        return (self.weights(z) * z).sum(dim=1)


class Mean(nn.Module):
    """All kernels count the same."""

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__()

    def forward(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        return z.mean(dim=1)


class Sum(nn.Module):
    """All kernels added up."""

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__()

    def forward(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        return z.sum(dim=1)


class Concat(nn.Module):
    """Kernels side by side, brought back to one width by a linear map."""

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__()
        self.project = nn.Linear(kernels * dim, dim)

    def forward(self, z: Float[Tensor, "nodes kernels dim"]) -> Float[Tensor, "nodes dim"]:
        return self.project(z.flatten(1))


MIXERS = {"adaptive": Adaptive, "mean": Mean, "sum": Sum, "concat": Concat}
