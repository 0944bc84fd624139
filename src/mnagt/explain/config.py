"""Settings of explanations. No torch: `--help` reads them."""

from dataclasses import dataclass

from mnagt.settings import PositiveInt, Settings


@dataclass(frozen=True)
class ExplainConfig(Settings):
    """Settings of ``explain_to``."""

    target: str | None = None
    """The class, label or number to explain, if not the predicted one."""
    steps: PositiveInt = 8
    """Intervals that the path of the integrated gradients begins with."""
    drawn: PositiveInt = 12
    """How many graphs are drawn."""
    checked: PositiveInt = 50
    """How many graphs are checked by deletion."""
    orders: PositiveInt = 5
    """Random orders of deletion that each is compared with."""
