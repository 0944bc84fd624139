"""Gradient boosting on RDKit's descriptors: logP, surface areas, counts of rings and groups, charges, ...

Friedman: Greedy function approximation, 2001; scikit-learn's histogram form. The molecule is rebuilt from the columns
of its graph (``graphs/molecules.py``).
"""

from dataclasses import dataclass
from typing import Annotated

from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.graphs.molecules import MOLECULES
from mnagt.models.config import SklearnConfig
from mnagt.nn.descriptor_boosting import DescriptorBoosting
from mnagt.nn.graph_model import GraphModel
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
    """Gradient boosting on RDKit's descriptors of molecules, fitted by scikit-learn."""
    if features != MOLECULES:
        raise InputError(
            "descriptor-boosting reads molecules, with the nine columns of atoms and three of bonds that SMILES and "
            "OGB's molecules have, and these graphs have others; choose wl-linear"
        )
    return DescriptorBoosting(features, outputs, config.num_iterations)
