"""The settings of a run."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from mnagt.errors import InputError
from mnagt.settings import at_least, below, literals


@dataclass(frozen=True)
class TrainConfig:
    epochs: int = 100
    """Times that every training graph is seen."""
    batch_size: int = 256
    """Graphs in a step."""
    lr: float = 1e-3
    """Highest learning rate."""
    weight_decay: float = 1e-5
    """Decay of weights (AdamW); norms and biases are spared."""
    schedule: Literal["cosine", "inverse-sqrt", "constant"] = "cosine"
    """Learning rate after the warm-up: cosine to zero, inverse-sqrt (the original Transformer's), or constant."""
    warmup: float = 0.05
    """Share of all steps over which the learning rate rises from zero."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    choose_over: int = 10
    """The epoch kept is the one up to which so many validation scores are best on average (one alone is luck); a run no
    longer than that keeps its last."""
    average: float = 0.0
    """Validate and keep a running average of the weights, of which each step leaves this share (0.99); 0 for none."""
    balance: bool = False
    """Weigh the classes in the loss so that each counts the same, however rare it is in the training part."""
    smoothing: float = 0.0
    """Share of each answer that the loss spreads over all classes: the model is never quite sure; 0 for none."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Arithmetic of products: fp32, tf32 (fp32 that a GPU multiplies with 10 bits), bf16 (throughout; fastest on
    a GPU); auto is tf32 on a GPU, fp32 on a CPU."""
    record: Literal["auto", "never"] = "auto"
    """Record the step as a CUDA graph and replay it: auto does so on a GPU with Triton."""
    recompute: bool = False
    """Work layers out again in the backward pass instead of keeping all that they made: less memory, more time."""
    seed: int = 0
    """Seed of weights, order and dropout."""
    checkpoint_seconds: float = 30.0
    """Longest time between two checkpoints; 0 for one every step."""

    def __post_init__(self) -> None:
        at_least(self, 1, "epochs", "batch_size", "choose_over")
        at_least(self, 0, "lr", "weight_decay", "warmup", "clip", "average", "smoothing", "seed", "checkpoint_seconds")
        below(self, 1, "warmup", "average", "smoothing")
        below(self, math.inf, "lr", "weight_decay", "clip")
        literals(self)


@dataclass(frozen=True)
class SplitConfig:
    kind: Literal["auto", "official", "random", "stratified", "group", "scaffold", "files"] = "auto"
    """The official split, that the data set brings; random 8:1:1; one fold of a stratified k-fold; 8:1:1 with the
    groups that a column names kept together; molecules by their scaffold; or index files. auto is the official one
    where there is one, else random."""
    seed: int = 0
    """Seed of the split, apart from that of the run."""
    folds: int = 10
    """Folds of a stratified split."""
    fold: int = 0
    """The fold that tests; the one after it validates."""
    folder: str | None = None
    """Where the index files train, valid and test lie (.csv.gz, .csv or .txt, one graph index a line)."""
    column: str | None = None
    """The column whose values are the groups, of a split by groups."""

    def __post_init__(self) -> None:
        at_least(self, 0, "seed", "fold")
        at_least(self, 3, "folds")
        literals(self)
        for name, kind in (("fold", "stratified"), ("folder", "files"), ("column", "group")):
            if self.kind != kind and getattr(self, name):
                raise InputError(f"split.{name} is for a split of kind {kind!r}, and this one is {self.kind!r}")


@dataclass(frozen=True)
class RunConfig:
    dataset: str = ""
    """Name of a data set, or path of one: in TU layout, in OGB's, a table of molecules, or graphs of your own."""
    model: str = "mnagt"
    """Name of a model."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the model that differ from its defaults."""
    train: TrainConfig = TrainConfig()
    split: SplitConfig = SplitConfig()
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    smiles: str | None = None
    """Column of SMILES in a table of molecules, where it cannot be guessed."""
    targets: tuple[str, ...] | None = None
    """Columns to learn in a table or in graphs of your own, where they cannot be guessed."""
    task: Literal["auto", "single-label", "multi-label", "regression"] = "auto"
    """What the columns of a table ask for: a class, yes or no to each, or numbers; auto goes by what they hold."""

    def __post_init__(self) -> None:
        literals(self)
