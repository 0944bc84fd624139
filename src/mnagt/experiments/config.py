"""Settings of the commands that run many trainings. No torch: `--help` reads them."""

import math
import os
from dataclasses import dataclass
from typing import Annotated, Literal

from mnagt.errors import InputError
from mnagt.settings import Ge, Gt, Le, NonNegativeInt, PositiveInt, Settings

Protocol = Literal["redrawn", "folds", "fixed"]
FOLDS, QUICK_SEEDS = 10, 2


@dataclass(frozen=True)
class RayConfig(Settings):
    """A Ray cluster, and how much of it a trial takes. As many trials run at a time as fit."""

    ray_address: str | None = None
    """HOST:PORT of a cluster; none for RAY_ADDRESS, and without it a cluster is started on this machine."""
    cpus_per_trial: PositiveInt = 1
    """CPUs, and threads, of a trial."""
    gpus_per_trial: Annotated[float, Gt(0), Le(1)] = 0.25
    """Share of a GPU that a trial takes, where there are GPUs and its device is not cpu."""

    @property
    def address(self) -> str | None:
        """The address of a cluster that is running already."""
        return self.ray_address or os.environ.get("RAY_ADDRESS") or None


@dataclass(frozen=True)
class QuickstartConfig(Settings):
    epochs: PositiveInt = 60
    """Epochs of each training."""
    folds: Annotated[int, Ge(3)] = 10
    """Folds of the cross-validation."""
    jobs: NonNegativeInt = 0
    """Folds trained side by side; 0 for one a core."""
    seed: NonNegativeInt = 0
    """Seed of folds and weights."""


@dataclass(frozen=True)
class TuneConfig(Settings):
    trials: PositiveInt = 50
    """Trials in all, with those that are there already."""
    seeds: PositiveInt = 3
    """Trainings of each trial, every one with weights, order and (if drawn) split of its own; their mean counts."""
    jobs: PositiveInt = 1
    """Trials that run at a time, each in a process of one thread."""
    timeout: Annotated[float, Ge(0)] | None = None
    """Seconds after which no trial is started."""
    only: tuple[str, ...] | None = None
    """Settings to search, with commas between; the others stay as they are."""
    storage: str | None = None
    """Where trials are kept that several processes or machines share: URL of a database, or FILE of a journal, which
    may lie on a network file system; none for a file in the search's own folder."""
    study: str | None = None
    """Name of the search in that storage; none for DATASET-MODEL."""
    heartbeat_timeout: Annotated[float, Ge(1)] = 60.0
    """Seconds after which a trial of another process without a heartbeat is lost, and started again."""


@dataclass(frozen=True)
class ReproduceConfig(Settings):
    seeds: PositiveInt | None = None
    """Trials of each row; as the paper if not given: 10, in table2 5."""
    first_seed: NonNegativeInt = 0
    """The first of their seeds."""
    protocol: Protocol = "redrawn"
    """How data are split."""
    datasets: tuple[str, ...] = ()
    """Other data sets than the paper's."""
    only: tuple[str, ...] = ()
    """ROW/DATASET or MODEL/DATASET patterns; what fits none of them is left out."""
    is_quick: bool = False
    """Few epochs and seeds, for a quick look: no figure of it is a result."""
    jobs: PositiveInt = 1
    """Trials that run at a time."""
    devices: tuple[str, ...] = ()
    """Devices on which trials take turns, such as cpu or cuda:0,cuda:1; otherwise as the recipes say."""
    ray: RayConfig | None = None
    """The cluster that runs them, in place of ``jobs`` processes."""
    minutes: Annotated[float, Ge(0)] = math.inf
    """Start no trial after so long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol == "folds" and (self.seeds or 0) > FOLDS:
            raise InputError(f"seeds counts the folds to test under this protocol, {FOLDS} at most: {self.seeds}")

    def repeats(self, seeds: int) -> range:
        """The seeds, or the folds; as many as ``seeds`` where the settings do not say."""
        wanted = FOLDS if self.protocol == "folds" else seeds
        return range(self.seeds or (QUICK_SEEDS if self.is_quick else wanted))


@dataclass(frozen=True)
class CompareConfig(Settings):
    """Settings of a comparison.

    >>> CompareConfig(seeds=5).jobs
    1
    """

    models: tuple[str, ...] = ()
    """Models to compare; if not given, mnagt-ensemble, morgan-forest, descriptor-boosting and wl-linear for molecules,
    with chemprop where it is installed, and mnagt, gin and wl-linear for other graphs. The constant prediction is
    always among them."""
    seeds: PositiveInt = 3
    """Trainings of each model on all training graphs, each with seeds of its own."""
    curve_seeds: NonNegativeInt = 1
    """Trainings of each model on a quarter and on half of the training graphs; 0 for no learning curve."""
    jobs: PositiveInt = 1
    """Trainings that run at a time."""
    chemprop: str = "chemprop"
    """The program of chemprop, such as chem/bin/chemprop; it is trained with its own defaults."""
