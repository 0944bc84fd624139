"""Transforms of numeric targets before they are standardised: a model learns the transformed values."""

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.errors import InputError
from mnagt.tasks.base import constant

TRANSFORMS = ("standardise", "log", "rank", "none")
"""``log`` is the natural logarithm, ``rank`` the normal score of the quantile; both are then standardised."""
KNOTS = 256
"""Quantiles between which ``rank`` interpolates."""

AnyValues = Float[Tensor, "*any columns"]


def fit_knots(name: str, transform: str, values: Float[Tensor, "labelled"]) -> tuple[float, ...]:
    """What ``transform`` has to know of the training values of the target ``name``: for ``rank`` their quantiles."""
    if transform == "log" and (bad := values[values <= 0]).numel():
        raise InputError(
            f"target {name!r} has {bad.numel()} values that are not above 0, such as {bad[0].item():g}, and no "
            "logarithm; choose --target-transform rank, or add a constant to the column"
        )
    if transform != "rank":
        return ()
    return tuple(torch.quantile(values.double(), _levels(values.device)).tolist())


def apply_transform(transform: str, value: AnyValues, knots: tuple[float, ...]) -> AnyValues:
    """The transformed values; ``knots`` are those of all columns, end to end."""
    if transform == "log":
        return value.clamp(min=torch.finfo(value.dtype).tiny).log()
    if transform == "rank":
        return _interpolate(value, _table(knots, value), _scores(value))
    return value


def invert_transform(transform: str, value: AnyValues, knots: tuple[float, ...]) -> AnyValues:
    """The inverse of ``apply_transform``; ``rank`` stays within the range of the training values."""
    if transform == "log":
        return value.exp()
    if transform == "rank":
        return _interpolate(value, _scores(value), _table(knots, value))
    return value


def _levels(device: torch.device) -> Float[Tensor, "knots"]:
    return (torch.arange(KNOTS, dtype=torch.double, device=device) + 0.5) / KNOTS


def _table(knots: tuple[float, ...], like: Tensor) -> Float[Tensor, "columns knots"]:
    return constant(knots, like.dtype, like.device).reshape(-1, KNOTS)


def _scores(like: AnyValues) -> Float[Tensor, "columns knots"]:
    """The normal scores of the quantiles, the same for each column."""
    return torch.special.ndtri(_levels(like.device)).to(like.dtype).expand(like.shape[-1], KNOTS)


def _interpolate(
    value: AnyValues, knots: Float[Tensor, "columns knots"], results: Float[Tensor, "columns knots"]
) -> AnyValues:
    """Linear between the knots of each column, constant beyond them."""
    columns = value.movedim(-1, 0).reshape(value.shape[-1], -1).contiguous()
    right = torch.searchsorted(knots.contiguous(), columns).clamp(1, KNOTS - 1)
    low, high = (knots.gather(1, index) for index in (right - 1, right))
    share = ((columns - low) / (high - low).clamp(min=torch.finfo(value.dtype).tiny)).clamp(0, 1)
    below, above = (results.gather(1, index) for index in (right - 1, right))
    interpolated = below + share * (above - below)
    return interpolated.reshape(value.shape[-1], *value.shape[:-1]).movedim(0, -1)
