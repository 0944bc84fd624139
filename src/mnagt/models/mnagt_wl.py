"""Wide and deep: a linear model over WL subtree counts, and ``mnagt`` without WL features.

The linear part is ``wl-linear``, and the network is that of ``mnagt`` with ``wl_iterations = 0``. Each is fitted to the
targets by itself; then the loss on the validation part chooses their weights in a sum, zero included. (Cheng et al.:
Wide & Deep Learning for Recommender Systems, 2016, train the two jointly. A network that learned what the linear part
leaves added nothing on the one split where it was tried: docs/log.md.)
"""

from dataclasses import dataclass, fields
from typing import Any

from mnagt.graphs.features import Features
from mnagt.models.mnagt import MnagtNetworkConfig, make_network
from mnagt.models.wl_linear import WLCountsConfig
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.joined_model import JoinedModel, WeightedSum
from mnagt.nn.wl_counts import WLCounts, initial_colours

WIDE = "wide"
"""The member beside the network: ``wl-linear``."""


@dataclass(frozen=True)
class MnagtWLConfig(WLCountsConfig, MnagtNetworkConfig):
    """Settings of ``mnagt-wl``.

    >>> MnagtWLConfig(wl_iterations=3, depth=2).classifier
    'auto'
    """

    @property
    def member_settings(self) -> dict[str, dict[str, Any]]:
        """The settings of the linear model."""
        return {WIDE: {field.name: getattr(self, field.name) for field in fields(WLCountsConfig)}}


def mnagt_wl(config: MnagtWLConfig, features: Features, outputs: int) -> GraphModel:
    """Wide and deep: the weighted sum of wl-linear and of the network of mnagt."""
    config = config.resolve(features, outputs)
    iterations, normalisation = config.counted
    wide = WLCounts(outputs, iterations, initial_colours(features), normalisation)
    return JoinedModel(make_network(config, features, outputs), {WIDE: wide}, outputs, WeightedSum)
