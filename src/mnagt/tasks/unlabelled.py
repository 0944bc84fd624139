"""Graphs without targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mnagt.errors import InputError
from mnagt.tasks.base import Task


@dataclass(frozen=True)
class Unlabelled(Task):
    """Graphs without targets: a model can predict them, and cannot be trained or evaluated with them."""

    kind: ClassVar[str] = "no targets"
    metric = "none"
    is_labelled: ClassVar[bool] = False
    has_probability: ClassVar[bool] = False

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        raise InputError("these graphs have no targets to learn from")

    def scores(self, output: Tensor, target: Tensor) -> dict[str, float]:
        return {}

    def decode(self, output: Tensor) -> dict[str, list]:
        return {}

    def target_columns(self, requested: Sequence[str] | None) -> Sequence[str]:
        return ()
