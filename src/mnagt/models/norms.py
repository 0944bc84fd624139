"""Normalisation of node vectors."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class BatchNorm(nn.BatchNorm1d):
    """Over the nodes of the batch. A lone node has no spread of its own: it is normalised as in evaluation."""

    def forward(self, input: Float[Tensor, "nodes dim"]) -> Float[Tensor, "nodes dim"]:
        if self.training and input.shape[0] < 2:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        return super().forward(input)


NORMS: dict[str, type[nn.Module]] = {"batch": BatchNorm, "layer": nn.LayerNorm, "none": nn.Identity}
