"""What ``mnagt train`` takes for tables of molecules: a network, a Morgan forest and boosted descriptors, averaged.

The three err differently: a network of few molecules is weak where a fingerprint is strong, and a forest cannot
extrapolate numbers. Each is fitted to the targets by itself; then the loss on the validation part chooses their weights
in a mean of probabilities or numbers, zero included (``training/fit_members.py``).
"""

from dataclasses import dataclass
from typing import Annotated, Any

from mnagt.errors import InputError, join_names
from mnagt.graphs.features import Features
from mnagt.models.config import OptionalRepeats
from mnagt.models.descriptor_boosting import DescriptorBoostingConfig, descriptor_boosting
from mnagt.models.mnagt import MnagtConfig, mnagt
from mnagt.models.morgan_forest import MorganForestConfig, morgan_forest
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.joined_model import JoinedModel, MemberReadout, WeightedMean
from mnagt.nn.readouts import Readout
from mnagt.settings import Ge, Le

MEMBERS = ("morgan-forest", "descriptor-boosting")
MAX_TREES, MIN_TREES, ALL_TREES = 300, 40, 900
"""Trees of an output, at most and at least, and about so many of all outputs: folders stay small."""


@dataclass(frozen=True)
class MnagtEnsembleConfig(MnagtConfig):
    """Settings of ``mnagt-ensemble``.

    >>> MnagtEnsembleConfig(members=("morgan-forest",)).descriptors
    ('rdkit2d',)
    """

    wl_iterations: OptionalRepeats | None = 0
    descriptors: tuple[str, ...] = ("rdkit2d",)
    members: tuple[str, ...] = MEMBERS
    """Models of trees beside the network: morgan-forest, descriptor-boosting, or both; with none, the network alone."""
    member_trees: Annotated[int, Ge(1), Le(10_000)] | None = None
    """Trees of each of them for each output. If not given: 300, and fewer where there are more than three outputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := set(self.members) - {*MEMBERS}:
            raise InputError(f"no member is called {join_names(sorted(unknown))}; there are: {join_names(MEMBERS)}")

    def automatic(self, features: Features, outputs: int) -> dict[str, Any]:
        trees = max(MIN_TREES, min(MAX_TREES, ALL_TREES // outputs))
        return super().automatic(features, outputs) | {"member_trees": self.member_trees or trees}

    @property
    def member_settings(self) -> dict[str, dict[str, Any]]:
        """The settings of each member, where they are not its defaults."""
        trees = self.member_trees or MAX_TREES
        rate = min(1.0, DescriptorBoostingConfig.learning_rate * DescriptorBoostingConfig.num_iterations / trees)
        all_settings: dict[str, dict[str, Any]] = {
            "morgan-forest": {"num_trees": trees},
            "descriptor-boosting": {"num_iterations": trees, "learning_rate": rate},
        }
        return {name: all_settings[name] for name in MEMBERS if name in self.members}


def mnagt_ensemble(config: MnagtEnsembleConfig, features: Features, outputs: int) -> GraphModel:
    """The weighted mean of a network of mnagt, a Morgan forest and boosted descriptors (molecules)."""
    config = config.resolve(features, outputs)
    network, members = mnagt(config, features, outputs), dict[str, Readout]()
    for name, settings in config.member_settings.items():
        if name == "morgan-forest":
            member = morgan_forest(MorganForestConfig(**settings), features, outputs)
        else:
            member = descriptor_boosting(DescriptorBoostingConfig(**settings), features, outputs)
        members[name] = MemberReadout(name, member, outputs)
    return JoinedModel(network, members, outputs, WeightedMean) if members else network
