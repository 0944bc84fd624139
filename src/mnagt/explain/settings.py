"""What can be chosen of an explanation."""

from dataclasses import dataclass

from mnagt.settings import at_least


@dataclass(frozen=True)
class ExplainConfig:
    target: str | None = None
    """The class, question or number to explain, if not what the model says."""
    steps: int = 8
    """Pieces that the integral of gradients begins with."""
    drawn: int = 12
    """Graphs that are drawn, from the first."""
    checked: int = 50
    """Graphs, from the first, whose attributions are checked by deletion."""
    orders: int = 5
    """Random orders beside each of them."""

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "orders", "drawn", "checked")
