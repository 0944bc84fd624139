"""Numbers with a distribution over their mean and variance: deep evidential regression."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mnagt.tasks.base import divide
from mnagt.tasks.mean_variance import MeanVariance, Moments
from mnagt.tasks.regression import AnyValues, Values
from mnagt.tasks.uncertain import Sides, invert_softplus

REGULARISATION = 0.2
"""Weight of the term that takes evidence from wrong predictions."""
LEAST = -40.0
"""Outputs are at least this before softplus, so that variances are finite in float32."""

Outputs = Float[Tensor, "*any four_columns"]


class NormalInverseGamma(NamedTuple):
    """The parameters of each number's distribution over mean and variance, standardised."""

    gamma: AnyValues
    """The mean."""
    nu: AnyValues
    """How many observations the mean is worth."""
    alpha: AnyValues
    """Above 1."""
    beta: AnyValues


@dataclass(frozen=True)
class Evidential(MeanVariance):
    r"""Numbers as ``Regression``, each as a normal-inverse-gamma distribution (Amini et al., 2020).

    Outputs are :math:`\gamma`, and :math:`\nu, \alpha - 1, \beta` before softplus. The prediction is :math:`\gamma`,
    its variance :math:`\frac{\beta}{\alpha - 1}\left(1 + \frac{1}{\nu}\right)`: noise of the targets, and what the
    model does not know of the mean, the part with :math:`1/\nu` (epistemic). The loss is the negative log-likelihood,
    of a Student t distribution, and :math:`0.2\,|y - \gamma|\,(2\nu + \alpha)`, which takes evidence from wrong
    predictions. In an ensemble, the variance of the members' predictions adds to the epistemic variance.

    >>> one = math.log(math.e - 1)  # softplus of it is 1
    >>> Evidential(("weight",), mean=(10.0,), std=(2.0,)).decode(torch.tensor([[1.5, one, one, one]]))
    {'weight': [13.0], 'std weight': [2.828427...], 'epistemic std weight': [2.0]}
    """

    kind: ClassVar[str] = "evidential"
    outputs_per_column: ClassVar[int] = 4

    def parameters(self, output: Outputs) -> NormalInverseGamma:
        """The distribution of each number."""
        gamma, *others = output.chunk(4, dim=-1)
        nu, evidence, beta = (F.softplus(other.clamp(min=LEAST)) for other in others)
        return NormalInverseGamma(gamma, nu, evidence + 1, beta)

    def moments(self, output: Outputs) -> Moments:
        gamma, nu, alpha, beta = self.parameters(output)
        return gamma, (beta / (alpha - 1) * (1 + 1 / nu)).sqrt()

    def with_sides(self, output: Outputs, sides: Sides) -> Outputs:
        gamma, below, above = sides
        _, nu, alpha, beta = self.parameters(output)
        factor = (below + above) / 2 / self.moments(output)[1]
        return self._to_output(NormalInverseGamma(gamma, nu, alpha, beta * factor.square()))

    @staticmethod
    def _to_output(distribution: NormalInverseGamma) -> Outputs:
        gamma, nu, alpha, beta = distribution
        return torch.cat([gamma, *map(invert_softplus, (nu, alpha - 1, beta))], dim=-1)

    def loss(self, output: Outputs, target: Values) -> Float[Tensor, ""]:
        gamma, nu, alpha, beta = self.parameters(output)
        error, omega = self.standardise(target.nan_to_num()) - gamma, 2 * beta * (1 + nu)
        likelihood = (
            (math.pi / nu).log() / 2
            - alpha * omega.log()
            + (alpha + 0.5) * (error.square() * nu + omega).log()
            + alpha.lgamma()
            - (alpha + 0.5).lgamma()
        )
        loss = likelihood + REGULARISATION * error.abs() * (2 * nu + alpha)
        return divide((loss * self.cell_weights(target)).sum(), self.loss_weight(target))

    def decode(self, output: Outputs) -> dict[str, list]:
        """The numbers, their deviation, and the part of it that comes from what the model does not know."""
        gamma, nu, alpha, beta = self.parameters(output)
        epistemic = (beta / (alpha - 1) / nu).sqrt()
        return super().decode(output) | self.half_widths(gamma, epistemic, "epistemic std")

    def to_probability(self, output: Outputs) -> Outputs:
        """Mean, variance of the targets, second moment of the mean, and alpha - 1: what is averaged over models."""
        gamma, nu, alpha, beta = self.parameters(output)
        noise = beta / (alpha - 1)
        return torch.cat([gamma, noise, noise / nu + gamma.square(), alpha - 1], dim=-1)

    def from_probability(self, probability: Outputs) -> Outputs:
        gamma, noise, second, evidence = probability.chunk(4, dim=-1)
        nu = noise / (second - gamma.square()).clamp(min=torch.finfo(gamma.dtype).tiny)
        return self._to_output(NormalInverseGamma(gamma, nu, evidence + 1, noise * evidence))
