"""A network and other models, each fitted by itself, joined into one model with weights that validation chooses."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.nn.graph_model import GraphModel


class JoinedModel(GraphModel):
    """A network beside other models; the buffer ``weights`` of the head has a weight for each of ``members``."""

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the models that are joined, in the order of their weights."""
        raise NotImplementedError

    @property
    def network(self) -> GraphModel:
        """The network alone; its modules are those of this model."""
        raise NotImplementedError

    @property
    def weights(self) -> Float[Tensor, "members"]:
        """The weight of each member."""
        return self.head.get_buffer("weights")

    def parts(self, output: Callable[[], Tensor]) -> dict[str, Tensor]:
        """What ``output`` returns while only the one or the other member counts."""
        weights, found = self.weights.clone(), {}
        for name, alone in zip(self.members, torch.eye(len(weights)), strict=True):
            self.weights.copy_(alone)
            found[name] = output()
        self.weights.copy_(weights)
        return found
