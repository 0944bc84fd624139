"""How a node merges what its kernels saw."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.linear import Linear
from mnagt.ops.functional import mix
from mnagt.registry import register_class

KernelOutputs = Float[Tensor, "nodes kernels dim"]
Nodes = Float[Tensor, "nodes dim"]


class Mixer(nn.Module):
    """From the outputs of all kernels, [nodes, kernels, dim], to one vector a node, [nodes, dim].

    Args:
        dim: width of node vectors.
        kernels: how many there are.

    A mixer of one's own is any module that does this:

    >>> class First(Mixer):
    ...     def forward(self, z):
    ...         return z[:, 0]
    >>> First(8, 3)(torch.ones(5, 3, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__()

    def forward(self, z: KernelOutputs) -> Nodes:
        raise NotImplementedError(f"{type(self).__name__} must define forward")


class Adaptive(Mixer):
    r"""Each node weighs its own kernels, eqs. 9 and 10.

    .. math:: z_v = \sum_k \alpha_k z_v^k, \qquad \alpha = \mathrm{softmax}_k(\sigma(z_v^k W)\, w^\top)

    The paper leaves :math:`\sigma` open; ``activation`` is a name in ``ACTIVATIONS``.

    >>> mixer, z = Adaptive(8, 3), torch.ones(5, 3, 8)
    >>> mixer(z).shape, mixer.weights(z)[0, :, 0]
    (torch.Size([5, 8]), tensor([0.3333, 0.3333, 0.3333], grad_fn=<SelectBackward0>))
    """

    def __init__(self, dim: int, kernels: int, activation: str = "tanh") -> None:
        super().__init__(dim, kernels)
        self.project = Linear(dim, dim, bias=False)  # W
        self.score = nn.Linear(dim, 1, bias=False)  # w
        self.activation = activation

    def weights(self, z: KernelOutputs) -> Float[Tensor, "nodes kernels 1"]:
        return self.score(ACTIVATIONS[self.activation](self.project(z))).softmax(dim=1)

    def forward(self, z: KernelOutputs) -> Nodes:
        return self.mix(z)

    def mix(self, z: KernelOutputs, factor: Float[Tensor, "dim"] | None = None, residual: Nodes | None = None) -> Nodes:
        """``residual + factor * self(z)``; for tanh one operation."""
        if self.activation == "tanh":
            return mix(z, self.project(z), self.score.weight[0], factor, residual)
        mixed = (self.weights(z) * z).sum(dim=1)
        mixed = mixed if factor is None else factor * mixed
        return mixed if residual is None else mixed + residual


class Mean(Mixer):
    """All kernels count the same.

    >>> Mean(1, 2)(torch.tensor([[[1.0], [3.0]]]))
    tensor([[2.]])
    """

    def forward(self, z: KernelOutputs) -> Nodes:
        return z.mean(dim=1)


class Sum(Mixer):
    """All kernels added up.

    >>> Sum(1, 2)(torch.tensor([[[1.0], [3.0]]]))
    tensor([[4.]])
    """

    def forward(self, z: KernelOutputs) -> Nodes:
        return z.sum(dim=1)


class Concat(Mixer):
    """Kernels side by side, brought back to one width by a linear map.

    >>> Concat(8, 3)(torch.ones(5, 3, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(self, dim: int, kernels: int) -> None:
        super().__init__(dim, kernels)
        self.project = Linear(kernels * dim, dim)

    def forward(self, z: KernelOutputs) -> Nodes:
        return self.project(z.flatten(1))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
}
"""What sigma of eq. 10 may be."""

MIXERS: dict[str, type[Mixer]] = {"adaptive": Adaptive, "mean": Mean, "sum": Sum, "concat": Concat}
"""Mixers by name, each built from (dim, kernels): what the setting ``mixer`` may be."""


def register_mixer(name: str) -> Callable[[type[Mixer]], type[Mixer]]:
    """Decorate a mixer of one's own, a class that is built from (dim, kernels): the setting ``mixer`` takes its name.

    >>> from mnagt import register_mixer
    >>> @register_mixer("first")
    ... class First(Mixer):
    ...     def forward(self, z):
    ...         return z[:, 0]
    >>> MIXERS.pop("first").__name__
    'First'
    """
    return register_class(MIXERS, name, "mixer")
