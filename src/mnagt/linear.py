"""A linear layer for many rows."""

from jaxtyping import Float
from torch import Tensor, nn

from mnagt.ops.functional import linear


class Linear(nn.Linear):
    """``torch.nn.Linear`` whose gradients of weight and bias come from our own kernels on a GPU."""

    def forward(self, input: Float[Tensor, "*rows width_in"]) -> Float[Tensor, "*rows width_out"]:
        return linear(input, self.weight, self.bias)
