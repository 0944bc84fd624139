"""WL subtree features and a head, without layers: what a model can do with subtree counts alone.

Shervashidze, Schweitzer, van Leeuwen, Mehlhorn, Borgwardt: Weisfeiler-Lehman Graph Kernels, 2011; here each counted
subtree has a learned vector. It is the part of ``mnagt`` beside the layers, trained in the same way: the difference
between the two is what layers add.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from mnagt.graphs.features import Features
from mnagt.models.builders import make_wl_features
from mnagt.models.config import WLConfig
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.readouts import Concat
from mnagt.settings import Fraction, Ge


@dataclass(frozen=True)
class CountsConfig(WLConfig):
    """Settings of ``counts``.

    >>> CountsConfig().resolve(Features(), outputs=2).wl_iterations
    1
    """

    wl_iterations: Annotated[int, Ge(1)] | None = None
    """WL iterations whose subtrees are counted. If not given: 4 where nodes have labels, else 1."""
    head_dropout: Fraction = 0.0
    """Share of the head's hidden units dropped in training."""

    def automatic(self, features: Features, outputs: int) -> dict[str, Any]:
        values = super().automatic(features, outputs)
        return values | {"wl_iterations": max(1, values["wl_iterations"])}


def counts(config: CountsConfig, features: Features, outputs: int) -> GraphModel:
    """WL subtree features and a head: no layers."""
    readout = Concat([make_wl_features(config)])
    head = make_head(default_head(config.dim, outputs), readout.dim, config.dim, outputs, config.head_dropout)
    return GraphModel(NoEncoder(), [], readout, head, features)
