"""Gradient boosting on RDKit's descriptors: logP, surface areas, counts of rings and groups, charges, ...

Friedman: Greedy function approximation, 2001; scikit-learn's histogram form. The molecule is rebuilt from the columns
of its graph (``graphs/molecules.py``).
"""

from dataclasses import dataclass
from typing import Annotated

from mnagt.graphs.features import Features
from mnagt.graphs.molecules import count_components
from mnagt.models.config import SklearnConfig
from mnagt.nn.decision_trees import BoostedTrees
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.molecule_descriptors import Descriptors
from mnagt.settings import Ge, Gt, Le, PositiveInt


@dataclass(frozen=True)
class DescriptorBoostingConfig(SklearnConfig):
    """Settings of ``descriptor-boosting``.

    >>> DescriptorBoostingConfig().num_iterations
    200
    """

    num_iterations: Annotated[int, Ge(1), Le(10_000)] = 200
    """Trees for each output."""
    learning_rate: Annotated[float, Gt(0), Le(1)] = 0.05
    """Share of each tree that is added."""
    max_leaves: Annotated[int, Ge(2), Le(1024)] = 31
    """Leaves of a tree, at most."""
    min_samples_leaf: PositiveInt = 10
    """Training molecules in a leaf, at least."""


def descriptor_boosting(config: DescriptorBoostingConfig, features: Features, outputs: int) -> GraphModel:
    """Gradient boosting on RDKit's descriptors of molecules, fitted by scikit-learn.

    Descriptors of several components stand side by side.
    """
    return GraphModel(
        NoEncoder(), [], Descriptors(count_components(features)), BoostedTrees(outputs, config.num_iterations), features
    )
