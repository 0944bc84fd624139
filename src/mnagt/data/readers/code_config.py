"""Settings of data sets that are made from Python sources. No torch: `--help` reads them."""

from dataclasses import dataclass
from typing import Annotated

from mnagt.settings import Ge, Settings

MAX_NODES = 1000


@dataclass(frozen=True)
class CodeConfig(Settings):
    """How a data set is made from sources."""

    max_nodes: Annotated[int, Ge(3)] = MAX_NODES
    """Nodes of a graph; of larger trees the first are kept, depth first."""
    attributes: Annotated[int, Ge(3)] = 10_030
    """Size of the vocabulary of attributes: the commonest of those seen twice in the training part."""
    seed: int = 0
    """Draws the order in which projects are given to the parts."""
