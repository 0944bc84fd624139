"""A linear model over WL subtree counts.

Shervashidze, Schweitzer, van Leeuwen, Mehlhorn, Borgwardt: Weisfeiler-Lehman Graph Kernels, 2011. Their kernel is the
scalar product of subtree counts; a linear model has the same functions, with a weight for each subtree in place of one
for each training graph. Differs from the original in what a count becomes (``normalisation``), and in that nodes
without labels begin with degree, triangles and core number.
"""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from torch import nn

from mnagt.graphs.features import Features
from mnagt.models.config import SklearnConfig
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.wl_counts import Normalisation, WLCounts, initial_colours
from mnagt.settings import Ge, Gt, Le, Lt, PositiveInt, Settings

MAX_ITERATIONS = 6
"""WL iterations that validation chooses from, at most."""


@dataclass(frozen=True)
class WLCountsConfig(Settings):
    """Settings of a linear model over WL subtree counts."""

    wl_iterations: Annotated[int, Ge(0), Le(32)] | None = None
    """WL iterations whose subtrees are counted: heights 0 to this. If not given, validation chooses."""
    wl_min_graphs: PositiveInt = 1
    """Training graphs that must have a WL colour for it to be counted."""
    normalisation: Literal["auto", "presence", "log", "raw", "l2", "log-l2"] = "auto"
    """What a count n becomes: presence (1), log (log(1 + n)), raw (n); l2 and log-l2 are divided by the Euclidean norm
    over all counts of the graph; auto: validation chooses."""
    classifier: Literal["auto", "logistic", "svm"] = "auto"
    """Logistic regression, or a linear SVM; auto: validation chooses. Numbers are learned by ridge regression."""
    C: Annotated[float, Gt(0), Lt(inf)] | None = None
    """Inverse strength of regularisation, as in scikit-learn. If not given, validation chooses."""

    @property
    def counted(self) -> tuple[int, Normalisation]:
        """WL iterations, and what a count becomes; where validation is to choose, what it can choose from."""
        iterations = MAX_ITERATIONS if self.wl_iterations is None else self.wl_iterations
        return iterations, "presence" if self.normalisation == "auto" else self.normalisation


@dataclass(frozen=True)
class WLLinearConfig(SklearnConfig, WLCountsConfig):
    """Settings of ``wl-linear``.

    >>> WLLinearConfig(wl_iterations=3, C=0.1).normalisation
    'auto'
    """


def wl_linear(config: WLLinearConfig, features: Features, outputs: int) -> GraphModel:
    """A linear model over WL subtree counts, fitted by scikit-learn."""
    iterations, normalisation = config.counted
    readout = WLCounts(outputs, iterations, initial_colours(features), normalisation)
    return GraphModel(NoEncoder(), [], readout, nn.Identity(), features)
