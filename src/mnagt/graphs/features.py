"""Which columns the nodes and edges of a data set carry."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """The columns of a node or of an edge.

    >>> bool(Columns(labels=(7, 4), values=3)), bool(Columns())
    (True, False)
    """

    labels: tuple[int, ...] = ()
    """How many categories each categorical column has."""
    values: int = 0
    """How many continuous columns there are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))

    def __bool__(self) -> bool:
        return bool(self.labels) or self.values > 0

    def __str__(self) -> str:
        """What the columns are, in words.

        >>> str(Columns((7, 2), 3))
        'categories (7, 2) and 3 numbers'
        """
        labels = f"categories ({', '.join(map(str, self.labels))})" if self.labels else ""
        values = f"{self.values} number{'s' * (self.values > 1)}" if self.values else ""
        return " and ".join(part for part in (labels, values) if part) or "no columns"


@dataclass(frozen=True)
class Features:
    """What a model can read off a graph besides its shape.

    >>> Features(nodes=Columns(labels=(7,))).edges
    Columns(labels=(), values=0)
    """

    nodes: Columns = Columns()
    """The columns of each node."""
    edges: Columns = Columns()
    """The columns of each edge."""
