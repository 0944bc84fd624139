"""Which columns the nodes and edges of a data set carry."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """The columns of a node or of an edge."""

    labels: tuple[int, ...] = ()
    """How many categories each categorical column has."""
    values: int = 0
    """How many continuous columns there are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))

    def __bool__(self) -> bool:
        return bool(self.labels) or self.values > 0


@dataclass(frozen=True)
class Features:
    """What a model can read off a graph besides its shape."""

    nodes: Columns = Columns()
    edges: Columns = Columns()
