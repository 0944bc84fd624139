"""Shapes of the vectors that modules exchange."""

from jaxtyping import Float
from torch import Tensor

NodeVectors = Float[Tensor, "nodes dim"]
EdgeVectors = Float[Tensor, "edges dim"]
GraphVectors = Float[Tensor, "graphs dim"]
