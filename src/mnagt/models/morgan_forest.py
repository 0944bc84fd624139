"""A random forest over Morgan fingerprints: what chemists have without deep learning.

Rogers, Hahn: Extended-Connectivity Fingerprints, 2010; Breiman: Random Forests, 2001. The fingerprint is RDKit's, of a
molecule rebuilt from the columns of its graph (``graphs/molecules.py``).
"""

from dataclasses import dataclass
from typing import Annotated

from mnagt.graphs.features import Features
from mnagt.graphs.molecules import count_components
from mnagt.models.config import SklearnConfig
from mnagt.nn.decision_trees import Forests
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.molecule_descriptors import MorganBits
from mnagt.settings import Ge, Le, PositiveInt


@dataclass(frozen=True)
class MorganForestConfig(SklearnConfig):
    """Settings of ``morgan-forest``.

    >>> MorganForestConfig().bits
    2048
    """

    radius: Annotated[int, Ge(0), Le(8)] = 2
    """Radius of the fingerprint, in bonds."""
    bits: Annotated[int, Ge(16), Le(2**16)] = 2048
    """Bits of the fingerprint."""
    num_trees: Annotated[int, Ge(1), Le(10_000)] = 300
    """Trees for each output."""
    min_samples_leaf: PositiveInt = 2
    """Training molecules in a leaf, at least."""


def morgan_forest(config: MorganForestConfig, features: Features, outputs: int) -> GraphModel:
    """A random forest over Morgan fingerprints of molecules, fitted by scikit-learn.

    Fingerprints of several components stand side by side.
    """
    bits = MorganBits(config.radius, config.bits, count_components(features))
    return GraphModel(NoEncoder(), [], bits, Forests(outputs, config.num_trees), features)
