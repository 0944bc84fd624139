"""Wide and deep: a linear model over WL subtree counts, and ``mnagt`` without WL features beside it.

The linear part is ``wl-linear``: scikit-learn fits it first, and validation chooses its settings. The network then
learns what it leaves: in training it is given the outputs of linear models that have not seen the graph. Last,
validation chooses the weight of the network, which may be zero. After Cheng et al.: Wide & Deep Learning for
Recommender Systems, 2016.
"""

from dataclasses import dataclass

from mnagt.graphs.features import Features
from mnagt.models.mnagt import MnagtNetworkConfig, make_network
from mnagt.models.wl_linear import WLCountsConfig
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.wide_and_deep import CrossFittedCounts, WideAndDeep
from mnagt.nn.wl_counts import initial_colours


@dataclass(frozen=True)
class MnagtWLConfig(WLCountsConfig, MnagtNetworkConfig):
    """Settings of ``mnagt-wl``.

    >>> MnagtWLConfig(wl_iterations=3, depth=2).classifier
    'auto'
    """


def mnagt_wl(config: MnagtWLConfig, features: Features, outputs: int) -> GraphModel:
    """Wide and deep: wl-linear, and a network of mnagt that learns what it leaves."""
    config = config.resolve(features, outputs)
    iterations, normalisation = config.counted
    wide = CrossFittedCounts(outputs, iterations, initial_colours(features), normalisation)
    return WideAndDeep(make_network(config, features, outputs), wide)
